"""The fold of a worker's commands: its page owner, queue, running streams and calibration.

Owns what the commands change and its canonical form; what evaluators read of it is derived in
view.py. Reads no clock, does no I/O; all quantities are integers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import msgspec

from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.kinds.worker import (
    AdoptionUndone,
    Measured,
    Metric,
    PagesAdopted,
    RequestDropped,
    RequestQueued,
    RouteForked,
    StreamFinished,
    StreamPreempted,
    SwapBegun,
    SwapReleased,
    WorkerStarted,
)

from . import calibration
from .pages.commands import OPERATIONS
from .pages.owner import PageOwner
from .preempting import Preempted
from .quotas import accounts_of
from .waiting import Waiting, WaitingQueue


class ViewState(msgspec.Struct, array_like=True):
    """The canonical form of a view."""

    owner: bytes
    calibration: bytes
    waiting: list[Waiting]
    running: list[RequestQueued]
    preempted: list[tuple[int, Preempted]] = []
    parking: list[int] = []


class WorkerFold:
    """Fold of a worker's commands."""

    def __init__(self, start: WorkerStarted) -> None:
        self.start = start
        self.owner = PageOwner(
            start.pools,
            page_tokens=start.page_tokens,
            verify_rows=start.verify_rows,
            kept_columns_max=start.kept_columns_max,
            kept_nodes_max=start.kept_nodes_max,
            snap_slots=start.snap_slots,
            accounts=1 + len(start.quotas),
        )
        self.accounts = accounts_of(start)
        self.calibration = calibration.configured(start.costs)
        self.waiting = WaitingQueue()
        self.running: dict[int, RequestQueued] = {}
        self.preempted: dict[int, Preempted] = {}  # how far each was that has given way
        self.parking: set[int] = set()  # running streams whose rows go to host memory

    # ---- fold

    def apply(self, command: msgspec.Struct) -> None:
        """Fold one command. Raises InvariantError, with nothing changed, for an illegal one."""
        _APPLY[type(command)](self, command)

    def _queued(self, queued: RequestQueued) -> None:
        if queued.stream in self.waiting or queued.stream in self.running:
            raise InvariantError(f"stream {queued.stream} is known already")
        self.waiting.put(Waiting(queued, 0))

    def _dropped(self, dropped: RequestDropped) -> None:
        self.waiting.take(dropped.stream)
        self.preempted.pop(dropped.stream, None)

    def _adopted(self, adopted: PagesAdopted) -> None:
        account = self.accounts.of(self.waiting[adopted.stream].queued.tenant)
        if adopted.account != account:
            raise InvariantError(
                f"stream {adopted.stream} is charged to account {adopted.account}; its tenant's "
                f"is {account}"
            )
        self.owner.apply(adopted)
        self.running[adopted.stream] = self.waiting.admit(adopted.stream).queued

    def _undone(self, undone: AdoptionUndone) -> None:
        self.owner.apply(undone)
        self._back(undone.stream)

    def _preempted(self, preempted: StreamPreempted) -> None:
        stream = preempted.stream
        if stream not in self.running:
            raise InvariantError(f"stream {stream} does not run; nothing to preempt")
        before = self.preempted.get(stream)
        if before is not None and before.swap_rows:
            raise InvariantError(f"rows of stream {stream} are swapped out still")
        if preempted.swapped and stream not in self.parking:
            raise InvariantError(f"rows of stream {stream} were not on their way to host memory")
        rows = self.owner.rows(stream)
        self.owner.apply(preempted)
        self.parking.discard(stream)
        # One that has not come back to where it stood goes on from there all the same.
        standing = rows if before is None else max(rows, before.rows)
        self.preempted[stream] = Preempted(standing, rows if preempted.swapped else 0)
        self._back(stream)

    def _swap_begun(self, begun: SwapBegun) -> None:
        if begun.stream not in self.running or begun.stream in self.parking:
            raise InvariantError(f"stream {begun.stream} does not run; nothing to swap out")
        self.parking.add(begun.stream)

    def _released(self, released: SwapReleased) -> None:
        standing = self.preempted.get(released.stream)
        if standing is None or not standing.swap_rows:
            raise InvariantError(f"nothing is swapped out of stream {released.stream}")
        self.preempted[released.stream] = Preempted(standing.rows, 0)

    def _back(self, stream: int) -> None:
        """A stream that held a route waits again."""
        self.waiting.put(Waiting(self.running.pop(stream), 0, stream in self.preempted))

    def _forked(self, forked: RouteForked) -> None:
        source = self.running.get(forked.source)
        if source is None:
            raise InvariantError(f"stream {forked.source} does not run; nothing to fork")
        self.owner.apply(forked)
        # Each is one of the samples from here on, wherever it goes.
        self.running[forked.stream] = msgspec.structs.replace(
            source, stream=forked.stream, samples=1
        )
        self.running[forked.source] = msgspec.structs.replace(
            source, samples=max(1, source.samples - 1)
        )

    def _finished(self, finished: StreamFinished) -> None:
        self.owner.apply(finished)
        del self.running[finished.stream]
        self.preempted.pop(finished.stream, None)
        self.parking.discard(finished.stream)

    def _measured(self, measured: Measured) -> None:
        self.calibration = calibration.observe(self.calibration, measured.metric, measured.value)

    def _owner(self, command: msgspec.Struct) -> None:
        self.owner.apply(command)

    # ---- reads

    def queue(self, most: int) -> list[int]:
        """The first waiting streams in order (waiting.py)."""
        return self.waiting.first(most)

    def root_of(self, stream: int) -> bytes:
        """The root of a stream's prefix chain."""
        queued = self.running.get(stream)
        return queued.root if queued is not None else self.waiting[stream].queued.root

    def reserved_rows(self, queued: RequestQueued) -> int:
        """Rows that admission promises pages for: all that a request may ever write, or, where
        streams grow, its prompt. One that gave way gets a page to go on with, else it would ask
        for one at once and the streams would take turns without end."""
        rows = queued.prompt_tokens
        if self.start.reserve_output:
            rows += queued.max_new_tokens + self.start.verify_rows
        standing = self.preempted.get(queued.stream)
        if standing is None:
            return rows
        most = queued.prompt_tokens + queued.max_new_tokens
        return max(rows, min(most, standing.rows + self.start.page_tokens))

    def _known_rows(self, queued: RequestQueued) -> int:
        """Rows to have before a new one is computed: a prompt's but the last, or those it had."""
        standing = self.preempted.get(queued.stream)
        return queued.prompt_tokens - 1 if standing is None else standing.rows

    def cost(self, metric: Metric) -> int:
        """A cost as calibrated, or as configured while nothing was measured."""
        return self.calibration.costs[metric].value

    def queue_ns(self) -> int:
        """Predicted wait of a request that joined now: rows still to compute, and first tokens."""
        prefill_ns = self.cost(Metric.PREFILL_NS_PER_TOKEN)
        first_ns = self.cost(Metric.FIRST_TOKEN_NS)
        total = self.waiting.tokens * prefill_ns + len(self.waiting) * first_ns
        for stream, queued in self.running.items():
            left = queued.prompt_tokens - self.owner.rows(stream)
            if left > 0:
                total += left * prefill_ns + first_ns
        return total

    # ---- canonical form

    def encode(self) -> bytes:
        """Equal views have equal bytes; page ids are not among them."""
        return msgspec.msgpack.encode(
            ViewState(
                self.owner.encode(),
                calibration.encode(self.calibration),
                list(self.waiting.by_stream()),
                [self.running[stream] for stream in sorted(self.running)],
                sorted(self.preempted.items()),
                sorted(self.parking),
            )
        )

    @classmethod
    def decode(cls, start: WorkerStarted, state: bytes) -> Self:
        """The view that ``encode`` wrote."""
        read = msgspec.msgpack.decode(state, type=ViewState)
        view = cls(start)
        view.owner = PageOwner.decode(read.owner)
        view.calibration = calibration.decode(read.calibration)
        for waiting in read.waiting:
            view.waiting.put(waiting)
        view.running = {queued.stream: queued for queued in read.running}
        view.preempted = dict(read.preempted)
        view.parking = set(read.parking)
        return view


_APPLY: dict[type[msgspec.Struct], Callable[[WorkerFold, Any], None]] = {
    **dict.fromkeys(OPERATIONS, WorkerFold._owner),
    RequestQueued: WorkerFold._queued,
    RequestDropped: WorkerFold._dropped,
    PagesAdopted: WorkerFold._adopted,
    AdoptionUndone: WorkerFold._undone,
    RouteForked: WorkerFold._forked,
    StreamFinished: WorkerFold._finished,
    StreamPreempted: WorkerFold._preempted,
    SwapBegun: WorkerFold._swap_begun,
    SwapReleased: WorkerFold._released,
    Measured: WorkerFold._measured,
}
