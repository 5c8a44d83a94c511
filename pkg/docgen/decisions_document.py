"""docs/decisions.md: each kind of decision and its evaluators, from the registry."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from types import ModuleType
from typing import get_args, get_type_hints

import msgspec
from msgspec import inspect

from pagetrail.catalog.facts import KindId
from pagetrail.controlplane import view
from pagetrail.controlplane.cluster import router_view
from pagetrail.controlplane.policy import inputs
from pagetrail.controlplane.policy.outcomes import OUTCOME_TERMS
from pagetrail.controlplane.policy.registry import EVALUATORS
from pagetrail.controlplane.policy.types import AnyEvaluator, Term
from pagetrail.docgen.markdown import cell, code, document, prose, table
from pagetrail.docgen.schema import (
    description,
    enumeration_table,
    enumerations_of,
    field_table,
    nested_structs,
    type_in_words,
)

_INTRODUCTION = """
An evaluator is a pure function from its inputs and weights to a choice with a reason and a table of
all alternatives. A decision fact (docs/facts.md) names the evaluator and holds `recorded`, what of
the inputs no other fact implies; the inputs are derived from it, the view and the catalog, by the
same functions when the decision is made and when it is replayed. Quantities are integers whose
unit is in their name, as in docs/facts.md; lists stand in the stated order. `digest` is taken over
the columns of all alternatives, one column for each term below, rows in the order of the inputs.

A name stands for one behaviour for ever: a change adds a version, and old versions stay.
"""

_RECORDED_IN: tuple[ModuleType, ...] = (view, router_view)


def decisions_document() -> str:
    """The text of docs/decisions.md."""
    kinds = sorted({evaluator.kind for evaluator in EVALUATORS.values()})
    blocks = [_INTRODUCTION, _overview()]
    for kind in kinds:
        blocks += _kind_blocks(kind)
    return document("Decisions", *blocks)


def _overview() -> str:
    rows = [
        (code(name), code(evaluator.kind.name.lower()), cell(_first_sentence(evaluator)))
        for name, evaluator in EVALUATORS.items()
    ]
    return table(("evaluator", "decides", "in short"), rows)


def _kind_blocks(kind: KindId) -> list[str]:
    evaluators = [evaluator for evaluator in EVALUATORS.values() if evaluator.kind is kind]
    takes, chooses = _schema(evaluators[0])
    stem = takes.__name__.removesuffix("Inputs")
    blocks = [f"## {kind.name.lower()}"]
    blocks += _struct_blocks(f"{takes.__name__}: what it reads", takes)
    recorded = [vars(module).get(f"{stem}Recorded") for module in _RECORDED_IN]
    for struct in filter(None, recorded):
        blocks += _struct_blocks(f"{struct.__name__}: what the decision records of it", struct)
    blocks += _struct_blocks(f"{chooses.__name__}: what it answers", chooses)
    blocks += _outcome_blocks(kind)
    blocks += [block for e in _enumerations(stem) for block in _enumeration_blocks(e)]
    blocks += [block for evaluator in evaluators for block in _evaluator_blocks(evaluator)]
    return blocks


def _schema(evaluator: AnyEvaluator) -> tuple[type[msgspec.Struct], type[msgspec.Struct]]:
    """An evaluator's inputs and its choice."""
    hints = get_type_hints(evaluator.evaluate)
    (chooses,) = get_args(hints["return"])
    return hints["inputs"], chooses


def _struct_blocks(heading: str, struct: type[msgspec.Struct]) -> list[str]:
    blocks = [f"### {heading}", prose(_own_docstring(struct)), field_table(struct)]
    for inner in nested_structs([struct]):
        blocks += [f"#### {inner.__name__}", prose(_own_docstring(inner)), field_table(inner)]
    return [block for block in blocks if block]


def _outcome_blocks(kind: KindId) -> list[str]:
    if kind not in OUTCOME_TERMS:
        text = "It has no outcome of its own: the commands in its transaction say what happened."
        return ["### Outcome", text]
    return ["### Outcome", "Values of its outcome fact:", _term_table(OUTCOME_TERMS[kind])]


def _term_table(terms: Sequence[Term]) -> str:
    rows = [(str(n), code(term.name), cell(term.unit)) for n, term in enumerate(terms)]
    return table(("column", "term", "unit"), rows)


def _own_docstring(struct: type[msgspec.Struct]) -> str:
    return vars(struct).get("__doc__") or ""


def _enumerations(stem: str) -> Sequence[type[IntEnum]]:
    return [e for e in enumerations_of([inputs]) if e.__name__.startswith(stem)]


def _enumeration_blocks(enumeration: type[IntEnum]) -> list[str]:
    heading = f"### {enumeration.__name__}"
    return [heading, prose(vars(enumeration).get("__doc__")), enumeration_table(enumeration)]


def _evaluator_blocks(evaluator: AnyEvaluator) -> list[str]:
    return [
        f"### {evaluator.name}",
        prose(type(evaluator).__doc__),
        _weights(evaluator.weights_type),
        "Terms of an alternative:",
        _term_table(evaluator.terms),
    ]


def _weights(struct: type[msgspec.Struct]) -> str:
    fields = msgspec.structs.fields(struct)
    if not fields:
        return "It has no weights."
    rows = []
    for info in fields:
        described = inspect.type_info(info.type)
        meaning = cell(description(described))
        rows.append((code(info.name), type_in_words(described), str(info.default), meaning))
    return f"Weights: {prose(_own_docstring(struct))}\n\n" + table(
        ("weight", "type", "default", "meaning"), rows
    )


def _first_sentence(evaluator: AnyEvaluator) -> str:
    return prose(type(evaluator).__doc__).partition(".")[0] + "."
