"""What a Datalog program can be refused for, and how the refusal reads.

A :class:`Diagnostic` is one finding with a place and a fix. :class:`DatalogError` carries all the
findings of the first phase (syntax, checks, types, strata) that has any, in source order.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pagetrail.catalog.errors import BadInputError, PagetrailError

RULE_TEXT_MAX_CHARS = 160


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One thing wrong with a program. ``line`` and ``column`` count from 1.

    ``rule`` is the text of the rule (cut at 160 characters), empty when no rule is concerned.
    """

    file: str
    line: int
    column: int
    rule: str
    message: str
    fix: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}: {self.message}"
        rule = f"\n    in: {self.rule}" if self.rule else ""
        return f"{where}{rule}\n    fix: {self.fix}"


class DatalogError(BadInputError):
    """The program was refused; nothing was run."""

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = tuple(sorted(set(diagnostics), key=lambda d: (d.line, d.column, str(d))))
        super().__init__("\n".join(str(d) for d in self.diagnostics))


class EvaluationError(PagetrailError):
    """A program that was accepted could not be answered over this database.

    ``diagnostic`` names the rule when one is to blame (integer overflow, division by zero).
    """

    def __init__(self, message: str, diagnostic: Diagnostic | None = None) -> None:
        self.diagnostic = diagnostic
        super().__init__(message)


class EvaluationLimitError(EvaluationError):
    """The evaluation was stopped at one of its limits (seconds, rounds)."""


def rule_text(source: str) -> str:
    """A rule's source on one line, cut to what an error message can carry."""
    flat = " ".join(source.split())
    return flat if len(flat) <= RULE_TEXT_MAX_CHARS else flat[: RULE_TEXT_MAX_CHARS - 3] + "..."


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that looks most like ``name``, or None when nothing is close."""
    import difflib

    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return close[0] if close else None
