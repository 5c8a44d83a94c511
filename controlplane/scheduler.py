"""The iteration planner: which rows of which streams the next step computes. Pure.

``plan(work, lanes, budgets)`` looks at every stream that could run and fills one step. Decode
comes first, then repair, then prefill; within a phase -priority, deadline, arrival, stream number
decide, which is a total order. Decode takes one row (and its drafts), prefill and repair take
``min(budget left, rows left, tile)``. When prefill waits, ``prefill_rows_min`` rows and one
sequence are kept for it, so a full house of decodes cannot starve it; streams that were passed
over for ``parked_steps_max`` steps go to the front of their phase, longest wait first whatever
their priority, so no stream starves another. A stream that cannot run is passed over and the next
is tried.

Lanes are row ranges of the step: a stream keeps its lane as long as it is selected; holes are
filled in order. Plans are no facts; ``FlightRecorder`` keeps the newest ones, with their inputs,
and can run them again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import IntEnum

import msgspec

from pagetrail.catalog.errors import BadInputError

FLIGHT_STEPS_MAX = 4_096
NO_DEADLINE = 2**63 - 1


class Phase(IntEnum):
    """What a stream's next rows are; smaller goes first."""

    DECODE = 0
    REPAIR = 1  # no producer by default; a seam for approximate reuse with a quality contract
    PREFILL = 2


class Deferred(IntEnum):
    """Why a stream is not in the plan."""

    BLOCKED = 0
    NO_SEQUENCE = 1
    NO_ROWS = 2


class Work(msgspec.Struct, frozen=True, array_like=True):
    """One stream as the planner sees it."""

    stream: int
    phase: int
    rows: int  # decode: 1 and its drafts; else rows still to compute
    priority: int
    deadline_us: int  # 0 none
    arrival_us: int
    ready: bool  # every page event it needs has completed
    parked_steps: int  # steps in a row that it was ready and passed over


class Budgets(msgspec.Struct, frozen=True, array_like=True):
    """The bounds of one step."""

    rows: int
    sequences: int
    prefill_tile: int  # most rows of one prompt in a step
    prefill_rows_min: int  # kept for prefill when some waits
    parked_steps_max: int


class Selected(msgspec.Struct, frozen=True, array_like=True):
    """Rows of one stream in the step."""

    stream: int
    rows: int
    lane: int


class Plan(msgspec.Struct, frozen=True, array_like=True):
    """One step: ``selected`` by lane, ``deferred`` by stream."""

    selected: tuple[Selected, ...]
    deferred: tuple[tuple[int, int], ...]  # (stream, Deferred)
    rows: int


EMPTY = Plan((), (), 0)


def check_budgets(budgets: Budgets) -> Budgets:
    """The budgets, or BadInputError naming the bound that cannot work."""
    for name in ("rows", "sequences", "prefill_tile", "parked_steps_max"):
        if getattr(budgets, name) < 1:
            raise BadInputError(f"{name} must be at least 1, not {getattr(budgets, name)}")
    if not 0 <= budgets.prefill_rows_min <= budgets.rows:
        raise BadInputError(
            f"prefill_rows_min must be from 0 to the step's {budgets.rows} rows, "
            f"not {budgets.prefill_rows_min}"
        )
    return budgets


def plan(work: Sequence[Work], lanes: Sequence[int], budgets: Budgets) -> Plan:
    """Fill one step.

    ``lanes[i]`` is the stream that had lane ``i`` in the step before (0: none). Inputs are not
    changed; equal inputs give equal plans.
    """
    parked_max = budgets.parked_steps_max
    ordered = sorted(
        work,
        key=lambda item: (
            item.phase,
            -item.parked_steps if item.parked_steps >= parked_max else 0,
            -item.priority,
            item.deadline_us or NO_DEADLINE,
            item.arrival_us,
            item.stream,
        ),
    )
    waits = any(item.ready and item.phase == Phase.PREFILL for item in ordered)
    rows_kept = budgets.prefill_rows_min if waits else 0
    decode_rows = budgets.rows - rows_kept
    # One sequence is kept too, but not the only one.
    decode_sequences = budgets.sequences - (1 if rows_kept and budgets.sequences > 1 else 0)
    rows_left, sequences_left = budgets.rows, budgets.sequences
    chosen: list[tuple[int, int]] = []
    deferred: list[tuple[int, int]] = []
    for item in ordered:
        if not item.ready:
            deferred.append((item.stream, Deferred.BLOCKED))
            continue
        if item.phase == Phase.DECODE:
            if len(chosen) >= decode_sequences:
                deferred.append((item.stream, Deferred.NO_SEQUENCE))
                continue
            rows = item.rows
            if rows > decode_rows - (budgets.rows - rows_left):
                deferred.append((item.stream, Deferred.NO_ROWS))
                continue
        else:
            rows = min(rows_left, item.rows, budgets.prefill_tile)
            if not sequences_left:
                deferred.append((item.stream, Deferred.NO_SEQUENCE))
                continue
            if rows < 1:
                deferred.append((item.stream, Deferred.NO_ROWS))
                continue
        chosen.append((item.stream, rows))
        rows_left -= rows
        sequences_left -= 1
    deferred.sort()
    return Plan(
        _assign_lanes(chosen, lanes, budgets.sequences), tuple(deferred), budgets.rows - rows_left
    )


def _assign_lanes(
    chosen: list[tuple[int, int]], lanes: Sequence[int], sequences: int
) -> tuple[Selected, ...]:
    rows_of = dict(chosen)
    selected: list[Selected] = []
    taken: set[int] = set()
    placed: set[int] = set()
    for lane, stream in enumerate(lanes[:sequences]):
        if stream in rows_of:
            selected.append(Selected(stream, rows_of[stream], lane))
            taken.add(lane)
            placed.add(stream)
    holes = (lane for lane in range(sequences) if lane not in taken)
    for stream, rows in chosen:
        if stream not in placed:
            selected.append(Selected(stream, rows, next(holes)))
    selected.sort(key=lambda item: item.lane)
    return tuple(selected)


def lanes_after(step: Plan, sequences: int) -> tuple[int, ...]:
    """The lanes as the next step finds them."""
    lanes = [0] * sequences
    for item in step.selected:
        lanes[item.lane] = item.stream
    return tuple(lanes)


class FlightStep(msgspec.Struct, frozen=True, array_like=True):
    """A step with everything it was planned from."""

    number: int
    work: tuple[Work, ...]
    lanes: tuple[int, ...]
    budgets: Budgets
    plan: Plan


class FlightRecorder:
    """The newest steps of a worker, in memory. Bounded; the oldest falls out."""

    def __init__(self, steps_max: int = FLIGHT_STEPS_MAX) -> None:
        self._steps: deque[FlightStep] = deque(maxlen=steps_max)
        self._number = 0

    def record(
        self, work: Sequence[Work], lanes: Sequence[int], budgets: Budgets, step: Plan
    ) -> None:
        """Add a step."""
        self._steps.append(FlightStep(self._number, tuple(work), tuple(lanes), budgets, step))
        self._number += 1

    def encode(self) -> bytes:
        """All kept steps, for a file."""
        return msgspec.msgpack.encode(list(self._steps))


def replay_flight(encoded: bytes) -> Iterable[tuple[FlightStep, bool]]:
    """The steps of a recording, each with whether planning it again gives the same plan."""
    for step in msgspec.msgpack.decode(encoded, type=list[FlightStep]):
        yield step, plan(step.work, step.lanes, step.budgets) == step.plan
