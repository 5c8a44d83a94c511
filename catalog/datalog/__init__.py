"""Datalog over DuckDB: text and a schema in, exact answers as Arrow out. See docs/datalog.md.

The names below are loaded on first use, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pagetrail.catalog.datalog.compiler import Query, compile_query
    from pagetrail.catalog.datalog.errors import (
        DatalogError,
        Diagnostic,
        EvaluationError,
        EvaluationLimitError,
    )
    from pagetrail.catalog.datalog.evaluate import Limits, answer, run, verify_schema
    from pagetrail.catalog.datalog.explanation import Explanation, explain
    from pagetrail.catalog.datalog.model import OPEN_SEQ, Column, Relation, Schema, Type

_HOMES = {
    "Query": "compiler",
    "compile_query": "compiler",
    "DatalogError": "errors",
    "Diagnostic": "errors",
    "EvaluationError": "errors",
    "EvaluationLimitError": "errors",
    "Limits": "evaluate",
    "answer": "evaluate",
    "run": "evaluate",
    "verify_schema": "evaluate",
    "Explanation": "explanation",
    "explain": "explanation",
    "OPEN_SEQ": "model",
    "Column": "model",
    "Relation": "model",
    "Schema": "model",
    "Type": "model",
}

__all__ = [
    "OPEN_SEQ",
    "Column",
    "DatalogError",
    "Diagnostic",
    "EvaluationError",
    "EvaluationLimitError",
    "Explanation",
    "Limits",
    "Query",
    "Relation",
    "Schema",
    "Type",
    "answer",
    "compile_query",
    "explain",
    "run",
    "verify_schema",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
