"""Where a worker's times come from: the machine's clocks, or a count for deterministic runs."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """A worker's times."""

    def now_us(self) -> int:
        """Microseconds since the epoch, for arrivals and deadlines."""

    def now_ns(self) -> int:
        """Nanoseconds, for durations; never steps back."""


class MachineClock:
    """The machine's monotonic clock, told as time since the epoch by where both stood at the start.

    A wall clock that is set back would make a stream's wait negative, and one that is set forward
    would let its deadline pass at once; both are recorded.
    """

    def __init__(self) -> None:
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    def now_us(self) -> int:
        """Microseconds since the epoch, as the wall clock stood when this began; never less than
        before."""
        return (self._epoch_ns + time.monotonic_ns()) // 1000

    def now_ns(self) -> int:
        """The monotonic clock."""
        return time.monotonic_ns()


class LogicalClock:
    """A clock that only counts how often it was asked; equal runs read equal times."""

    def __init__(self) -> None:
        self._asked = 0

    def now_us(self) -> int:
        """One more than at the last question."""
        self._asked += 1
        return self._asked

    def now_ns(self) -> int:
        """One microsecond more than at the last question."""
        return self.now_us() * 1000
