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
from heapq import nsmallest

import msgspec

from pagetrail.catalog.errors import BadInputError

FLIGHT_STEPS_MAX = 4_096
NO_DEADLINE = 2**63 - 1


class Phase(IntEnum):
    """What a stream's next rows are; smaller goes first."""

    DECODE = 0
    REPAIR = 1  # no producer by default; a seam for approximate reuse with a quality contract
    PREFILL = 2


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
    """One step: ``selected`` by lane, and the streams that are not in it, by reason and number."""

    selected: tuple[Selected, ...]
    blocked: tuple[int, ...]  # a page event is still to come
    no_sequence: tuple[int, ...]  # the step's sequences, or those that decode may have, ran out
    no_rows: tuple[int, ...]  # its rows did
    rows: int


EMPTY = Plan((), (), (), (), 0)


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
    phases: tuple[list[Work], list[Work], list[Work]] = ([], [], [])
    blocked: list[int] = []
    for item in work:
        if item.ready:
            phases[item.phase].append(item)
        else:
            blocked.append(item.stream)
    decodes, repairs, prefills = phases
    rows_kept = budgets.prefill_rows_min if prefills else 0
    # One sequence is kept too, but not the only one.
    sequence_kept = 1 if rows_kept and budgets.sequences > 1 else 0
    rows_left = budgets.rows - rows_kept
    sequences_left = budgets.sequences - sequence_kept
    chosen: list[tuple[int, int]] = []
    no_sequence: list[int] = []
    no_rows: list[int] = []
    for *_, stream, rows in _first(decodes, len(decodes), budgets.parked_steps_max):
        if not sequences_left:
            no_sequence.append(stream)
        elif rows > rows_left:
            no_rows.append(stream)
        else:
            chosen.append((stream, rows))
            rows_left -= rows
            sequences_left -= 1
    rows_left += rows_kept
    sequences_left += sequence_kept
    for items in (repairs, prefills):
        # Each takes a row at least, so no more than these can be chosen.
        most = min(sequences_left, rows_left)
        taken = set()
        for *_, stream, wanted in _first(items, most, budgets.parked_steps_max):
            rows = min(rows_left, wanted, budgets.prefill_tile)
            if not rows:
                break
            chosen.append((stream, rows))
            taken.add(stream)
            rows_left -= rows
            sequences_left -= 1
        rest = no_rows if sequences_left else no_sequence
        rest += [item.stream for item in items if item.stream not in taken]
    return Plan(
        selected=_assign_lanes(chosen, lanes, budgets.sequences),
        blocked=tuple(sorted(blocked)),
        no_sequence=tuple(sorted(no_sequence)),
        no_rows=tuple(sorted(no_rows)),
        rows=budgets.rows - rows_left,
    )


def _first(items: list[Work], count: int, parked_max: int) -> list[tuple[int, ...]]:
    """The first streams of one phase, each ending in its number and rows.

    The number makes the order total. Of thousands that wait only the first few are ordered.
    """
    keys = (
        (
            -item.parked_steps if item.parked_steps >= parked_max else 0,
            -item.priority,
            item.deadline_us or NO_DEADLINE,
            item.arrival_us,
            item.stream,
            item.rows,
        )
        for item in items
    )
    return nsmallest(count, keys) if count < len(items) else sorted(keys)


def _assign_lanes(
    chosen: list[tuple[int, int]], lanes: Sequence[int], sequences: int
) -> tuple[Selected, ...]:
    rows_of = dict(chosen)
    selected: list[Selected] = []
    holes: list[int] = []
    for lane in range(sequences):
        stream = lanes[lane] if lane < len(lanes) else 0
        rows = rows_of.pop(stream, None)
        if rows is None:
            holes.append(lane)
        else:
            selected.append(Selected(stream, rows, lane))
    if rows_of:
        newcomers = [(stream, rows) for stream, rows in chosen if stream in rows_of]
        selected += [
            Selected(stream, rows, lane)
            for lane, (stream, rows) in zip(holes, newcomers, strict=False)
        ]
        selected.sort(key=_lane)
    return tuple(selected)


def _lane(item: Selected) -> int:
    return item.lane


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
