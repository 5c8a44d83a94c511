"""A circuit breaker for one tier, as a table. Pure: times are arguments.

Theory of operation. CLOSED lets every operation through and counts failures in a row; the
``failures_max``-th opens it. OPEN lets nothing through until the cool-down has passed; then one
operation is let through as a probe and everything else still waits. The probe's success closes the
breaker, its failure opens it for another cool-down.

    state    event                    next
    CLOSED   failed, fewer than max   CLOSED
    CLOSED   failed, the max-th       OPEN
    CLOSED   succeeded                CLOSED (the count starts again)
    OPEN     asked before the time    OPEN, refused
    OPEN     asked at or after        PROBING, let through
    PROBING  asked                    PROBING, refused
    PROBING  succeeded                CLOSED
    PROBING  failed                   OPEN
    OPEN     succeeded or failed      OPEN (an operation from before it opened)
"""

from __future__ import annotations

from enum import IntEnum

import msgspec


class BreakerState(IntEnum):
    """See the module."""

    CLOSED = 0
    OPEN = 1
    PROBING = 2


class Breaker(msgspec.Struct, frozen=True):
    """The breaker as a value; every event gives the next one."""

    failures_max: int = 3
    cool_down_ns: int = 5_000_000_000
    state: BreakerState = BreakerState.CLOSED
    failures: int = 0
    opened_ns: int = 0

    def ask(self, now_ns: int) -> tuple[Breaker, bool]:
        """May an operation start now?"""
        if self.state is BreakerState.CLOSED:
            return self, True
        due = now_ns >= self.opened_ns + self.cool_down_ns
        if self.state is BreakerState.OPEN and due:
            return msgspec.structs.replace(self, state=BreakerState.PROBING), True
        return self, False

    def succeeded(self) -> Breaker:
        """An operation that was let through succeeded."""
        if self.state is BreakerState.OPEN:
            return self
        return msgspec.structs.replace(self, state=BreakerState.CLOSED, failures=0)

    def failed(self, now_ns: int) -> Breaker:
        """An operation that was let through failed."""
        if self.state is BreakerState.OPEN:
            return self
        failures = self.failures + 1
        if self.state is BreakerState.PROBING or failures >= self.failures_max:
            return msgspec.structs.replace(
                self, state=BreakerState.OPEN, failures=0, opened_ns=now_ns
            )
        return msgspec.structs.replace(self, failures=failures)
