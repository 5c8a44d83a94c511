"""What a worker machine remembers of its attempts, and the moves that all its steps share.

Owns the table of live streams, the results of ended attempts, and the rows that wait to be
recorded. The view has everything a policy may read; here is only what carrying out needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from pagetrail.catalog.envelope import Cause
from pagetrail.catalog.kinds.worker import FinishReason, RowsAdvanced, WorkerStarted

from ..lookup import Catalog
from ..pages.index import PrefixIndex
from ..view import WorkerView
from .deciding import Decider
from .messages import Ended, Prompt

FINISHED_MAX = 4_096  # ended attempts that are remembered


class StreamState(IntEnum):
    """Where a stream stands."""

    WAITING = 0
    RESTORING = 1
    RUNNING = 2
    CLOSING = 3
    STOPPING = 4
    PARKING = 5


@dataclass(slots=True)
class Live:
    """A stream that has not ended."""

    stream: int
    number: int
    attempt: int
    tenant: str
    prompt: Prompt
    state: StreamState
    waits_since_us: int
    verdict: int = -1  # the AdmitReason of the standing decision to wait
    cached_tokens: int = 0
    resident_tokens: int = 0
    first_token_ns: int = 0
    admitted: Cause | None = None
    restoring: Cause | None = None
    keeping: Cause | None = None
    checkpointing: Cause | None = None
    preempting: tuple[Cause, int] | None = None  # the decision to park it, and who asked
    finish: FinishReason = FinishReason.STOP
    sample: int = 0
    ran: bool = False  # it has been admitted before
    stuck_at: int = -1  # the count of reliefs when it could not grow
    lease: int = 0  # of its keep to host memory


@dataclass(frozen=True, slots=True)
class PublisherState:
    """What a checkpoint decision must know of the side that stores and publishes."""

    queued: int  # chunks waiting to be stored
    tier_free_bytes: int  # -1 unbounded


class HostMemory(Protocol):
    """Chunks in the worker's own memory, which no catalog knows of."""

    def leading(self, prompt: tuple[bytes, ...], first: int) -> int:
        """How many of a prompt's chunks from place ``first`` on are there without a gap."""


@dataclass(slots=True)
class WorkerState:
    """The state of one worker epoch."""

    decider: Decider
    start: WorkerStarted
    catalog: Catalog
    memory: HostMemory | None
    prefix: PrefixIndex
    live: dict[int, Live] = field(default_factory=dict)
    streams: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    finished: dict[tuple[int, int], Ended] = field(default_factory=dict)
    advanced: dict[int, int] = field(default_factory=dict)
    next_stream: int = 1
    next_lease: int = 1
    evicted_columns: int = 0
    reliefs: int = 0  # events since which a growth that failed may succeed
    wanting: set[int] = field(default_factory=set)  # running streams that wait to grow

    @property
    def view(self) -> WorkerView:
        """The view that decisions read."""
        view: WorkerView = self.decider.view
        return view

    def number_stream(self) -> int:
        """The next stream's number."""
        self.next_stream += 1
        return self.next_stream - 1

    def flush_advanced(self) -> None:
        """Record the rows that were written since the last batch: before any decision."""
        entries = dict(self.view.owner.committed())
        for stream, rows in self.advanced.items():
            entries[stream] = entries.get(stream, 0) + rows
        if entries:
            self.advanced = {}
            self.decider.write([RowsAdvanced(tuple(sorted(entries.items())))])

    def forget(self, live: Live, reason: FinishReason) -> list[Ended]:
        """A stream is gone; the attempt ends with its last one."""
        self.reliefs += 1
        self.wanting.discard(live.stream)
        del self.live[live.stream]
        key = (live.number, live.attempt)
        streams = self.streams[key]
        streams.remove(live.stream)
        if streams:
            return []
        del self.streams[key]
        ended = Ended(*key, reason, live.cached_tokens, live.resident_tokens, live.first_token_ns)
        self.remember(key, ended)
        return [ended]

    def remember(self, key: tuple[int, int], ended: Ended) -> None:
        """How an attempt ended, as long as its messages may still be on their way."""
        self.finished[key] = ended
        if len(self.finished) > FINISHED_MAX:
            del self.finished[next(iter(self.finished))]
