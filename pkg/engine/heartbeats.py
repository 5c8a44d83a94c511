"""What a worker tells its gateway now and then: what it has free, runs and keeps.

Owns the pace and the count of kept and cut prompts, of which a heartbeat says what changed. Sends
nothing, and reads no clock: the engine thread asks whether one is due.
"""

from __future__ import annotations

from pagetrail.controlplane.cluster import wire
from pagetrail.controlplane.cluster.worker import WorkerMachine


class Heartbeats:
    """The heartbeats of one worker; the first names everything that is kept."""

    def __init__(self, machine: WorkerMachine, every_ns: int) -> None:
        self._machine, self._every_ns = machine, every_ns
        self._last_ns = 0
        self._events = 0
        self._whole = True

    def begin_anew(self) -> None:
        """The listener lost count: the next one is due at once and names everything."""
        self._whole = True
        self._last_ns = 0

    def due(self, now_ns: int) -> bool:
        """Whether a heartbeat is to be sent; if so the next is due an interval later."""
        if now_ns - self._last_ns < self._every_ns:
            return False
        self._last_ns = now_ns
        return True

    def beat(self, position: int, settled: bool) -> wire.Beat:
        """The heartbeat now. ``position`` is that of the worker's replica of the log."""
        whole, self._whole = self._whole, False
        came, gone = self._machine.prefix.take_changes()
        if whole:
            came, gone = list(self._machine.prefix.digests()), []
        self._events += len(came) + len(gone)
        return wire.Beat(
            seen=self._machine.observe(),
            running=tuple(sorted(self._machine.running_attempts())),
            events=self._events,
            kept=tuple(came),
            cut=tuple(gone),
            whole=whole,
            position=position,
            settled=settled,
        )
