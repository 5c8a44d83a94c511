"""A worker process: model, pages, engine thread, tiers, and the link to the gateway.

Owns the order of starting and stopping. A worker advertises itself only when its model is loaded,
its log is caught up and its first facts are spooled; it stops by ending what runs, writing its last
keyframe and draining captures before publications.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import zmq

from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.catalog.index import LiveIndex
from pagetrail.catalog.kinds.content import Tier, WorkerEpoch
from pagetrail.catalog.kinds.worker import PoolSpec, WorkerStarted
from pagetrail.config import Config, log_limits, record_mode
from pagetrail.controlplane.cluster import wire
from pagetrail.controlplane.cluster.deciding import Decider
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.journal import Journal
from pagetrail.controlplane.log.curve import secure_client
from pagetrail.controlplane.log.endpoints import ClientKeys
from pagetrail.controlplane.log.frames import Frame
from pagetrail.controlplane.scheduler import Budgets
from pagetrail.controlplane.view import WorkerView
from pagetrail.engine.clock import Clock, MachineClock
from pagetrail.engine.model import EngineModel, EngineOptions, load
from pagetrail.engine.runtime import INBOX_MAX, Item, Runtime, RuntimeOptions
from pagetrail.engine.transfers import TransferOptions, Transfers
from pagetrail.log_client import LogClient
from pagetrail.starting import CHECKPOINT_TIERS, worker_started
from pagetrail.tiers.ram import RamTier
from pagetrail.tiers.store import DirectoryStore, ObjectStore
from pagetrail.tiers.threads import TierThreads

KEYFRAME_EVERY = 2_048
LINK_QUEUE_MAX = 65_536
CATCH_UP_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
PARKED_STEPS_MAX = 64


@dataclass(frozen=True, slots=True)
class Endpoints:
    """Where a worker or gateway finds the others."""

    writer: str
    publish: str
    gateway: str


class Worker:
    """One worker. ``start`` returns when it serves; ``close`` ends it cleanly."""

    def __init__(
        self,
        config: Config,
        endpoints: Endpoints,
        *,
        keys: ClientKeys | None = None,
        gateway_keys: ClientKeys | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._config = config
        self._inbox: queue.Queue[Item] = queue.Queue(INBOX_MAX)
        self._stopping = threading.Event()
        self.failure: BaseException | None = None
        directory = Path(config.run.directory)
        worker = config.worker
        self._tiers = TierThreads(
            _stores(config, directory),
            self._inbox.put,
            staging_bytes_max=worker.staging_bytes,
        )
        try:
            self.model = _load(config)
            index = LiveIndex()
            self._log = LogClient(
                directory,
                worker.id,
                endpoints.writer,
                endpoints.publish,
                lambda frames: _apply(index, frames),
                self._inbox.put,
                limits=log_limits(config),
                keys=keys,
                catch_up_timeout_s=CATCH_UP_TIMEOUT_S,
            )
        except BaseException:
            self._tiers.close()
            raise
        self._start = self._started(self._log.previous)
        machine = self._machine(index)
        self._link = GatewayLink(
            endpoints.gateway,
            worker.id,
            self._greeting(),
            self._inbox.put,
            gateway_keys,
            config.gateway.heartbeat_ms * 1_000_000,
        )
        clock = clock or MachineClock()
        ram = RamTier(worker.ram_bytes)
        machine.memory = ram
        transfers = Transfers(
            machine,
            self.model,
            index,
            self._tiers,
            ram,
            clock,
            TransferOptions(worker.restore_window, worker.ssd_bytes, worker.measure_costs),
            self._inbox.put_nowait,
        )
        self._runtime = Runtime(
            machine,
            self.model,
            index,
            self._log,
            transfers,
            clock,
            self._link.send,
            RuntimeOptions(
                Budgets(
                    rows=worker.step_rows,
                    sequences=worker.lanes,
                    prefill_tile=worker.prefill_tile,
                    prefill_rows_min=min(worker.step_rows, worker.prefill_tile) // 2,
                    parked_steps_max=PARKED_STEPS_MAX,
                ),
                heartbeat_ns=config.gateway.heartbeat_ms * 1_000_000,
                measure=worker.measure_costs,
            ),
            self._inbox,
        )
        self._engine = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def epoch(self) -> int:
        """The worker's epoch."""
        return self._log.epoch

    def start(self) -> None:
        """Serve."""
        self._log.start()
        self._engine.start()
        self._link.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until the engine ends. Raises what ended it."""
        self._engine.join(timeout_s)
        failure = self.failure or self._log.failure or self._link.failure
        if failure is not None:
            raise failure

    def close(self) -> None:
        """End what runs, store what was captured, and leave the log with a keyframe."""
        self._stopping.set()
        if self._engine.is_alive():
            self._engine.join()
        self._link.close()
        self._tiers.close()
        with suppress(PagetrailError):  # what is left stays in the spool for the next epoch
            self._log.flush(STOP_TIMEOUT_S)
        self._log.close()

    # ---- parts

    def _started(self, previous: Journal | None) -> WorkerStarted:
        layout = self.model.layout
        page_tokens, chunk_tokens = (
            self._config.worker.page_tokens,
            self._config.worker.chunk_tokens,
        )
        pools = tuple(
            PoolSpec(
                group.name,
                group.window_tokens,
                self._config.worker.pages,
                page_tokens * self.model.arena.row_bytes(place),
            )
            for place, group in enumerate(layout.groups)
        )
        if len(pools) > 1:
            raise BadInputError(
                f"this model has {len(pools)} page groups; the worker serves models with one "
                "group until windows are captured and restored"
            )
        return worker_started(
            self._config,
            epoch=self._log.epoch,
            fingerprint=self.model.fingerprint(),
            pools=pools,
            chunk_bytes=chunk_tokens * self.model.arena.row_bytes(0),
            context_tokens=self.model.context,
            previous=previous,
        )

    def _machine(self, index: LiveIndex) -> WorkerMachine:
        start = self._start
        decider = Decider(
            Journal(start.worker, start.worker_epoch),
            WorkerView(start),
            start.evaluators,
            record_mode(self._config.record),
            KEYFRAME_EVERY,
        )
        decider.write([start])
        decider.write([WorkerEpoch(start.worker, start.worker_epoch, "")])
        return WorkerMachine(decider, start, index)

    def _greeting(self) -> wire.Hello:
        start = self._start
        return wire.Hello(
            worker=start.worker,
            worker_epoch=start.worker_epoch,
            fingerprint=start.fingerprint,
            model=self._config.model.name,
            page_tokens=start.page_tokens,
            chunk_tokens=start.chunk_tokens,
            chunk_bytes=start.chunk_bytes,
            context_tokens=start.context_tokens,
        )

    def _run(self) -> None:
        try:
            self._runtime.run(self._stopping)
        except BaseException as error:
            self.failure = error
            raise


class GatewayLink:
    """The worker's socket to the gateway, in a thread of its own.

    Says hello first, and again whenever the gateway asks who this is. Says on its own that the
    process is alive, because a step of the engine may take longer than a gateway's patience.
    """

    def __init__(
        self,
        endpoint: str,
        worker: str,
        hello: wire.Hello,
        received: Callable[[wire.Message], None],
        keys: ClientKeys | None,
        heartbeat_ns: int,
    ) -> None:
        self._hello = hello
        self._heartbeat_ns = heartbeat_ns
        self._received = received
        self.failure: PagetrailError | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, f"{worker}/{hello.worker_epoch}".encode())
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SNDHWM, LINK_QUEUE_MAX)
        if keys is not None:
            secure_client(self._socket, keys)
        self._socket.connect(endpoint)
        # Other threads hand over what is to be sent; a socket belongs to one thread.
        self._out: queue.Queue[wire.Message] = queue.Queue(LINK_QUEUE_MAX)
        self._wake_in = self._context.socket(zmq.PAIR)
        self._wake_out = self._context.socket(zmq.PAIR)
        self._wake_in.bind("inproc://wake")
        self._wake_out.connect("inproc://wake")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway-link", daemon=True)

    def start(self) -> None:
        """Say hello and begin to carry messages."""
        self._thread.start()

    def send(self, message: wire.Message) -> None:
        """Queue a message; called by the engine thread only."""
        try:
            self._out.put_nowait(message)
        except queue.Full as error:
            raise PagetrailError(
                f"the gateway has not taken {LINK_QUEUE_MAX} messages; is it there? Restart it, "
                "then this worker"
            ) from error
        with suppress(zmq.Again):  # else enough wake-ups are waiting
            self._wake_out.send(b"", zmq.NOBLOCK)

    def close(self) -> None:
        """Send what is queued, and end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for socket in (self._socket, self._wake_in, self._wake_out):
            socket.close(0)
        self._context.term()

    def _run(self) -> None:
        try:
            self._socket.send_multipart(wire.encode(self._hello))
            poller = zmq.Poller()
            poller.register(self._socket, zmq.POLLIN)
            poller.register(self._wake_in, zmq.POLLIN)
            alive = wire.encode(wire.Alive(self._hello.worker, self._hello.worker_epoch))
            beat_ns = 0
            while True:
                ready = dict(poller.poll(50))
                if time.monotonic_ns() - beat_ns >= self._heartbeat_ns:
                    beat_ns = time.monotonic_ns()
                    self._socket.send_multipart(alive)
                if self._wake_in in ready:
                    self._wake_in.recv()
                self._flush()
                if self._socket in ready:
                    self._take()
                if self._stopping.is_set() and self._out.empty():
                    return
        except PagetrailError as error:
            self.failure = error

    def _flush(self) -> None:
        while True:
            try:
                message = self._out.get_nowait()
            except queue.Empty:
                return
            self._socket.send_multipart(wire.encode(message))

    def _take(self) -> None:
        message = wire.decode(self._socket.recv_multipart())
        if message is None:
            return
        if isinstance(message, wire.Resync):
            self._socket.send_multipart(wire.encode(self._hello))
        self._received(message)


def _apply(index: LiveIndex, frames: list[Frame]) -> None:
    for frame in frames:
        index.apply(frame.facts())


def _load(config: Config) -> EngineModel:
    worker = config.worker
    return load(
        config.model.name,
        EngineOptions(
            pages=(worker.pages,),
            page_tokens=worker.page_tokens,
            threads=worker.threads,
            context=worker.context,
        ),
    )


def _stores(config: Config, directory: Path) -> dict[int, ObjectStore]:
    wanted = CHECKPOINT_TIERS[config.worker.checkpoint_tiers]
    stores: dict[int, ObjectStore] = {}
    if Tier.SSD in wanted:
        root = directory / "tiers" / "ssd" / config.worker.id
        stores[Tier.SSD] = DirectoryStore(root, config.worker.id)
    if Tier.OBJECT in wanted:
        stores[Tier.OBJECT] = DirectoryStore(directory / "tiers" / "object", config.worker.id)
    return stores
