"""What can go wrong in a simulated cluster, and a plan of it drawn from a seed."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from .log import WRITER
from .nodes import ROUTER
from .timeline import Draw

SETTLE_US = 500_000  # nothing breaks before
LASTS_US = (50_000, 2_500_000)


class FaultKind(StrEnum):
    """What can go wrong."""

    CRASH_WORKER = "crash-worker"
    PAUSE_WORKER = "pause-worker"
    POWER_OFF_WORKER = "power-off-worker"
    FILL_SPOOL = "fill-spool"
    CRASH_GATEWAY = "crash-gateway"
    PAUSE_GATEWAY = "pause-gateway"
    CRASH_WRITER = "crash-writer"
    POWER_OFF_WRITER = "power-off-writer"
    TAKE_OVER_WRITER = "take-over-writer"
    TAKE_OVER_WHILE_SYNCING = "take-over-while-syncing"
    BREAK_DISK = "break-disk"
    FILL_DISK = "fill-disk"
    SLOW_DISK = "slow-disk"
    CUT_LINK = "cut-link"
    LOSE_MESSAGES = "lose-messages"
    FAIL_STORES = "fail-stores"
    LATE_STORES = "late-stores"
    PARTIAL_OBJECTS = "partial-objects"
    STALE_OBJECTS = "stale-objects"
    LOSE_OBJECTS = "lose-objects"
    CLOCK_FORWARD = "clock-forward"
    CLOCK_BACK = "clock-back"


OF_A_WORKER = frozenset(
    {
        FaultKind.CRASH_WORKER,
        FaultKind.PAUSE_WORKER,
        FaultKind.POWER_OFF_WORKER,
        FaultKind.FILL_SPOOL,
    }
)
OF_A_CLOCK = frozenset({FaultKind.CLOCK_FORWARD, FaultKind.CLOCK_BACK})
_KINDS = tuple(FaultKind)


class Fault(msgspec.Struct, frozen=True):
    """One fault: when, what, to whom, for how long."""

    at_us: int
    kind: FaultKind
    target: str
    for_us: int


def plan(seed: int, workers: list[str], until_us: int, every_us: int) -> tuple[Fault, ...]:
    """One fault in ``every_us`` on average."""
    draw = Draw(seed, "faults")
    faults = []
    at_us = draw.between(SETTLE_US, every_us + SETTLE_US)
    while at_us < until_us:
        kind = draw.pick(_KINDS)
        target = ""
        if kind in OF_A_WORKER:
            target = draw.pick(workers)
        elif kind in OF_A_CLOCK:
            target = draw.pick((ROUTER, WRITER))
        elif kind is FaultKind.LOSE_OBJECTS and draw.below(2):
            target = draw.pick(workers)
        elif kind is FaultKind.CUT_LINK:
            ends = [draw.pick((*workers, ROUTER)), WRITER]
            if ends[0] != ROUTER and draw.below(2):
                ends[1] = ROUTER
            if draw.below(2):
                ends.reverse()
            target = ">".join(ends)
        faults.append(Fault(at_us, kind, target, draw.between(*LASTS_US)))
        at_us += draw.between(every_us // 2, every_us * 3 // 2)
    return tuple(faults)
