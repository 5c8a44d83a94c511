"""Clocks of simulated machines: the time of the timeline, off by as much as a fault has made it."""

from __future__ import annotations

from dataclasses import dataclass

from .timeline import Timeline

EPOCH_US = 1_700_000_000_000_000  # what a true clock shows when a run begins


@dataclass(slots=True)
class SimClock:
    """A machine's wall clock; also the writer's ``Clock``. It may step back."""

    timeline: Timeline
    off_us: int = 0
    name: str = "wall"

    def now_us(self) -> int:
        """Microseconds since the epoch, as this machine believes."""
        return EPOCH_US + self.timeline.now_us + self.off_us
