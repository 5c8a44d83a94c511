"""Who starts, who waits, who is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_inputs import MS, admit_inputs, column, drawn_inputs, evaluate

from pagetrail.controlplane.policy.inputs import (
    AdmitChoice,
    AdmitInputs,
    AdmitOutcome,
    AdmitReason,
)

NAME = "admission/reserve@1"


def test_a_request_larger_than_the_pool_is_refused_at_once_and_the_small_one_runs() -> None:
    pool: dict[str, Any] = {"available": (10,), "total": (10,)}
    large = evaluate(NAME, admit_inputs(need=(20,), **pool))
    assert (large.choice.outcome, large.reason) == (AdmitOutcome.REFUSE, AdmitReason.NEVER_FITS)
    small = evaluate(NAME, admit_inputs(need=(2,), **pool))
    assert small.choice == AdmitChoice(AdmitOutcome.ADMIT, (2,), (0,))
    assert small.reason == AdmitReason.FITS


def test_a_fifth_stream_waits_while_four_hold_88_of_100_pages() -> None:
    answer = evaluate(NAME, admit_inputs(need=(25,), available=(12,), running=4))
    assert (answer.choice.outcome, answer.reason) == (AdmitOutcome.QUEUE, AdmitReason.NO_PAGES)
    assert answer.choice == AdmitChoice(AdmitOutcome.QUEUE, (0,), (0,))
    assert column(NAME, answer, "short_pages") == (13, 0, 0)


def test_what_is_adopted_is_not_promised_and_what_lacks_is_reclaimed() -> None:
    inputs = admit_inputs(
        need=(13, 6), adopted=(3, 0), available=(7, 9), reclaimable=(3, 0), total=(20, 20)
    )
    answer = evaluate(NAME, inputs)
    assert answer.choice == AdmitChoice(AdmitOutcome.ADMIT, (10, 6), (3, 0))
    assert answer.reason == AdmitReason.FITS_AFTER_RECLAIM
    assert column(NAME, answer, "promise_pages") == (16, 0, 0)
    assert column(NAME, answer, "reclaim_pages") == (3, 0, 0)


@pytest.mark.parametrize(
    ("changes", "outcome", "reason"),
    [
        ({"compatible": False, "need": (200,)}, AdmitOutcome.REFUSE, AdmitReason.INCOMPATIBLE),
        ({"context_tokens": 127, "running": 8}, AdmitOutcome.REFUSE, AdmitReason.CONTEXT_EXCEEDED),
        ({"context_tokens": 128}, AdmitOutcome.ADMIT, AdmitReason.FITS),
        ({"need": (101,), "running": 8}, AdmitOutcome.REFUSE, AdmitReason.NEVER_FITS),
        ({"need": (100,)}, AdmitOutcome.ADMIT, AdmitReason.FITS),
        ({"running": 8}, AdmitOutcome.QUEUE, AdmitReason.NO_LANE),
        ({"running": 7}, AdmitOutcome.ADMIT, AdmitReason.FITS),
        ({"waiting_ahead": 2, "bypassed": 16}, AdmitOutcome.QUEUE, AdmitReason.BEHIND_WAITING),
        ({"waiting_ahead": 2, "bypassed": 15}, AdmitOutcome.ADMIT, AdmitReason.FITS),
        ({"waiting_ahead": 0, "bypassed": 99}, AdmitOutcome.ADMIT, AdmitReason.FITS),
        ({"available": (7,), "reclaimable": (0,)}, AdmitOutcome.QUEUE, AdmitReason.NO_PAGES),
        (
            {"available": (7,), "reclaimable": (1,)},
            AdmitOutcome.ADMIT,
            AdmitReason.FITS_AFTER_RECLAIM,
        ),
    ],
)
def test_the_first_constraint_that_applies_decides(
    changes: dict[str, Any], outcome: AdmitOutcome, reason: AdmitReason
) -> None:
    answer = evaluate(NAME, admit_inputs(**changes))
    assert (answer.choice.outcome, answer.reason) == (outcome, reason)
    assert column(NAME, answer, "reason") == (reason,) * 3


def test_a_waiting_request_is_passed_a_bounded_number_of_times() -> None:
    passed = 0
    while (
        evaluate(NAME, admit_inputs(waiting_ahead=1, bypassed=passed), bypass_max=3).choice.outcome
        == AdmitOutcome.ADMIT
    ):
        passed += 1
    assert passed == 3


def test_the_start_cost_is_the_cheaper_of_restoring_and_recomputing() -> None:
    for restore_ns, recompute_ns in [(3 * MS, 9 * MS), (9 * MS, 3 * MS)]:
        answer = evaluate(NAME, admit_inputs(restore_ns=restore_ns, recompute_ns=recompute_ns))
        assert column(NAME, answer, "start_ns") == (3 * MS, 0, 0)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_an_admitted_stream_can_be_given_what_it_is_promised(seed: int) -> None:
    inputs = drawn_inputs("ADMIT", seed)
    assert isinstance(inputs, AdmitInputs)
    answer = evaluate(NAME, inputs)
    if answer.choice.outcome != AdmitOutcome.ADMIT:
        assert not any(answer.choice.promise + answer.choice.reclaim)
        return
    for group, promise in enumerate(answer.choice.promise):
        reclaim = answer.choice.reclaim[group]
        assert promise + inputs.adopted[group] == inputs.need[group]
        assert 0 <= reclaim <= inputs.reclaimable[group]
        assert inputs.available[group] + reclaim >= promise
        assert reclaim == 0 or inputs.available[group] + reclaim == promise
    assert (answer.reason == AdmitReason.FITS_AFTER_RECLAIM) == any(answer.choice.reclaim)
