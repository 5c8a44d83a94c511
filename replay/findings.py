"""What replay reports: one thing that does not hold, by the fact that it is about."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from pagetrail.catalog.errors import PagetrailError

FINDINGS_MAX = 1_000
"""Findings that a verdict tells; those beyond are only counted."""

UNREADABLE = (
    PagetrailError,
    msgspec.MsgspecError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    MemoryError,
)
"""What code may raise over records that are not what production wrote."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not hold. Names the fact and the field."""

    client: str
    client_epoch: int
    client_seq: int
    kind: str
    what: str

    def __str__(self) -> str:
        place = f"{self.client}/{self.client_epoch}/{self.client_seq}"
        return f"{place} {self.kind}: {self.what}"


def told(error: Exception) -> str:
    """An error of UNREADABLE in words."""
    if isinstance(error, PagetrailError | msgspec.MsgspecError):
        return str(error)
    return f"it cannot be folded ({type(error).__name__}: {error})"
