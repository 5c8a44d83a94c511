"""Bytes between a stream's pages and the tiers: restores in, captures out.

Runs in the engine thread and drives the tier threads; owns the restores that are under way. The
machine decided what to restore or capture; here it is carried out, in order and verified, and what
came of it is handed back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.identity import node_id
from pagetrail.catalog.index import LiveIndex
from pagetrail.catalog.kinds.content import Tier
from pagetrail.catalog.kinds.worker import Metric
from pagetrail.catalog.layout import digest
from pagetrail.controlplane.cluster.messages import Capture, KeepInRam, Restore, WorkerEffect
from pagetrail.controlplane.cluster.publisher import Publisher, Stored
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.cluster.worker_state import PublisherState
from pagetrail.controlplane.pages.appends import Append, Shortfall
from pagetrail.controlplane.tiers import restoring
from pagetrail.kernels.abi import Int32s
from pagetrail.tiers.ram import RamTier
from pagetrail.tiers.threads import ChunkArrived, ChunkStored, ReadJob, StoreJob, TierThreads

from .clock import Clock
from .model import EngineModel


@dataclass(slots=True)
class _Restore:
    machine: restoring.Restoring
    append: Append
    started_ns: int


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """``restore_window``: chunks of one restore read at once. ``measure``: calibrate captures."""

    restore_window: int
    ssd_bytes: int
    measure: bool


class Transfers:
    """See the module. ``answer`` queues a completion as the tier threads do."""

    def __init__(
        self,
        machine: WorkerMachine,
        model: EngineModel,
        index: LiveIndex,
        tiers: TierThreads,
        ram: RamTier,
        clock: Clock,
        options: TransferOptions,
        answer: Callable[[ChunkArrived], None],
    ) -> None:
        self.publisher = Publisher(machine, digest(model.layout))
        self._machine = machine
        self._model = model
        self._index = index
        self._tiers = tiers
        self._ram = ram
        self._clock = clock
        self._options = options
        self._answer = answer
        self._restores: dict[int, _Restore] = {}
        self._stored_number = 0

    @property
    def staged_chunks(self) -> int:
        """Captured chunks that are not stored yet."""
        return self._tiers.staged_chunks

    def abandon(self, stream: int) -> None:
        """The stream is stopped; what its restore has written counts for nothing."""
        restore = self._restores.pop(stream, None)
        if restore is not None:
            self._machine.view.owner.abort(restore.append)

    # ---- restore

    def restore(self, effect: Restore) -> list[WorkerEffect]:
        """Begin a restore."""
        start = self._machine.start
        holder = "" if effect.tier == Tier.OBJECT else start.worker
        first = effect.first_token // start.chunk_tokens
        chunks = tuple(
            restoring.ChunkToRead(
                prefix,
                (first + place) * start.chunk_tokens,
                (first + place + 1) * start.chunk_tokens,
                self._index.stored(start.fingerprint, prefix, holder, effect.tier),
            )
            for place, prefix in enumerate(effect.chunks)
        )
        append = self._machine.view.owner.reserve(effect.stream, effect.tokens - effect.first_token)
        if isinstance(append, Shortfall):
            raise InvariantError(
                f"stream {effect.stream} was to restore {effect.tokens} tokens and its promise "
                f"lacks {append.pages} pages; the restore decision and the book disagree"
            )
        machine = restoring.Restoring(
            effect.stream,
            effect.tier,
            effect.first_token,
            effect.tokens,
            chunks,
            self._options.restore_window,
        )
        self._restores[effect.stream] = _Restore(machine, append, self._clock.now_ns())
        return self._carry_out(effect.stream, machine.begin())

    def arrived(self, arrived: ChunkArrived) -> list[WorkerEffect]:
        """A chunk came back, verified or not."""
        restore = self._restores.get(arrived.stream)
        if restore is None:
            return []  # its stream was cancelled
        if arrived.payload is not None:
            restore.machine.payloads[arrived.place] = arrived.payload
        effects = restore.machine.arrived(
            arrived.place, arrived.payload is not None, arrived.corrupt
        )
        return self._carry_out(arrived.stream, effects)

    def _carry_out(self, stream: int, effects: list[restoring.RestoreEffect]) -> list[WorkerEffect]:
        follows: list[WorkerEffect] = []
        restore = self._restores[stream]
        machine = restore.machine
        for effect in effects:
            match effect:
                case restoring.Read():
                    self._read(stream, machine, effect.place)
                case restoring.Write():
                    chunk = machine.chunks[effect.place]
                    self._write_rows(stream, chunk, effect, machine.payloads.pop(effect.place))
                case restoring.DropLocal():
                    for part in machine.chunks[effect.place].parts:
                        if machine.tier == Tier.SSD:
                            self._tiers.drop(machine.tier, part.location)
                case restoring.Restored():
                    del self._restores[stream]
                    owner = self._machine.view.owner
                    owner.commit(restore.append, effect.rows)
                    elapsed_ns = self._clock.now_ns() - restore.started_ns
                    follows += self._machine.restored(stream, effect.rows, machine.tier, elapsed_ns)

        return follows

    def _read(self, stream: int, machine: restoring.Restoring, place: int) -> None:
        chunk = machine.chunks[place]
        if machine.tier == Tier.RAM:
            payload = self._ram.get(chunk.prefix)
            found = None if payload is None else (payload,)
            self._answer(ChunkArrived(stream, place, found, False, 0))
        elif not self._tiers.read(ReadJob(stream, place, machine.tier, chunk.parts)):
            self._answer(ChunkArrived(stream, place, None, False, 0))

    def _write_rows(
        self,
        stream: int,
        chunk: restoring.ChunkToRead,
        rows: restoring.Write,
        payload: tuple[bytes, ...],
    ) -> None:
        table = self._table(stream, 0)
        first, last = rows.token_start - chunk.token_start, rows.token_end - chunk.token_start
        for group, part in enumerate(payload):
            body = self._model.arena.cut(
                group, part, chunk.token_end - chunk.token_start, first, last
            )
            self._model.restore(table, rows.token_start, rows.token_end, body, group)
        self._ram.put(chunk.prefix, payload[0])

    def _table(self, stream: int, group: int) -> Int32s:
        return np.asarray(self._machine.view.owner.page_table(stream, group), np.int32)

    # ---- capture and publication

    def capture(self, effect: Capture) -> list[WorkerEffect]:
        """Read chunks out of a finished stream's pages and queue them for the tiers."""
        started_ns = self._clock.now_ns()
        start = self._machine.start
        prompt = self._machine.prompt(effect.stream)
        tenant = self._machine.tenant(effect.stream)
        table = self._table(effect.stream, 0)
        size = 0
        for chunk in effect.chunks:
            first = chunk * start.chunk_tokens
            payload = self._model.capture(table, first, first + start.chunk_tokens)
            self._ram.put(prompt.chunks[chunk], payload)
            self._stored_number += 1
            node = node_id(start.fingerprint, prompt.chunks[chunk]).hex()
            key = f"{node[:2]}/{node}/{start.worker}.{start.worker_epoch}.{self._stored_number}"
            if not self._tiers.store(StoreJob(tenant, prompt, chunk, payload, key)):
                self._machine.give_up_storing(prompt)
                break
            size += len(payload)
        elapsed_ns = self._clock.now_ns() - started_ns
        if size and self._options.measure:
            per_mib = elapsed_ns * (1 << 20) // size
            self._machine.measured(Metric.CAPTURE_NS_PER_MIB, per_mib)
        return self._machine.captured(effect.stream, size, elapsed_ns)

    def keep_in_ram(self, effect: KeepInRam) -> list[WorkerEffect]:
        """Copy whole chunks of a finished prompt to host memory, as many as stay there."""
        started_ns, start = self._clock.now_ns(), self._machine.start
        prompt, rows = self._machine.prompt(effect.stream), 0
        table = self._table(effect.stream, 0)
        for chunk in effect.chunks:
            first = chunk * start.chunk_tokens
            if self._ram.get(prompt.chunks[chunk]) is None:
                payload = self._model.capture(table, first, first + start.chunk_tokens)
                if not self._ram.put(prompt.chunks[chunk], payload):
                    break
            rows = first + start.chunk_tokens
        elapsed_ns = self._clock.now_ns() - started_ns
        state = self.publisher_state()
        return self._machine.kept_in_ram(effect.stream, rows, elapsed_ns, state)

    def stored(self, stored: ChunkStored) -> None:
        """A chunk has its receipts: publish it."""
        self.publisher.publish(
            stored.tenant,
            stored.prompt,
            stored.chunk,
            Stored(stored.content_id, stored.size_bytes, stored.copies),
        )

    def publisher_state(self) -> PublisherState:
        """What a checkpoint decision must know of this side."""
        return PublisherState(
            self._tiers.staged_chunks + self.publisher.pending,
            self._tiers.free_bytes(Tier.SSD, self._options.ssd_bytes),
        )
