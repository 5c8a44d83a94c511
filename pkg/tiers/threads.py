"""The threads that read and store chunks for one worker, so that the engine never waits.

Owns two threads and their bounded queues. ``read`` fetches and verifies one chunk; ``store``
writes a captured chunk to every tier in turn, local first. Each answer comes back as a completion
through the callback. A store's failures are answers, not exceptions; a tier that keeps failing is
left alone for a while (``Breaker``). Anything else that goes wrong ends the threads and is
``failure``.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pagetrail.catalog.identity import content_id
from pagetrail.catalog.index import StoredPart
from pagetrail.controlplane.cluster.messages import Prompt
from pagetrail.controlplane.tiers.breaker import Breaker
from pagetrail.tiers.store import CorruptObjectError, MissingObjectError, ObjectStore, StoreError

READS_MAX = 1_024


@dataclass(frozen=True, slots=True)
class ChunkArrived:
    """A chunk was read; ``payload`` is None unless every part was verified."""

    stream: int
    place: int
    payload: tuple[bytes, ...] | None  # per part
    corrupt: bool
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class ChunkStored:
    """A captured chunk was written to ``copies``: (tier, key) of each receipt; maybe none."""

    tenant: str
    prompt: Prompt
    chunk: int
    content_id: bytes
    size_bytes: int
    copies: tuple[tuple[int, str], ...]
    elapsed_ns: int


@dataclass(frozen=True, slots=True)
class ReadJob:
    """Fetch the parts of a chunk from one tier."""

    stream: int
    place: int
    tier: int
    parts: tuple[StoredPart, ...]


@dataclass(frozen=True, slots=True)
class StoreJob:
    """Write one captured chunk; ``key`` carries the attempt."""

    tenant: str
    prompt: Prompt
    chunk: int
    payload: bytes
    key: str


@dataclass(slots=True)
class TierStats:
    """What a tier has done, for metrics. Written by one thread, read by any."""

    reads: int = 0
    read_bytes: int = 0
    writes: int = 0
    written_bytes: int = 0
    failures: int = 0


@dataclass(slots=True)
class _Guarded:
    store: ObjectStore
    breaker: Breaker = field(default_factory=Breaker)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stats: TierStats = field(default_factory=TierStats)

    def ask(self) -> bool:
        with self.lock:
            self.breaker, allowed = self.breaker.ask(time.monotonic_ns())
            return allowed

    def report(self, succeeded: bool) -> None:
        with self.lock:
            if succeeded:
                self.breaker = self.breaker.succeeded()
            else:
                self.stats.failures += 1
                self.breaker = self.breaker.failed(time.monotonic_ns())


class TierThreads:
    """See the module. ``completed`` is called from these threads; it must only queue."""

    def __init__(
        self,
        stores: Mapping[int, ObjectStore],
        completed: Callable[[ChunkArrived | ChunkStored], None],
        *,
        staging_bytes_max: int,
    ) -> None:
        self._tiers = {tier: _Guarded(store) for tier, store in stores.items()}
        self._completed = completed
        self._staging_bytes_max = staging_bytes_max
        self._staged_bytes = 0
        self._staged_chunks = 0
        self._lock = threading.Lock()
        self._reads: queue.Queue[ReadJob | None] = queue.Queue(READS_MAX)
        self._stores: queue.Queue[StoreJob | None] = queue.Queue()  # bounded by staged bytes
        self.failure: Exception | None = None
        self._threads = [
            threading.Thread(target=self._guard, args=(loop,), name=name, daemon=True)
            for name, loop in (("tier-read", self._read_loop), ("tier-store", self._store_loop))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def staged_chunks(self) -> int:
        """Captured chunks that are not stored yet."""
        return self._staged_chunks

    def stats(self) -> dict[int, TierStats]:
        """By tier."""
        return {tier: guarded.stats for tier, guarded in self._tiers.items()}

    def free_bytes(self, tier: int, bytes_max: int) -> int:
        """Room that a tier of so many bytes has left."""
        guarded = self._tiers.get(tier)
        return 0 if guarded is None else max(0, bytes_max - guarded.store.used_bytes())

    def read(self, job: ReadJob) -> bool:
        """Queue a read; False when the queue is full."""
        try:
            self._reads.put_nowait(job)
        except queue.Full:
            return False
        return True

    def store(self, job: StoreJob) -> bool:
        """Queue a captured chunk; False when staging is full, and the chunk is dropped."""
        size = len(job.payload)
        with self._lock:
            if self._staged_bytes + size > self._staging_bytes_max:
                return False
            self._staged_bytes += size
            self._staged_chunks += 1
        self._stores.put_nowait(job)
        return True

    def drop(self, tier: int, key: str) -> None:
        """Delete an object that was found corrupt."""
        guarded = self._tiers.get(tier)
        if guarded is not None:
            guarded.store.delete(key)

    def close(self) -> None:
        """Finish what is queued, captures before all, and end the threads."""
        self._stores.put(None)
        self._reads.put(None)
        for thread in self._threads:
            thread.join()

    # ---- threads

    def _guard(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except Exception as error:  # whoever polls ``failure`` ends the process
            self.failure = error

    def _read_loop(self) -> None:
        while (job := self._reads.get()) is not None:
            started_ns = time.monotonic_ns()
            payload, corrupt = self._read(job)
            elapsed_ns = time.monotonic_ns() - started_ns
            self._completed(ChunkArrived(job.stream, job.place, payload, corrupt, elapsed_ns))

    def _read(self, job: ReadJob) -> tuple[tuple[bytes, ...] | None, bool]:
        guarded = self._tiers.get(job.tier)
        if guarded is None or not job.parts or not guarded.ask():
            return None, False
        payloads = []
        try:
            for part in job.parts:
                with guarded.store.open(part.location, part.size_bytes, part.content_id) as view:
                    payloads.append(bytes(view))
        except CorruptObjectError:
            guarded.report(True)  # the store answered; what it holds is another matter
            return None, True
        except MissingObjectError:
            guarded.report(True)
            return None, False
        except StoreError:
            guarded.report(False)
            return None, False
        guarded.report(True)
        guarded.stats.reads += 1
        guarded.stats.read_bytes += sum(map(len, payloads))
        return tuple(payloads), False

    def _store_loop(self) -> None:
        while (job := self._stores.get()) is not None:
            started_ns = time.monotonic_ns()
            copies = []
            for tier in sorted(self._tiers):
                if self._write(tier, job):
                    copies.append((tier, job.key))
            self._completed(
                ChunkStored(
                    job.tenant,
                    job.prompt,
                    job.chunk,
                    content_id(job.payload),
                    len(job.payload),
                    tuple(copies),
                    time.monotonic_ns() - started_ns,
                )
            )
            with self._lock:  # after the completion is queued: a chunk is always counted somewhere
                self._staged_bytes -= len(job.payload)
                self._staged_chunks -= 1

    def _write(self, tier: int, job: StoreJob) -> bool:
        guarded = self._tiers[tier]
        if not guarded.ask():
            return False
        try:
            guarded.store.put(job.key, job.payload)
        except StoreError:
            guarded.report(False)
            return False
        guarded.report(True)
        guarded.stats.writes += 1
        guarded.stats.written_bytes += len(job.payload)
        return True
