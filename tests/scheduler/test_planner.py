"""The iteration planner: bounds, order, lanes, starvation, and the flight recorder's replay."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetrail.catalog.errors import BadInputError
from pagetrail.controlplane.scheduler import (
    EMPTY,
    Budgets,
    FlightRecorder,
    Phase,
    Plan,
    Selected,
    Work,
    check_budgets,
    lanes_after,
    plan,
    replay_flight,
)

BUDGETS = Budgets(rows=64, sequences=4, prefill_tile=32, prefill_rows_min=16, parked_steps_max=8)


def decode(stream: int, **changes: int) -> Work:
    return work(stream, Phase.DECODE, 1, **changes)


def prefill(stream: int, rows: int, **changes: int) -> Work:
    return work(stream, Phase.PREFILL, rows, **changes)


def work(stream: int, phase: Phase, rows: int, **changes: int) -> Work:
    given = {"priority": 0, "deadline_us": 0, "arrival_us": stream, "parked_steps": 0} | changes
    ready = bool(given.pop("ready", 1))
    return Work(stream=stream, phase=phase, rows=rows, ready=ready, **given)


def rows_of(step: Plan) -> dict[int, int]:
    return {item.stream: item.rows for item in step.selected}


def test_nothing_to_run_gives_an_empty_plan() -> None:
    assert plan([], (0, 0, 0, 0), BUDGETS) == EMPTY


def test_decode_and_prefill_share_a_step_and_a_tile_bounds_the_prompt() -> None:
    step = plan([prefill(1, 500), decode(2), decode(3)], (0,) * 4, BUDGETS)
    assert rows_of(step) == {1: 32, 2: 1, 3: 1}
    assert step.rows == 34


def test_a_full_house_of_decodes_leaves_a_sequence_and_rows_to_prefill() -> None:
    step = plan([decode(n) for n in range(1, 6)] + [prefill(9, 500)], (0,) * 4, BUDGETS)
    assert rows_of(step) == {1: 1, 2: 1, 3: 1, 9: 32}
    assert step.no_sequence == (4, 5)


def test_the_only_sequence_is_not_kept_from_decode() -> None:
    one = Budgets(rows=64, sequences=1, prefill_tile=32, prefill_rows_min=16, parked_steps_max=8)
    assert rows_of(plan([prefill(1, 10), decode(2)], (0,), one)) == {2: 1}


def test_a_blocked_stream_is_passed_over_and_later_ones_are_still_tried() -> None:
    step = plan([decode(1, ready=0), decode(2)], (0,) * 4, BUDGETS)
    assert rows_of(step) == {2: 1}
    assert step.blocked == (1,)


def test_order_within_a_phase_is_priority_then_deadline_then_arrival_then_stream() -> None:
    one = Budgets(rows=8, sequences=1, prefill_tile=8, prefill_rows_min=0, parked_steps_max=8)
    waiting = [
        prefill(5, 8, arrival_us=1),
        prefill(4, 8, arrival_us=1),
        prefill(3, 8, deadline_us=50),
        prefill(2, 8, deadline_us=40),
        prefill(1, 8, priority=2, arrival_us=99),
    ]
    order = []
    while waiting:
        (chosen,) = plan(waiting, (0,), one).selected
        order.append(chosen.stream)
        waiting = [item for item in waiting if item.stream != chosen.stream]
    assert order == [1, 2, 3, 4, 5]


def test_streams_keep_their_lanes_and_newcomers_fill_the_holes_in_order() -> None:
    step = plan([decode(1), decode(3), decode(7), decode(8)], (9, 3, 0, 1), BUDGETS)
    assert step.selected == (
        Selected(7, 1, 0),
        Selected(3, 1, 1),
        Selected(8, 1, 2),
        Selected(1, 1, 3),
    )
    assert lanes_after(step, 4) == (7, 3, 8, 1)


def test_repair_goes_between_decode_and_prefill() -> None:
    small = Budgets(rows=2, sequences=4, prefill_tile=32, prefill_rows_min=0, parked_steps_max=8)
    step = plan([prefill(1, 9), work(2, Phase.REPAIR, 1), decode(3)], (0,) * 4, small)
    assert rows_of(step) == {3: 1, 2: 1}
    assert step.no_rows == (1,)


def test_no_stream_is_passed_over_for_ever() -> None:
    """Every ready stream runs within parked_steps_max + the number of streams steps."""
    budgets = Budgets(rows=8, sequences=2, prefill_tile=8, prefill_rows_min=4, parked_steps_max=5)
    parked: Counter[int] = Counter()
    lanes: tuple[int, ...] = (0, 0)
    waits: Counter[int] = Counter()
    # Stream 9 has the lowest priority among decodes that never end, 10 among endless prompts.
    streams = [(n, Phase.DECODE, 1, 5) for n in range(1, 9)] + [(9, Phase.DECODE, 1, 0)]
    streams += [(11, Phase.PREFILL, 10_000, 5), (10, Phase.PREFILL, 10_000, 0)]
    for _ in range(400):
        items = [
            work(n, phase, rows, priority=priority, parked_steps=parked[n])
            for n, phase, rows, priority in streams
        ]
        step = plan(items, lanes, budgets)
        lanes = lanes_after(step, 2)
        chosen = {item.stream for item in step.selected}
        for n, *_ in streams:
            parked[n] = 0 if n in chosen else parked[n] + 1
            waits[n] = max(waits[n], parked[n])
    assert max(waits.values()) <= budgets.parked_steps_max + len(streams)


@pytest.mark.parametrize("name", ["rows", "sequences", "prefill_tile", "parked_steps_max"])
def test_budgets_without_room_are_refused_by_name(name: str) -> None:
    values = {field: getattr(BUDGETS, field) for field in Budgets.__struct_fields__} | {name: 0}
    with pytest.raises(BadInputError, match=name):
        check_budgets(Budgets(**values))


def test_more_rows_kept_for_prefill_than_a_step_has_are_refused() -> None:
    with pytest.raises(BadInputError, match="prefill_rows_min must be from 0 to the step's 64"):
        check_budgets(Budgets(64, 4, 32, 65, 8))


WORK = st.builds(
    work,
    stream=st.integers(1, 40),
    phase=st.sampled_from(Phase),
    rows=st.integers(1, 200),
    priority=st.integers(-2, 2),
    deadline_us=st.integers(0, 3),
    arrival_us=st.integers(0, 3),
    parked_steps=st.integers(0, 12),
    ready=st.integers(0, 1),
)


@settings(deadline=None)
@given(
    st.lists(WORK, max_size=20, unique_by=lambda item: item.stream),
    st.builds(
        Budgets,
        rows=st.integers(16, 80),
        sequences=st.integers(1, 8),
        prefill_tile=st.integers(1, 64),
        prefill_rows_min=st.integers(0, 16),
        parked_steps_max=st.integers(1, 8),
    ),
    st.randoms(use_true_random=False),
)
def test_every_plan_keeps_its_bounds_and_accounts_for_every_stream(
    items: list[Work], budgets: Budgets, order: object
) -> None:
    lanes = tuple(item.stream for item in items[: budgets.sequences])
    lanes += (0,) * (budgets.sequences - len(lanes))
    step = plan(items, lanes, budgets)
    by_stream = {item.stream: item for item in items}
    assert sum(item.rows for item in step.selected) == step.rows <= budgets.rows
    assert len({item.lane for item in step.selected}) == len(step.selected) <= budgets.sequences
    for item in step.selected:
        source = by_stream[item.stream]
        assert source.ready
        assert item.rows == source.rows if source.phase == Phase.DECODE else item.rows >= 1
        assert source.phase == Phase.DECODE or item.rows <= min(source.rows, budgets.prefill_tile)
        if item.stream in lanes:
            assert item.lane == lanes.index(item.stream)
    told = [item.stream for item in step.selected]
    told += (*step.blocked, *step.no_sequence, *step.no_rows)
    assert sorted(told) == sorted(by_stream)
    shuffled = list(items)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    assert plan(shuffled, lanes, budgets) == step


def test_a_flight_recording_plans_again_to_the_same_steps_and_keeps_only_the_newest() -> None:
    recorder = FlightRecorder(steps_max=3)
    lanes: tuple[int, ...] = (0,) * 4
    for n in range(5):
        items = [decode(1), prefill(2, 100 + n)]
        step = plan(items, lanes, BUDGETS)
        recorder.record(items, lanes, BUDGETS, step)
        lanes = lanes_after(step, 4)
    replayed = list(replay_flight(recorder.encode()))
    assert [step.number for step, _ in replayed] == [2, 3, 4]
    assert all(equal for _, equal in replayed)


def test_a_recording_that_was_altered_is_told_apart() -> None:
    recorder = FlightRecorder()
    items = [decode(1), decode(2)]
    wrong = plan(items[:1], (0,) * 4, BUDGETS)
    recorder.record(items, (0,) * 4, BUDGETS, wrong)
    assert [equal for _, equal in replay_flight(recorder.encode())] == [False]
