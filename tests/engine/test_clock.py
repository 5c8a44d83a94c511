"""A worker's times go on evenly when the machine's wall clock is set."""

from __future__ import annotations

import time

import pytest

from pagetrail.engine.clock import MachineClock


@pytest.mark.parametrize("step_ns", [-3_600_000_000_000, 3_600_000_000_000])
def test_a_wall_clock_that_steps_moves_no_time(
    monkeypatch: pytest.MonkeyPatch, step_ns: int
) -> None:
    clock = MachineClock()
    wall_ns = time.time_ns
    before = clock.now_us()
    assert abs(before - wall_ns() // 1000) < 1_000_000, "it began at the wall clock"
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + step_ns)
    after = clock.now_us()
    assert 0 <= after - before < 60_000_000


def test_durations_and_times_come_from_one_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic_ns()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now)
    clock = MachineClock()
    ns, us = clock.now_ns(), clock.now_us()
    monkeypatch.setattr(time, "monotonic_ns", lambda: now + 5_000_000)
    assert (clock.now_ns() - ns, clock.now_us() - us) == (5_000_000, 5_000)
