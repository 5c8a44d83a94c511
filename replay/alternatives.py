"""A decision's alternatives in words: what each was, whether it was chosen, why it was not.

Owns how the columns of an evaluation are read: which rows the choice names, and what a row stands
for. Derives nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any

import msgspec

from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.content import Tier
from pagetrail.controlplane.policy.inputs import (
    AdmitChoice,
    AdmitOutcome,
    AdmitReason,
    CheckpointChoice,
    CheckpointReason,
    EvictReason,
    KeepChoice,
    KeepReason,
    PreemptReason,
    RestoreChoice,
    RestoreReason,
    RouteChoice,
    RouteInputs,
    RouteReason,
)
from pagetrail.controlplane.policy.types import AnyEvaluator, Evaluation

SHOWN_MAX = 8
"""Rejected alternatives of one reason that are shown one by one; the rest only counted."""

REASONS: dict[KindId, type[IntEnum]] = {
    KindId.ROUTE: RouteReason,
    KindId.ADMIT: AdmitReason,
    KindId.EVICT: EvictReason,
    KindId.RESTORE: RestoreReason,
    KindId.RESUME: RestoreReason,
    KindId.CHECKPOINT: CheckpointReason,
    KindId.KEEP: KeepReason,
    KindId.PREEMPT: PreemptReason,
}

Row = dict[str, int]  # an alternative: its terms by name


class Alternative(msgspec.Struct, frozen=True):
    """One alternative: what it is, and its terms by name (units: ``Explained.terms``)."""

    what: str
    terms: dict[str, int]


class Rejected(msgspec.Struct, frozen=True):
    """All alternatives that one reason ruled out, or that were eligible and worse.

    ``ranges``: least and most of every term over all ``count`` of them; ``shown`` are the first.
    """

    reason: str
    count: int
    ranges: dict[str, tuple[int, int]]
    shown: tuple[Alternative, ...]


def reason_name(kind: KindId, reason: int) -> str:
    """A reason as its kind calls it; a number that it does not know stays a number."""
    reasons = REASONS.get(kind)
    known = reasons is not None and reason in reasons._value2member_map_
    return reasons(reason).name.lower() if reasons is not None and known else str(reason)


def alternatives(
    evaluator: AnyEvaluator, inputs: msgspec.Struct, evaluation: Evaluation[Any]
) -> tuple[tuple[Alternative, ...], tuple[Rejected, ...]]:
    """What was chosen, and what was not by reason, in the order of the inputs."""
    kind = evaluator.kind
    names = [term.name for term in evaluator.terms]
    rows: list[Row] = [
        dict(zip(names, values, strict=True)) for values in zip(*evaluation.columns, strict=True)
    ]
    is_chosen, label = _READERS.get(kind, (_never, _unnamed))
    chosen: list[Alternative] = []
    rejected: dict[str, list[Alternative]] = {}
    for row in rows:
        alternative = Alternative(label(row, inputs), row)
        if is_chosen(row, evaluation.choice, inputs) and not (_one_only(kind) and chosen):
            chosen.append(alternative)
        else:
            rejected.setdefault(reason_name(kind, row.get("reason", 0)), []).append(alternative)
    return tuple(chosen), tuple(_aggregated(*item) for item in sorted(rejected.items()))


def _aggregated(reason: str, found: Sequence[Alternative]) -> Rejected:
    ranges = {
        name: (
            min(alternative.terms[name] for alternative in found),
            max(alternative.terms[name] for alternative in found),
        )
        for name in found[0].terms
    }
    return Rejected(reason, len(found), ranges, tuple(found[:SHOWN_MAX]))


def _one_only(kind: KindId) -> bool:
    return kind not in (KindId.EVICT, KindId.PREEMPT)


# ---------------------------------------------------------------- by kind of decision


def _tier(number: int) -> str:
    if number < 0:
        return "recompute"
    return Tier(number).name.lower() if number in Tier._value2member_map_ else f"tier {number}"


def _never(row: Row, choice: Any, inputs: Any) -> bool:
    return False


def _unnamed(row: Row, inputs: Any) -> str:
    return "alternative"


def _routed(row: Row, choice: RouteChoice, inputs: RouteInputs) -> bool:
    worker = inputs.workers[row["candidate"]]
    return (worker, row["tier"], row["tokens"], row["reason"]) == (
        choice.worker,
        choice.tier,
        choice.tokens,
        0,
    )


def _route(row: Row, inputs: RouteInputs) -> str:
    worker = inputs.workers[row["candidate"]]
    return f"{worker} from {_tier(row['tier'])}"


def _admitted(row: Row, choice: AdmitChoice, inputs: Any) -> bool:
    return row["outcome"] == choice.outcome


def _admit(row: Row, inputs: Any) -> str:
    return AdmitOutcome(row["outcome"]).name.lower()


def _evicted(row: Row, choice: Any, inputs: Any) -> bool:
    return row["reason"] == EvictReason.CHOSEN


def _evict(row: Row, inputs: Any) -> str:
    return f"node {row['entry']}"


def _restored(row: Row, choice: RestoreChoice, inputs: Any) -> bool:
    return (row["tier"], row["tokens"], row["reason"]) == (choice.tier, choice.tokens, 0)


def _restore(row: Row, inputs: Any) -> str:
    return _tier(row["tier"])


def _captured(row: Row, choice: CheckpointChoice, inputs: Any) -> bool:
    return bool(row["capture"]) == choice.capture


def _capture(row: Row, inputs: Any) -> str:
    return "capture" if row["capture"] else "skip"


def _kept(row: Row, choice: KeepChoice, inputs: Any) -> bool:
    return bool(row["keep"]) == choice.keep


def _keep(row: Row, inputs: Any) -> str:
    return "keep" if row["keep"] else "let go"


def _preempted(row: Row, choice: Any, inputs: Any) -> bool:
    return row["reason"] == PreemptReason.ELIGIBLE


def _preempt(row: Row, inputs: Any) -> str:
    return f"stream {row['stream']}"


_READERS: dict[KindId, tuple[Callable[[Row, Any, Any], bool], Callable[[Row, Any], str]]] = {
    KindId.ROUTE: (_routed, _route),
    KindId.ADMIT: (_admitted, _admit),
    KindId.EVICT: (_evicted, _evict),
    KindId.RESTORE: (_restored, _restore),
    KindId.RESUME: (_restored, _restore),
    KindId.CHECKPOINT: (_captured, _capture),
    KindId.KEEP: (_kept, _keep),
    KindId.PREEMPT: (_preempted, _preempt),
}
