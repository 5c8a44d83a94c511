"""A worker process: model, pages, engine thread, tiers, and the link to the gateway.

Owns the order of starting and stopping. A worker advertises itself only when its model is loaded,
its log is caught up and its first facts are spooled; it stops by ending what runs, writing its last
keyframe and draining captures before publications.
"""

from __future__ import annotations

import queue
import threading
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.catalog.identity import salted_root, tenant_salt
from pagetrail.catalog.index import LiveIndex
from pagetrail.catalog.kinds.content import Tenant, Tier, WorkerEpoch
from pagetrail.catalog.kinds.worker import PoolSpec, WorkerStarted
from pagetrail.catalog.publishing import state_model
from pagetrail.config import Config, log_limits, record_mode, served_name
from pagetrail.controlplane.cluster import wire
from pagetrail.controlplane.cluster.deciding import Decider
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.journal import Journal
from pagetrail.controlplane.log.endpoints import ClientKeys
from pagetrail.controlplane.log.frames import Frame
from pagetrail.controlplane.scheduler import Budgets
from pagetrail.controlplane.view import WorkerView
from pagetrail.engine.clock import Clock, LogicalClock, MachineClock
from pagetrail.engine.model import EngineModel, EngineOptions, load
from pagetrail.engine.runtime import INBOX_MAX, Item, Runtime, RuntimeOptions
from pagetrail.engine.transfers import TransferOptions, Transfers
from pagetrail.log_client import LogClient
from pagetrail.starting import CHECKPOINT_TIERS, worker_started
from pagetrail.tiers.ram import RamTier
from pagetrail.tiers.store import DirectoryStore, ObjectStore
from pagetrail.tiers.threads import TierThreads
from pagetrail.worker_link import GatewayLink

if TYPE_CHECKING:
    from pagetrail.lookup_check import LookupCheck

KEYFRAME_EVERY = 2_048
CATCH_UP_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 30.0
HAND_OVER_S = 0.5
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
    ) -> None:
        self._config = config
        self._inbox: queue.Queue[Item] = queue.Queue(INBOX_MAX)
        self._stopping = threading.Event()
        self._failure: Exception | None = None
        with ExitStack() as opened:
            self._open(endpoints, keys, gateway_keys, opened)
            self._opened = opened.pop_all()
        self._engine = threading.Thread(target=self._run, name="engine", daemon=True)

    def _open(
        self,
        endpoints: Endpoints,
        keys: ClientKeys | None,
        gateway_keys: ClientKeys | None,
        opened: ExitStack,
    ) -> None:
        """Builds the parts; ``opened`` closes them in the reverse order."""
        config, worker = self._config, self._config.worker
        directory = Path(config.run.directory)
        self.model = _load(config)  # before anything is written
        stores = _stores(config, directory)
        index = LiveIndex()
        self._log = LogClient(
            directory,
            worker.id,
            endpoints.writer,
            endpoints.publish,
            lambda frames: _apply(index, frames),
            self._hand_over,
            limits=log_limits(config),
            keys=keys,
            catch_up_timeout_s=CATCH_UP_TIMEOUT_S,
        )
        opened.callback(self._log.close)
        opened.callback(self._flush_log)
        self._start = self._started(self._log.previous)
        machine = self._machine(index)
        self._tiers = TierThreads(stores, self._hand_over, staging_bytes_max=worker.staging_bytes)
        opened.callback(self._tiers.close)
        self._link = GatewayLink(
            endpoints.gateway,
            self._greeting(),
            self._hand_over,
            gateway_keys,
            config.gateway.heartbeat_ms * 1_000_000,
        )
        opened.callback(self._link.close)
        clock: Clock = LogicalClock() if worker.clock == "logical" else MachineClock()
        ram = RamTier(worker.ram_bytes)
        machine.use_memory(ram)
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
        self._check = self._lookup_check(index, endpoints, keys)
        if self._check is not None:
            opened.callback(self._check.close)
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
            None if self._check is None else self._check.look,
        )

    @property
    def epoch(self) -> int:
        """The worker's epoch."""
        return self._log.epoch

    @property
    def failure(self) -> Exception | None:
        """What ended or will end this worker; None while all is well."""
        return self._failure or self._log.failure or self._link.failure or self._tiers.failure

    def start(self) -> None:
        """Serve."""
        self._log.start()
        if self._check is not None:
            self._check.start()
        self._engine.start()
        self._link.start()

    def wait(self, timeout_s: float) -> None:
        """Wait until the engine ends. Raises what ended it, as one line."""
        self._engine.join(timeout_s)
        failure = self.failure
        if isinstance(failure, PagetrailError):
            raise failure
        if failure is not None:
            raise PagetrailError(
                f"the worker stopped: {type(failure).__name__}: {failure}; its log is complete up "
                "to here, start it again"
            ) from failure

    def close(self) -> None:
        """End what runs, store and publish what was captured, leave the log with a keyframe."""
        self._stopping.set()
        if self._engine.is_alive():
            self._engine.join()
        self._opened.close()

    def _hand_over(self, item: Item) -> None:
        """Queue something for the engine, from another thread; dropped once the engine is gone."""
        while True:
            try:
                self._inbox.put(item, timeout=HAND_OVER_S)
            except queue.Full:
                if self._stopping.is_set() or self._failure is not None:
                    return
                continue
            return

    def _flush_log(self) -> None:
        with suppress(PagetrailError):  # what is left stays in the spool for the next epoch
            self._log.flush(STOP_TIMEOUT_S)

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
        stated = state_model(
            index,
            start.fingerprint,
            served_name(self._config),
            self.model.layout,
            start.chunk_tokens,
        )
        if stated is not None:
            facts, first = stated
            decider.write(facts, compare_and_set=[first])
        for tenant, pages in start.quotas:
            root = salted_root(tenant_salt(tenant, None))
            decider.write([Tenant(tenant, root, quota_pages=pages, quota_bytes=0)])
        machine = WorkerMachine(decider, start, index)
        if self._config.worker.poison:
            machine.view.owner.observe_released(
                lambda group, pages: self.model.poison(np.asarray(pages, np.int32), group)
            )
        return machine

    def _lookup_check(
        self, index: LiveIndex, endpoints: Endpoints, keys: ClientKeys | None
    ) -> LookupCheck | None:
        """The check of a sample of look-ups, when it is asked for; it alone needs DuckDB here."""
        config = self._config
        if not config.worker.check_lookups:
            return None
        from pagetrail.controlplane.log.stream import LogStream
        from pagetrail.lookup_check import LookupCheck

        limits = log_limits(config)
        return LookupCheck(
            index,
            self._start.fingerprint,
            config.worker.check_lookups,
            Path(config.run.directory) / "replicas" / f"{config.worker.id}.duckdb",
            lambda: LogStream(endpoints.writer, endpoints.publish, limits=limits, keys=keys),
        )

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
        except Exception as error:  # ``wait`` raises it in the main thread
            self._failure = error


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
    worker = config.worker
    tiers = directory / "tiers"
    roots = {Tier.SSD: tiers / "ssd" / worker.id, Tier.OBJECT: tiers / "object"}
    return {
        tier: DirectoryStore(roots[tier], worker.id, worker.disk_reserve_bytes)
        for tier in CHECKPOINT_TIERS[worker.checkpoint_tiers]
    }
