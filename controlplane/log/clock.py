"""The writer's clock, as a seam. Only the writer reads it, once per commit."""

from __future__ import annotations

import time
from typing import Protocol

from pagetrail.catalog.errors import BadInputError


class Clock(Protocol):
    """``name`` is recorded when a writer epoch starts."""

    name: str

    def now_us(self) -> int:
        """Microseconds; may stand still or step back, the log's time never does."""


class WallClock:
    """Microseconds since the Unix epoch."""

    name = "wall"

    def now_us(self) -> int:
        return time.time_ns() // 1_000


class LogicalClock:
    """Always 0, so that ``t_us`` simply counts transactions and equal input gives equal bytes."""

    name = "logical"

    def now_us(self) -> int:
        return 0


def clock_of_name(name: str) -> Clock:
    """``BadInputError`` unless ``name`` is ``wall`` or ``logical``."""
    if name == WallClock.name:
        return WallClock()
    if name == LogicalClock.name:
        return LogicalClock()
    raise BadInputError(f"clock {name!r} is unknown; expected wall or logical")
