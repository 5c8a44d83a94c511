"""The queue of a worker: which streams wait, in which order, and how often they were passed.

The order is priority (higher first), preempted streams before new ones, deadline, arrival, stream
number: total. Owns no pages and decides nothing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

import msgspec

from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.kinds.worker import RequestQueued

NO_DEADLINE = 2**63 - 1

QueuePlace = tuple[int, int, int, int, int]


class Waiting(msgspec.Struct, array_like=True):
    """A queued request and how often a later one went ahead of it.

    ``preempted``: it has run, and goes on where it stood.
    """

    queued: RequestQueued
    bypassed: int
    preempted: bool = False


class WaitingQueue:
    """The waiting streams of one view."""

    __slots__ = ("_order", "_streams", "tokens")

    def __init__(self) -> None:
        self._streams: dict[int, Waiting] = {}
        self._order: list[QueuePlace] = []
        self.tokens = 0  # prompt tokens of all that wait

    def __contains__(self, stream: int) -> bool:
        return stream in self._streams

    def __len__(self) -> int:
        return len(self._streams)

    def __getitem__(self, stream: int) -> Waiting:
        """Raises InvariantError for a stream that does not wait."""
        waiting = self._streams.get(stream)
        if waiting is None:
            raise InvariantError(f"stream {stream} is not in the queue")
        return waiting

    def put(self, waiting: Waiting) -> None:
        """A stream joins at its place."""
        self._streams[waiting.queued.stream] = waiting
        insort(self._order, _place(waiting))
        self.tokens += waiting.queued.prompt_tokens

    def take(self, stream: int) -> Waiting:
        """A stream leaves without having passed anyone. Raises InvariantError when not there."""
        waiting = self[stream]
        del self._streams[stream]
        del self._order[bisect_left(self._order, _place(waiting))]
        self.tokens -= waiting.queued.prompt_tokens
        return waiting

    def admit(self, stream: int) -> Waiting:
        """A stream leaves to run; those before it have been passed once more."""
        place = self.place(stream)
        for before in self._order[:place]:
            self._streams[before[-1]].bypassed += 1
        return self.take(stream)

    def place(self, stream: int) -> int:
        """How many wait before a stream."""
        return bisect_left(self._order, _place(self[stream]))

    def first(self, most: int) -> list[int]:
        """The first waiting streams in order."""
        return [place[-1] for place in self._order[:most]]

    def by_stream(self) -> Iterator[Waiting]:
        """All of them, by stream number."""
        for stream in sorted(self._streams):
            yield self._streams[stream]


def _place(waiting: Waiting) -> QueuePlace:
    queued = waiting.queued
    return (
        -queued.priority,
        0 if waiting.preempted else 1,
        queued.deadline_us or NO_DEADLINE,
        queued.arrival_us,
        queued.stream,
    )
