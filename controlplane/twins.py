"""Compiled twins of evaluators, built with the machine's own compiler when replay first wants them.

A twin answers what its evaluator answers, already encoded, or that the inputs are none of its
business. It is never asked to disagree: where its answer is not byte for byte what was recorded,
the evaluator itself decides. So a machine without a compiler, or with a broken twin, reaches the
same verdicts, only later. Owns the building; never writes into the installed package.
"""

from __future__ import annotations

import importlib.util
import sysconfig
from collections.abc import Callable, Mapping
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from pathlib import Path
from types import MappingProxyType

import msgspec

from pagetrail.catalog.errors import PagetrailError
from pagetrail.catalog.kinds.decision import Decision
from pagetrail.kernels import compiler
from pagetrail.kernels.cache import cache_directory

from .policy.types import alternatives_digest

FLAGS = ("-std=c++17", "-O3", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra")
SOURCES = {"routing/min-ttft@1": "min_ttft"}
"""The evaluators that have a twin, and the name of its source."""

Answer = tuple[bytes, int, int, bytes]
"""The encoded choice, the reason, the tie-break and the encoded alternatives."""

Twin = Callable[[msgspec.Struct, msgspec.Struct], Answer | None]
"""From weights and inputs to the answer; None: the evaluator must be asked."""

Twins = Mapping[str, Twin]
"""By the evaluator's name."""

NO_TWINS: Twins = MappingProxyType({})

_NIL = b"\xc0"


class TwinBuildError(PagetrailError):
    """There is no twin: no compiler, no headers of Python, or it failed. Says which."""


@cache
def load_twins(directory: Path | None = None) -> Twins:
    """Every twin, built if the cache has none; loaded once in a process.

    ``directory``: where to build; default the user's cache. Raises TwinBuildError when one cannot
    be had.
    """
    try:
        directory = directory or cache_directory() / "twins"
    except RuntimeError as error:  # a user without a home
        raise TwinBuildError(f"no cache directory: {error}; set XDG_CACHE_HOME") from error
    return {name: _load(source, _build(source, directory)) for name, source in SOURCES.items()}


def agrees(answer: Answer, decision: Decision) -> bool:
    """Whether a twin's answer is what was recorded, byte for byte."""
    choice, reason, tie_break, alternatives = answer
    return (
        bytes(decision.choice) == choice
        and decision.reason == reason
        and decision.tie_break == tie_break
        and bytes(decision.alternatives) in (_NIL, alternatives)
        and decision.digest == alternatives_digest(alternatives)
    )


def _load(source: str, library: Path) -> Twin:
    loader = ExtensionFileLoader(source, str(library))
    spec = importlib.util.spec_from_file_location(source, library, loader=loader)
    if spec is None:
        raise TwinBuildError(f"{library} is no extension module of this Python")
    try:
        module = importlib.util.module_from_spec(spec)
        loader.exec_module(module)
    except ImportError as error:
        raise TwinBuildError(f"{library} does not load: {error}") from error
    twin: Twin = module.evaluate
    return twin


def _build(source: str, directory: Path) -> Path:
    """The extension module of one source, for this Python."""
    headers = sysconfig.get_path("include")
    if not (Path(headers) / "Python.h").exists():
        raise TwinBuildError(f"{headers} holds no Python.h; install Python's headers")
    product = compiler.Product(
        name=source,
        sources=(Path(__file__).resolve().parent / "native" / f"{source}.cpp",),
        headers=(),
        flags=(*FLAGS, f"-I{headers}"),
        suffix=EXTENSION_SUFFIXES[0],
    )
    try:
        return compiler.build(product, directory)
    except compiler.CompilerError as error:
        raise TwinBuildError(str(error)) from error
