"""The router machine by plain calls: a test for every row of its table, and for what may not be."""

from __future__ import annotations

import pytest
from cluster_parts import Routed, incoming, make_router, seen

from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.kinds.decision import Decision, Outcome
from pagetrail.catalog.kinds.router import (
    Answer,
    AttemptEnded,
    OfferAnswered,
    RequestClosed,
    RequestOffered,
    WorkerExpired,
    WorkerObserved,
)
from pagetrail.catalog.kinds.worker import FinishReason
from pagetrail.controlplane.cluster.messages import (
    ArmOfferTimeout,
    CancelAttempt,
    Close,
    Ended,
    Offer,
    RouterEffect,
    Verdict,
)
from pagetrail.controlplane.cluster.router import ATTEMPTS_MAX
from pagetrail.controlplane.cluster.router_view import RouterView

CLOSED = FinishReason.ERROR


def offered(effects: list[RouterEffect]) -> list[tuple[str, int]]:
    """(worker, attempt) of the offers among effects."""
    return [(effect.worker, effect.attempt) for effect in effects if isinstance(effect, Offer)]


def ended(number: int, attempt: int, reason: FinishReason = FinishReason.STOP) -> Ended:
    return Ended(number, attempt, reason, cached_tokens=0, resident_tokens=0, ttft_ns=1_000)


def assigned(*workers: WorkerObserved) -> Routed:
    """A router whose request 1 runs at its first choice, worker a."""
    routed = make_router(*workers)
    routed.machine.received(incoming("r"), 10)
    routed.machine.answered(1, 1, Answer.ACCEPTED)
    routed.facts()
    return routed


# ---------------------------------------------------------------- the table


def test_received_and_a_worker_can_take_it_it_is_offered_and_the_timeout_armed() -> None:
    routed = make_router(seen("a", queue_ns=5_000), seen("b"))
    number, effects = routed.machine.received(incoming("r"), 10)
    assert number == 1
    assert offered(effects) == [("b", 1)]
    assert effects[1:] == [ArmOfferTimeout(1, 1)]
    kinds = [type(fact) for fact in routed.facts()]
    assert kinds[-2:] == [Decision, RequestOffered]


def test_received_and_none_can_take_it_now_it_waits_and_is_tried_when_one_reports() -> None:
    routed = make_router(seen("a", free_pages=0))
    _, effects = routed.machine.received(incoming("r"), 10)
    assert effects == []
    assert routed.machine.waiting_requests == 1
    routed.facts()
    assert routed.machine.retry_waiting() == []
    assert routed.facts() == [], "deciding to go on waiting is no news"
    routed.machine.heartbeat(seen("a", 2, free_pages=50))
    assert offered(routed.machine.retry_waiting()) == [("a", 1)]


def test_received_and_none_will_ever_take_it_it_fails() -> None:
    for hopeless in (
        seen("a", context_tokens=4),
        seen("a", fingerprint=bytes(32)),
        seen("a", free_pages=1, total_pages=1),
    ):
        routed = make_router(hopeless)
        _, effects = routed.machine.received(incoming("r"), 10)
        assert effects == [Close(1, Verdict.TOO_LONG, CLOSED)]
        assert routed.machine.open_requests == 0
        assert isinstance(routed.facts()[-1], RequestClosed)


def test_offered_and_accepted_it_is_assigned() -> None:
    routed = make_router(seen("a"))
    routed.machine.received(incoming("r"), 10)
    routed.facts()
    assert routed.machine.answered(1, 1, Answer.ACCEPTED) == []
    assert routed.facts() == [OfferAnswered(1, 1, Answer.ACCEPTED)]
    assert routed.view.bookings[(1, 1)].accepted


def test_offered_and_declined_it_is_routed_again_elsewhere() -> None:
    routed = make_router(seen("a"), seen("b"))
    routed.machine.received(incoming("r"), 10)
    effects = routed.machine.answered(1, 1, Answer.DECLINED)
    assert offered(effects) == [("b", 2)]
    assert set(routed.view.bookings) == {(1, 2)}


def test_offered_and_timed_out_the_attempt_is_cancelled_before_the_next_offer() -> None:
    routed = make_router(seen("a"), seen("b"))
    routed.machine.received(incoming("r"), 10)
    effects = routed.machine.answered(1, 1, Answer.TIMED_OUT)
    assert effects[0] == CancelAttempt(1, 1, "a")
    assert offered(effects) == [("b", 2)]


def test_offered_and_ended_counts_as_assigned_the_answer_was_lost() -> None:
    routed = make_router(seen("a"))
    routed.machine.received(incoming("r"), 10)
    effects = routed.machine.ended(ended(1, 1))
    assert effects == [Close(1, Verdict.COMPLETED, FinishReason.STOP)]


def test_assigned_and_done_it_completes_with_an_outcome() -> None:
    routed = assigned(seen("a"))
    effects = routed.machine.ended(
        Ended(1, 1, FinishReason.LENGTH, cached_tokens=4, resident_tokens=0, ttft_ns=77)
    )
    assert effects == [Close(1, Verdict.COMPLETED, FinishReason.LENGTH)]
    attempt, outcome = routed.facts()
    assert attempt == AttemptEnded(1, 1, True)
    assert isinstance(outcome, Outcome)
    assert outcome.values == (77, 4, 1)
    assert not routed.view.bookings
    assert not routed.view.requests


def test_assigned_and_failed_it_is_routed_again_from_the_boundary_reached() -> None:
    routed = assigned(seen("a"), seen("b"))
    assert routed.machine.progressed(1, 1, 3)
    effects = routed.machine.ended(ended(1, 1, FinishReason.ERROR))
    assert offered(effects) == [("b", 2)]
    assert [effect.generated for effect in effects if isinstance(effect, Offer)] == [3]


def test_assigned_and_the_worker_expired_it_is_routed_again() -> None:
    routed = assigned(seen("a"), seen("b"))
    effects = routed.machine.expired("a", 1)
    assert offered(effects) == [("b", 2)]
    kinds = [type(fact) for fact in routed.facts()]
    assert kinds[:2] == [WorkerExpired, AttemptEnded]


@pytest.mark.parametrize("accepted", [False, True])
def test_cancelled_while_open_it_cancels_the_attempt_and_closes(accepted: bool) -> None:
    routed = make_router(seen("a"))
    routed.machine.received(incoming("r"), 10)
    if accepted:
        routed.machine.answered(1, 1, Answer.ACCEPTED)
    effects = routed.machine.cancelled(1)
    assert effects == [
        CancelAttempt(1, 1, "a"),
        Close(1, Verdict.CANCELLED, FinishReason.CANCELLED),
    ]
    assert not routed.view.bookings
    assert routed.machine.cancelled(1) == []


def test_cancelled_while_it_waits_no_attempt_is_cancelled() -> None:
    routed = make_router(seen("a", free_pages=0))
    routed.machine.received(incoming("r"), 10)
    effects = routed.machine.cancelled(1)
    assert effects == [Close(1, Verdict.CANCELLED, FinishReason.CANCELLED)]


# ---------------------------------------------------------------- what is older changes nothing


def test_a_late_release_of_an_attempt_leaves_the_next_ones_booking() -> None:
    routed = make_router(seen("a"), seen("b"))
    routed.machine.received(incoming("r"), 10)
    routed.machine.answered(1, 1, Answer.TIMED_OUT)
    before = dict(routed.view.bookings)
    routed.facts()
    assert set(before) == {(1, 2)}
    assert routed.machine.ended(ended(1, 1, FinishReason.CANCELLED)) == []
    assert routed.machine.answered(1, 1, Answer.DECLINED) == []
    assert not routed.machine.progressed(1, 1, 9)
    assert routed.view.bookings == before
    assert routed.facts() == []


def test_the_view_releases_only_the_booking_of_the_attempt_that_ended() -> None:
    routed = make_router(seen("a"), seen("b"))
    routed.machine.received(incoming("r"), 10)
    routed.machine.answered(1, 1, Answer.TIMED_OUT)
    before = dict(routed.view.bookings)
    routed.view.apply(AttemptEnded(1, 1, False))
    routed.view.apply(OfferAnswered(1, 1, Answer.DECLINED))
    assert routed.view.bookings == before


def test_a_second_answer_changes_nothing() -> None:
    routed = assigned(seen("a"), seen("b"))
    assert routed.machine.answered(1, 1, Answer.DECLINED) == []
    assert routed.machine.answered(1, 1, Answer.TIMED_OUT) == []
    assert routed.facts() == []


def test_reports_count_only_when_they_are_newer_and_an_older_epoch_never_does() -> None:
    routed = make_router(seen("a", 5))
    assert not routed.machine.heartbeat(seen("a", 5))
    assert not routed.machine.heartbeat(seen("a", 4, free_pages=1))
    assert routed.machine.heartbeat(seen("a", 0, worker_epoch=2))
    assert not routed.machine.heartbeat(seen("a", 99, worker_epoch=1))
    routed.machine.received(incoming("r"), 10)
    assert routed.view.workers["a"].worker_epoch == 2
    with pytest.raises(InvariantError, match="not newer"):
        routed.view.apply(seen("a", 99))


def test_an_expiry_armed_for_an_older_epoch_leaves_the_new_one_alone() -> None:
    routed = make_router(seen("a"), seen("b", queue_ns=900_000))
    routed.machine.heartbeat(seen("a", 0, worker_epoch=2))
    routed.machine.received(incoming("r"), 10)
    routed.facts()
    assert routed.machine.expired("a", 1) == []
    assert routed.view.workers["a"].worker_epoch == 2
    assert routed.facts() == []


def test_what_ran_in_the_epoch_before_a_restart_goes_elsewhere_when_that_epoch_expires() -> None:
    routed = assigned(seen("a"), seen("b"))
    routed.machine.heartbeat(seen("a", 0, worker_epoch=2))
    effects = routed.machine.expired("a", 1)
    assert len(offered(effects)) == 1
    assert AttemptEnded(1, 1, False) in routed.facts()


# ---------------------------------------------------------------- rounds and bounds


def test_a_worker_that_declined_is_passed_over_until_all_have_had_their_turn() -> None:
    routed = make_router(seen("a"), seen("b", queue_ns=1_000), seen("c", queue_ns=2_000))
    _, effects = routed.machine.received(incoming("r"), 10)
    turns = offered(effects)
    for attempt in range(1, 4):
        turns += offered(routed.machine.answered(1, attempt, Answer.DECLINED))
    assert turns == [("a", 1), ("b", 2), ("c", 3), ("a", 4)]


def test_a_worker_too_small_for_it_does_not_keep_a_declined_request_waiting_for_ever() -> None:
    routed = make_router(seen("large"), seen("small", free_pages=2, total_pages=2))
    _, effects = routed.machine.received(incoming("r", 40), 10)
    assert offered(effects) == [("large", 1)]
    assert offered(routed.machine.answered(1, 1, Answer.DECLINED)) == [("large", 2)]


def test_a_request_that_came_before_any_worker_fails_when_none_that_comes_can_ever_take_it() -> (
    None
):
    routed = make_router()
    assert routed.machine.received(incoming("r", 40), 10)[1] == []
    routed.machine.heartbeat(seen("a", context_tokens=8))
    assert routed.machine.retry_waiting() == [Close(1, Verdict.TOO_LONG, CLOSED)]


def test_after_the_last_attempt_the_request_fails() -> None:
    routed = make_router(seen("a"), seen("b"))
    _, effects = routed.machine.received(incoming("r"), 10)
    for attempt in range(1, ATTEMPTS_MAX + 1):
        assert len(offered(effects)) == 1, attempt
        effects = routed.machine.answered(1, attempt, Answer.DECLINED)
    assert effects == [Close(1, Verdict.FAILED, CLOSED)]
    assert routed.machine.open_requests == 0
    assert not routed.view.bookings


def test_a_workers_new_epoch_may_be_offered_what_its_old_one_declined() -> None:
    routed = make_router(seen("a"), seen("b", free_pages=0))
    routed.machine.received(incoming("r"), 10)
    assert routed.machine.answered(1, 1, Answer.DECLINED) == []
    routed.machine.heartbeat(seen("a", 0, worker_epoch=2))
    assert offered(routed.machine.retry_waiting()) == [("a", 2)]


def test_waiting_requests_are_tried_in_order_of_arrival() -> None:
    routed = make_router(seen("a", free_pages=0))
    for name in ("one", "two", "three"):
        routed.machine.received(incoming(name), 10)
    routed.machine.heartbeat(seen("a", 2, free_pages=4))
    effects = routed.machine.retry_waiting()
    assert [effect.number for effect in effects if isinstance(effect, Offer)] == [1, 2]
    assert routed.machine.waiting_requests == 1


# ---------------------------------------------------------------- bookings and observations


def test_what_is_booked_counts_until_the_worker_itself_shows_it() -> None:
    routed = make_router(seen("a", free_pages=5))
    routed.machine.received(incoming("one", 8), 10)
    routed.machine.received(incoming("two", 8), 10)
    _, effects = routed.machine.received(incoming("three", 8), 10)
    assert effects == [], "five pages, two booked twice"
    routed.machine.answered(1, 1, Answer.ACCEPTED)
    routed.machine.heartbeat(seen("a", 2, free_pages=4))
    assert offered(routed.machine.retry_waiting()) == [("a", 1)]
    assert (1, 1) not in routed.view.bookings, "accepted, and shown by the report"
    assert (2, 1) in routed.view.bookings, "not answered yet"


def test_an_observation_is_recorded_by_the_first_decision_that_uses_it() -> None:
    routed = make_router(seen("a"), seen("b"))
    routed.machine.received(incoming("one"), 10)
    first = [fact for fact in routed.facts() if isinstance(fact, WorkerObserved)]
    routed.machine.heartbeat(seen("a", 2))
    routed.machine.heartbeat(seen("b", 2, queue_ns=7))
    routed.machine.received(incoming("two"), 20)
    second = [fact for fact in routed.facts() if isinstance(fact, WorkerObserved)]
    assert [(fact.worker, fact.observation) for fact in first] == [("a", 1), ("b", 1)]
    assert [(fact.worker, fact.observation) for fact in second] == [("b", 2)]


def test_a_views_canonical_form_reads_back_and_is_equal_for_equal_views() -> None:
    routed = assigned(seen("a"), seen("b"))
    routed.machine.received(incoming("two"), 20)
    state = routed.view.encode()
    again = RouterView.decode(routed.view.start, state)
    assert again.encode() == state
    command = AttemptEnded(1, 1, True)
    again.apply(command)
    routed.view.apply(command)
    assert again.encode() == routed.view.encode()
