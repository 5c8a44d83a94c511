"""Who gives pages up, and whether to RAM or to recomputation."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from policy_inputs import MS, column, drawn_inputs, evaluate

from pagetrail.controlplane.policy.inputs import (
    PreemptCandidate,
    PreemptChoice,
    PreemptInputs,
    PreemptReason,
)

NAME = "preempt/min-cost@1"


def stream(number: int, **changes: Any) -> PreemptCandidate:
    values: dict[str, Any] = {
        "stream": number,
        "priority": 0,
        "arrival_us": 0,
        "pages": (4,),
        "rows": 64,
        "swap_ns": 5 * MS,
        "recompute_ns": 9 * MS,
    }
    return PreemptCandidate(**{**values, **changes})


def preempt(
    *candidates: PreemptCandidate, need: int = 1, priority: int = 0, room: int = 1_000
) -> PreemptInputs:
    return PreemptInputs((need,), priority, room, (10,), candidates)


def test_the_cheapest_stream_goes_and_by_the_cheaper_way() -> None:
    answer = evaluate(NAME, preempt(stream(1), stream(2, swap_ns=8 * MS, recompute_ns=3 * MS)))
    assert answer.choice == PreemptChoice(((2, False),))
    assert (answer.reason, answer.tie_break) == (PreemptReason.CHEAPEST, 0)
    assert column(NAME, answer, "cost_ns") == (5 * MS, 3 * MS)
    assert column(NAME, answer, "reason") == (PreemptReason.NOT_NEEDED, PreemptReason.ELIGIBLE)


def test_at_equal_cost_the_youngest_goes_and_swapping_beats_recomputing() -> None:
    young = stream(1, arrival_us=7, recompute_ns=5 * MS)
    answer = evaluate(NAME, preempt(young, stream(2, recompute_ns=5 * MS)))
    assert (answer.choice.victims, answer.tie_break) == (((1, True),), 1)
    same_time = evaluate(NAME, preempt(stream(1), stream(2)))
    assert (same_time.choice.victims, same_time.tie_break) == (((2, True),), 2)


def test_a_stream_is_recomputed_when_the_room_for_swapped_pages_is_gone() -> None:
    answer = evaluate(NAME, preempt(stream(1), stream(2), need=8, room=79))
    assert answer.choice.victims == ((2, True), (1, False))
    assert evaluate(NAME, preempt(stream(1), stream(2), need=8, room=80)).choice.victims == (
        (2, True),
        (1, True),
    )


def test_no_stream_of_higher_priority_is_preempted() -> None:
    answer = evaluate(NAME, preempt(stream(1, priority=2), stream(2, priority=1), priority=1))
    assert answer.choice.victims == ((2, True),)
    assert column(NAME, answer, "reason")[0] == PreemptReason.HIGHER_PRIORITY


def test_a_plan_that_cannot_reach_the_need_preempts_nobody() -> None:
    answer = evaluate(NAME, preempt(stream(1), need=5))
    assert (answer.choice.victims, answer.reason) == ((), PreemptReason.SHORTFALL)
    assert column(NAME, answer, "reason") == (PreemptReason.SHORTFALL,)


def test_a_small_victim_that_a_later_one_makes_superfluous_is_left_out() -> None:
    small = stream(1, pages=(1,), swap_ns=1, recompute_ns=1)
    answer = evaluate(NAME, preempt(small, stream(2), need=4))
    assert answer.choice.victims == ((2, True),)
    assert column(NAME, answer, "reason") == (PreemptReason.NOT_NEEDED, PreemptReason.ELIGIBLE)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_plan_reaches_the_need_with_no_superfluous_victim_or_no_plan_could(seed: int) -> None:
    inputs = drawn_inputs("PREEMPT", seed)
    assert isinstance(inputs, PreemptInputs)
    answer = evaluate(NAME, inputs)
    eligible = [c for c in inputs.candidates if c.priority <= inputs.priority]
    victims = [number for number, _ in answer.choice.victims]

    def reaches(numbers: tuple[int, ...] | list[int]) -> bool:
        freed = [
            sum(c.pages[group] for c in eligible if c.stream in numbers)
            for group in range(len(inputs.need))
        ]
        return all(pages >= need for pages, need in zip(freed, inputs.need, strict=True))

    assert set(victims) <= {c.stream for c in eligible}
    assert (answer.reason == PreemptReason.CHEAPEST) == reaches([c.stream for c in eligible])
    if answer.reason == PreemptReason.CHEAPEST:
        assert reaches(victims)
        fewer = chain.from_iterable(combinations(victims, n) for n in range(len(victims)))
        assert not any(reaches(some) for some in fewer)
    swapped = {number for number, swap in answer.choice.victims if swap}
    moved = sum(sum(c.pages) << 20 for c in eligible if c.stream in swapped)
    assert moved <= inputs.swap_bytes_free
