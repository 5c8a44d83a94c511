"""Simulated time: what happens next, and the one source of chance.

Everything that happens is an entry on one timeline, ordered by time and then by the order in which
it was arranged, so a run is a function of its seed. Chance comes from a counter and a digest, not
from a library's generator, and is therefore the same on every Python and platform.
"""

from __future__ import annotations

import hashlib
import heapq
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pagetrail.catalog.errors import InvariantError

EVENTS_MAX = 20_000_000

T = TypeVar("T")
_NUMBERS = struct.Struct(">4Q")


class Draw:
    """Numbers that depend on the seed, the name of the stream, and how many were drawn."""

    def __init__(self, seed: int, name: str) -> None:
        self._prefix = b"pagetrail/sim/2\n%d\n%b\n" % (seed, name.encode())
        self._blocks = 0
        self._left: list[int] = []

    def below(self, bound: int) -> int:
        """A number in ``[0, bound)``."""
        if not self._left:
            self._blocks += 1
            digest = hashlib.sha256(self._prefix + b"%d" % self._blocks).digest()
            self._left = list(_NUMBERS.unpack(digest))
        return self._left.pop() * bound >> 64

    def between(self, low: int, high: int) -> int:
        """A number in ``[low, high]``."""
        return low + self.below(high - low + 1)

    def ppm(self, share: int) -> bool:
        """Whether something of this likelihood happens. What cannot happen draws no number."""
        return share > 0 and self.below(1_000_000) < share

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]


class Timeline:
    """The queue of what is to happen, and the clock."""

    def __init__(self) -> None:
        self.now_us = 0
        self.happened = 0
        self._order = 0
        self._queue: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay_us: int, action: Callable[..., None], *arguments: object) -> None:
        """Arrange an action; a delay of 0 is after everything arranged for now."""
        self._order += 1
        at_us = self.now_us + delay_us if delay_us > 0 else self.now_us
        heapq.heappush(self._queue, (at_us, self._order, action, arguments))

    def run_until(self, end_us: int) -> None:
        """Let everything up to a time happen."""
        queue, pop = self._queue, heapq.heappop
        while queue and queue[0][0] <= end_us:
            self.now_us, _, action, arguments = pop(queue)
            action(*arguments)
            self.happened += 1
            if self.happened > EVENTS_MAX:
                raise InvariantError(f"more than {EVENTS_MAX} events; something repeats for ever")
        self.now_us = max(self.now_us, end_us)
