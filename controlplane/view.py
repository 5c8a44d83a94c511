"""A worker's policy-visible state: its page owner, queue and calibration, folded from its journal.

Production folds each fact as it writes it; replay folds the same facts with the same code. What
evaluators read is derived here, by pure functions of the view, the catalog and what the decision
recorded, so a decision's inputs are complete by construction. Reads no clock, does no I/O; all
quantities are integers.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Any

import msgspec

from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.index import Entry
from pagetrail.catalog.kinds.content import Tier
from pagetrail.catalog.kinds.worker import (
    AdoptionUndone,
    Measured,
    Metric,
    NodeDurable,
    NodesEvicted,
    PagesAdopted,
    PagesPromised,
    PromptKept,
    RequestDropped,
    RequestQueued,
    RouteForked,
    RowsAdvanced,
    RowsRestored,
    StreamFinished,
    WorkerStarted,
)

from . import calibration
from .eviction import EvictRecorded, KeepCosts, evict_inputs, reuse_ppm
from .lookup import Catalog, PrefixLookup, holdings
from .pages.owner import PageOwner
from .policy.inputs import (
    AdmitInputs,
    CheckpointInputs,
    EvictInputs,
    KeepInputs,
    RestoreInputs,
    RestoreOption,
)

MIB = 1024 * 1024
NO_DEADLINE = 2**63 - 1


class AdmitRecorded(msgspec.Struct, frozen=True, array_like=True):
    """What an admission read beyond its view: the resident match, and the catalog look-up."""

    node: int  # kept node that the match ends in; 0 the root
    columns: int  # columns matched
    lookup: PrefixLookup


class RestoreRecorded(msgspec.Struct, frozen=True, array_like=True):
    """The catalog look-up of a restore decision, and what lies in host memory."""

    lookup: PrefixLookup
    ram_chunks: int = 0  # chunks in this worker's memory, without a gap from the first missing


class CheckpointRecorded(msgspec.Struct, frozen=True, array_like=True):
    """The catalog look-up over whole chunks, and the side that stores, no part of the view."""

    lookup: PrefixLookup
    queued: int  # chunks waiting to be stored
    tier_free_bytes: int  # -1 unbounded


class KeepRecorded(msgspec.Struct, frozen=True, array_like=True):
    """Where the prompt meets the tree."""

    node: int
    shared: int
    columns: int


class Waiting(msgspec.Struct, array_like=True):
    """A queued request and how often a later one went ahead of it."""

    queued: RequestQueued
    bypassed: int


class ViewState(msgspec.Struct, array_like=True):
    """The canonical form of a view."""

    owner: bytes
    calibration: bytes
    waiting: list[Waiting]
    running: list[RequestQueued]


class WorkerView:
    """Fold of a worker's commands."""

    def __init__(self, start: WorkerStarted) -> None:
        self.start = start
        self.owner = PageOwner(
            start.pools,
            page_tokens=start.page_tokens,
            verify_rows=start.verify_rows,
            kept_columns_max=start.kept_columns_max,
            kept_nodes_max=start.kept_nodes_max,
        )
        self.calibration = calibration.configured(start.costs)
        self.waiting: dict[int, Waiting] = {}
        self.running: dict[int, RequestQueued] = {}
        self._queue: list[QueuePlace] = []  # waiting streams, in order
        self._waiting_tokens = 0

    # ---- fold

    def apply(self, command: msgspec.Struct) -> None:
        """Fold one command. Raises InvariantError, with nothing changed, for an illegal one."""
        _APPLY[type(command)](self, command)

    def _queued(self, queued: RequestQueued) -> None:
        if queued.stream in self.waiting or queued.stream in self.running:
            raise InvariantError(f"stream {queued.stream} is known already")
        self._enqueue(queued)

    def _dropped(self, dropped: RequestDropped) -> None:
        self._waiting(dropped.stream)
        self._dequeue(dropped.stream)

    def _adopted(self, adopted: PagesAdopted) -> None:
        waiting = self._waiting(adopted.stream)
        self.owner.apply(adopted)
        for place in self._queue[: self._dequeue(adopted.stream)]:
            self.waiting[place[-1]].bypassed += 1
        self.running[adopted.stream] = waiting.queued

    def _undone(self, undone: AdoptionUndone) -> None:
        self.owner.apply(undone)
        self._enqueue(self.running.pop(undone.stream))

    def _forked(self, forked: RouteForked) -> None:
        if forked.source not in self.running:
            raise InvariantError(f"stream {forked.source} does not run; nothing to fork")
        self.owner.apply(forked)
        source = self.running[forked.source]
        self.running[forked.stream] = msgspec.structs.replace(source, stream=forked.stream)

    def _finished(self, finished: StreamFinished) -> None:
        self.owner.apply(finished)
        del self.running[finished.stream]

    def _measured(self, measured: Measured) -> None:
        self.calibration = calibration.observe(self.calibration, measured.metric, measured.value)

    def _owner(self, command: msgspec.Struct) -> None:
        self.owner.apply(command)

    def _enqueue(self, queued: RequestQueued) -> None:
        self.waiting[queued.stream] = Waiting(queued, 0)
        insort(self._queue, _order(queued))
        self._waiting_tokens += queued.prompt_tokens

    def _dequeue(self, stream: int) -> int:
        """Take a stream out of the queue; returns the place it had."""
        queued = self.waiting.pop(stream).queued
        place = bisect_left(self._queue, _order(queued))
        del self._queue[place]
        self._waiting_tokens -= queued.prompt_tokens
        return place

    def _waiting(self, stream: int) -> Waiting:
        waiting = self.waiting.get(stream)
        if waiting is None:
            raise InvariantError(f"stream {stream} is not in the queue")
        return waiting

    # ---- reads

    def queue(self, most: int) -> list[int]:
        """The first waiting streams in order: priority, deadline, arrival, stream."""
        return [place[-1] for place in self._queue[:most]]

    def root_of(self, stream: int) -> bytes:
        """The root of a stream's prefix chain."""
        queued = self.running.get(stream)
        return queued.root if queued is not None else self._waiting(stream).queued.root

    def reserved_rows(self, queued: RequestQueued) -> int:
        """Rows an admitted request may ever write."""
        rows = queued.prompt_tokens
        if self.start.reserve_output:
            rows += queued.max_new_tokens + self.start.verify_rows
        return rows

    def cost(self, metric: Metric) -> int:
        """A cost as calibrated, or as configured while nothing was measured."""
        return self.calibration.costs[metric].value

    def queue_ns(self) -> int:
        """Predicted wait of a request that joined now: rows still to compute, and first tokens."""
        prefill_ns = self.cost(Metric.PREFILL_NS_PER_TOKEN)
        first_ns = self.cost(Metric.FIRST_TOKEN_NS)
        total = self._waiting_tokens * prefill_ns + len(self.waiting) * first_ns
        for stream, queued in self.running.items():
            left = queued.prompt_tokens - self.owner.rows(stream)
            if left > 0:
                total += left * prefill_ns + first_ns
        return total

    # ---- inputs

    def admit_inputs(
        self, stream: int, recorded: AdmitRecorded, catalog: Catalog, entries: tuple[Entry, ...]
    ) -> AdmitInputs:
        """The complete inputs of an admission decision."""
        queued = self._waiting(stream).queued
        owner, start = self.owner, self.start
        ahead = bisect_left(self._queue, _order(queued))
        resident = recorded.columns * start.page_tokens
        prefill_ns = self.cost(Metric.PREFILL_NS_PER_TOKEN)
        reusable = queued.prompt_tokens - 1
        recompute_ns = max(0, reusable - resident) * prefill_ns
        options = self._restore_options(catalog, entries, resident, reusable)
        restore_ns = min(
            (option.cost_ns + max(0, reusable - option.tokens) * prefill_ns for option in options),
            default=recompute_ns,
        )
        rows = self.reserved_rows(queued)
        need, copies = self._need(queued)
        return AdmitInputs(
            prompt_tokens=queued.prompt_tokens,
            max_new_tokens=queued.max_new_tokens,
            context_tokens=start.context_tokens,
            compatible=True,
            need=need,
            adopted=owner.adoption_pages(recorded.node, recorded.columns, rows, start.step_rows),
            copy_on_write=copies,
            available=owner.available(),
            reclaimable=owner.reclaimable_after_adopting(recorded.node, recorded.columns),
            total=owner.total(),
            running=len(self.running) + queued.samples - 1,
            lanes=start.lanes,
            waiting_ahead=ahead,
            bypassed=self.waiting[self._queue[0][-1]].bypassed if ahead else 0,
            restore_ns=restore_ns,
            recompute_ns=recompute_ns,
        )

    def _need(self, queued: RequestQueued) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Pages per group that a request's streams may ever take, and the copies among them."""
        need = self.owner.need(self.reserved_rows(queued), self.start.step_rows)
        extra = self.fork_pages(queued)
        forks = queued.samples - 1
        # The source copies the shared partial tail too when a fork still holds it.
        copies = 1 if forks and (queued.prompt_tokens - 1) % self.start.page_tokens else 0
        total = tuple(own + forks * fork + copies for own, fork in zip(need, extra, strict=True))
        return total, (copies * queued.samples,) * len(need)

    def fork_pages(self, queued: RequestQueued) -> tuple[int, ...]:
        """Pages per group that one fork takes at most: all but the shared whole pages."""
        need = self.owner.need(self.reserved_rows(queued), self.start.step_rows)
        shared = (queued.prompt_tokens - 1) // self.start.page_tokens
        return tuple(count - min(count, shared) for count in need)

    def evict_inputs(self, recorded: EvictRecorded) -> EvictInputs:
        """The complete inputs of an eviction (eviction.py)."""
        return evict_inputs(self.owner, self._keep_costs(), recorded)

    def _keep_costs(self) -> KeepCosts:
        prefill_ns = self.cost(Metric.PREFILL_NS_PER_TOKEN)
        reload_ns = self.cost(Metric.SSD_NS_PER_MIB) + self.cost(Metric.UPLOAD_NS_PER_MIB)
        column_bytes = sum([pool.page_bytes for pool in self.start.pools])
        return KeepCosts(self.start.page_tokens * prefill_ns, column_bytes * reload_ns // MIB)

    def restore_inputs(
        self,
        stream: int,
        recorded: RestoreRecorded,
        catalog: Catalog,
        entries: tuple[Entry, ...],
    ) -> RestoreInputs:
        """The complete inputs of a restore-source decision for a stream that was admitted."""
        queued = self.running[stream]
        resident = self.owner.rows(stream)
        reusable = queued.prompt_tokens - 1
        return RestoreInputs(
            resident_tokens=resident,
            reusable_tokens=reusable,
            page_tokens=self.start.page_tokens,
            pages_for_restore=min(self.owner.promised(stream)),
            prefill_ns_per_token=self.cost(Metric.PREFILL_NS_PER_TOKEN),
            options=self._ram_option(recorded.ram_chunks, resident, reusable)
            + self._restore_options(catalog, entries, resident, reusable),
        )

    def _ram_option(self, chunks: int, resident: int, reusable: int) -> tuple[RestoreOption, ...]:
        if not chunks:
            return ()
        reached = (resident // self.start.chunk_tokens + chunks) * self.start.chunk_tokens
        ns_per_mib = self.cost(Metric.RAM_NS_PER_MIB) + self.cost(Metric.UPLOAD_NS_PER_MIB)
        cost_ns = chunks * self.start.chunk_bytes * ns_per_mib // MIB
        return (RestoreOption(Tier.RAM, "", min(reached, reusable), cost_ns),)

    def _restore_options(
        self, catalog: Catalog, entries: tuple[Entry, ...], resident: int, reusable: int
    ) -> tuple[RestoreOption, ...]:
        first = resident // self.start.chunk_tokens
        upload_ns = self.cost(Metric.UPLOAD_NS_PER_MIB)
        options = []
        for holding in holdings(catalog, entries, first):
            if holding.worker not in ("", self.start.worker):
                continue  # a peer's disk is not read until there is a peer tier
            read_ns = self.cost(_READ_COST[holding.tier])
            options.append(
                RestoreOption(
                    holding.tier,
                    "",
                    min(holding.tokens, reusable),
                    holding.missing_bytes * (read_ns + upload_ns) // MIB,
                )
            )
        return tuple(options)

    def durable_chunks(self, catalog: Catalog, entries: tuple[Entry, ...]) -> int:
        """Leading chunks that have a ready copy in every tier this worker writes to."""
        wanted = {
            ("" if tier == Tier.OBJECT else self.start.worker, tier)
            for tier in self.start.checkpoint_tiers
        }
        for place, entry in enumerate(entries):
            mask, held = entry.mask, set()
            while mask:
                held.add(catalog.holder((mask & -mask).bit_length() - 1))
                mask &= mask - 1
            if not wanted <= held:
                return place
        return len(entries)

    def checkpoint_inputs(
        self,
        stream: int,
        recorded: CheckpointRecorded,
        catalog: Catalog,
        entries: tuple[Entry, ...],
    ) -> CheckpointInputs:
        """The complete inputs of a checkpoint decision for a finished prompt."""
        queued = self.running[stream]
        start = self.start
        chunk_tokens = start.chunk_tokens
        durable = self.durable_chunks(catalog, entries)
        chunks = queued.prompt_tokens // chunk_tokens - durable if start.checkpoint_tiers else 0
        tokens = chunks * chunk_tokens
        size = chunks * start.chunk_bytes
        reload_ns = self.cost(Metric.SSD_NS_PER_MIB) + self.cost(Metric.UPLOAD_NS_PER_MIB)
        return CheckpointInputs(
            tokens=tokens,
            size_bytes=size,
            depth_tokens=durable * chunk_tokens,
            reuse_ppm=reuse_ppm(1),
            recompute_ns=tokens * self.cost(Metric.PREFILL_NS_PER_TOKEN),
            reload_ns=size * reload_ns // MIB,
            capture_ns=size * self.cost(Metric.CAPTURE_NS_PER_MIB) // MIB,
            staging_bytes=start.chunk_bytes,
            staging_bytes_max=start.staging_bytes_max,
            queued=recorded.queued,
            queue_max=start.publish_queue_max,
            tier_free_bytes=recorded.tier_free_bytes,
        )

    def keep_inputs(self, recorded: KeepRecorded) -> KeepInputs:
        """The complete inputs of a keep decision."""
        return KeepInputs(
            columns=recorded.columns,
            shared=recorded.shared,
            kept_columns=self.owner.kept_columns,
            kept_columns_max=self.start.kept_columns_max,
            kept_nodes=self.owner.kept_nodes,
            kept_nodes_max=self.start.kept_nodes_max,
            new_nodes=1 + (recorded.shared < self.owner.node(recorded.node).end),
        )

    # ---- canonical form

    def encode(self) -> bytes:
        """Equal views have equal bytes; page ids are not among them."""
        return msgspec.msgpack.encode(
            ViewState(
                self.owner.encode(),
                calibration.encode(self.calibration),
                [self.waiting[stream] for stream in sorted(self.waiting)],
                [self.running[stream] for stream in sorted(self.running)],
            )
        )

    @classmethod
    def decode(cls, start: WorkerStarted, state: bytes) -> WorkerView:
        """The view that ``encode`` wrote."""
        read = msgspec.msgpack.decode(state, type=ViewState)
        view = cls(start)
        view.owner = PageOwner.decode(read.owner)
        view.calibration = calibration.decode(read.calibration)
        for waiting in read.waiting:
            view._enqueue(waiting.queued)
            view.waiting[waiting.queued.stream].bypassed = waiting.bypassed
        view.running = {queued.stream: queued for queued in read.running}
        return view


QueuePlace = tuple[int, int, int, int]


def _order(queued: RequestQueued) -> QueuePlace:
    return (
        -queued.priority,
        queued.deadline_us or NO_DEADLINE,
        queued.arrival_us,
        queued.stream,
    )


_READ_COST: dict[int, Metric] = {
    Tier.RAM: Metric.RAM_NS_PER_MIB,
    Tier.SSD: Metric.SSD_NS_PER_MIB,
    Tier.PEER: Metric.PEER_NS_PER_MIB,
    Tier.OBJECT: Metric.OBJECT_NS_PER_MIB,
}

_APPLY: dict[type[msgspec.Struct], Callable[[WorkerView, Any], None]] = {
    RequestQueued: WorkerView._queued,
    RequestDropped: WorkerView._dropped,
    PagesAdopted: WorkerView._adopted,
    AdoptionUndone: WorkerView._undone,
    RouteForked: WorkerView._forked,
    StreamFinished: WorkerView._finished,
    Measured: WorkerView._measured,
    PagesPromised: WorkerView._owner,
    NodesEvicted: WorkerView._owner,
    RowsAdvanced: WorkerView._owner,
    RowsRestored: WorkerView._owner,
    PromptKept: WorkerView._owner,
    NodeDurable: WorkerView._owner,
}
