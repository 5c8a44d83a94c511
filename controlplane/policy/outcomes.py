"""What the values of an outcome fact are, for each kind of decision that has outcomes.

Owns the order and units of ``Outcome.values``; docs/decisions.md is generated from it. A kind
without a row has no outcome of its own: the commands in its transaction say what happened.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from pagetrail.catalog.facts import KindId

from .types import Term

OUTCOME_TERMS: Mapping[KindId, tuple[Term, ...]] = MappingProxyType(
    {
        KindId.ROUTE: (
            Term("ttft_ns", "ns, from arrival at the router to the first token"),
            Term("cached_tokens", "tokens of the prompt that were not computed"),
            Term("attempt", "the attempt that completed, from 1"),
        ),
        KindId.ADMIT: (Term("waited_ns", "ns, from acceptance to admission"),),
        KindId.RESTORE: (
            Term("elapsed_ns", "ns"),
            Term("rows", "rows verified and added; fewer than chosen when a chunk was bad"),
        ),
        KindId.RESUME: (
            Term("elapsed_ns", "ns"),
            Term("rows", "rows that came back without being computed"),
        ),
        KindId.PREEMPT: (
            Term("stream", "the stream whose rows were to be swapped out"),
            Term("elapsed_ns", "ns"),
            Term("rows", "rows in host memory; 0 when they could not be taken there"),
        ),
        KindId.KEEP: (
            Term("elapsed_ns", "ns, of the copy to host memory"),
            Term("rows", "rows that lie there; 0 when it failed"),
        ),
        KindId.CHECKPOINT: (
            Term("elapsed_ns", "ns, of capturing"),
            Term("size_bytes", "bytes that left the device"),
        ),
    }
)
