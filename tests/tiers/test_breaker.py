"""The circuit breaker's table, row by row (case 20)."""

from __future__ import annotations

from pagetrail.controlplane.tiers.breaker import Breaker, BreakerState

MAX, COOL = 3, 1_000
CLOSED = Breaker(failures_max=MAX, cool_down_ns=COOL)


def opened(at_ns: int = 0) -> Breaker:
    breaker = CLOSED
    for _ in range(MAX):
        breaker = breaker.failed(at_ns)
    return breaker


def test_fewer_failures_than_the_limit_leave_it_closed() -> None:
    breaker = CLOSED.failed(1).failed(2)
    assert breaker.state is BreakerState.CLOSED
    assert breaker.ask(3) == (breaker, True)


def test_a_success_starts_the_count_again() -> None:
    breaker = CLOSED.failed(1).failed(2).succeeded().failed(3).failed(4)
    assert breaker.state is BreakerState.CLOSED


def test_three_failures_open_it_and_nothing_passes_before_the_cool_down() -> None:
    breaker = opened(at_ns=50)
    assert breaker.state is BreakerState.OPEN
    assert breaker.ask(50 + COOL - 1) == (breaker, False)


def test_after_the_cool_down_one_probe_passes_and_its_success_closes() -> None:
    probing, allowed = opened(at_ns=50).ask(50 + COOL)
    assert allowed
    assert probing.state is BreakerState.PROBING
    assert probing.ask(50 + 10 * COOL) == (probing, False)
    assert probing.succeeded().state is BreakerState.CLOSED


def test_a_failed_probe_opens_it_for_another_cool_down() -> None:
    probing, _ = opened(at_ns=0).ask(COOL)
    again = probing.failed(COOL + 7)
    assert again.state is BreakerState.OPEN
    assert again.ask(2 * COOL + 6)[1] is False
    assert again.ask(2 * COOL + 7)[1] is True


def test_answers_of_operations_from_before_it_opened_change_nothing() -> None:
    breaker = opened(at_ns=9)
    assert breaker.succeeded() == breaker
    assert breaker.failed(500) == breaker


def test_after_a_closed_probe_it_takes_all_failures_again_to_open() -> None:
    closed = opened().ask(COOL)[0].succeeded()
    assert closed.failed(1).failed(2).state is BreakerState.CLOSED
    assert closed.failed(1).failed(2).failed(3).state is BreakerState.OPEN
