"""The simulated network: directed links that delay, lose, repeat, reorder and part.

A message is a value and its delivery an entry on the timeline; delays vary, so messages overtake
each other. A cut link loses what is on its way when it would arrive. A node that is down, or
another incarnation than the one addressed, receives nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from .timeline import Draw, Timeline

Handler = Callable[[str, object], None]


class NetworkFaults(msgspec.Struct, frozen=True, kw_only=True):
    """How a link behaves when it is not cut."""

    delay_us_min: int = 200
    delay_us_max: int = 3_000
    lost_ppm: int = 0
    repeated_ppm: int = 0


class Network:
    """Links between named nodes."""

    def __init__(self, timeline: Timeline, draw: Draw, faults: NetworkFaults) -> None:
        self.faults = faults
        self.cut: set[tuple[str, str]] = set()
        self._timeline = timeline
        self._draw = draw
        self._handlers: dict[str, Handler] = {}
        self._silent_since_us: dict[str, int] = {}

    def attach(self, node: str, handler: Handler) -> None:
        """A node is up and hears."""
        self._handlers[node] = handler

    def detach(self, node: str) -> None:
        """A node is down."""
        self._handlers.pop(node, None)

    def silence(self, node: str) -> None:
        """What a node has sent and is still on its way is lost."""
        self._silent_since_us[node] = self._timeline.now_us

    def send(self, sender: str, receiver: str, message: object) -> None:
        """Send a message; it may arrive never, once or twice."""
        faults, draw, timeline = self.faults, self._draw, self._timeline
        if draw.ppm(faults.lost_ppm):
            return
        low, high = faults.delay_us_min, faults.delay_us_max
        sent = (sender, receiver, message, timeline.now_us)
        timeline.after(draw.between(low, high), self._arrive, *sent)
        if draw.ppm(faults.repeated_ppm):
            timeline.after(draw.between(low, high), self._arrive, *sent)

    def _arrive(self, sender: str, receiver: str, message: object, sent_us: int) -> None:
        handler = self._handlers.get(receiver)
        if (
            handler is not None
            and (sender, receiver) not in self.cut
            and sent_us > self._silent_since_us.get(sender, -1)
        ):
            handler(sender, message)
