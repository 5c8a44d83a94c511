"""One simulated run: a cluster, a workload, a plan of faults, and what must hold.

A run is a function of its settings, the seed among them: the same events in the same order, the
same facts, byte for byte. Checked after every event are the pages of every worker that acted and
that no request ends twice; checked at the end, after every fault has healed, that every request has
ended, that the log holds exactly what was spooled, once, and that nothing is left in the books.
That every decision derives again is the caller's to check from ``frames``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from enum import StrEnum

import msgspec

from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.identity import ROOT, chain
from pagetrail.catalog.kinds.content import Tier
from pagetrail.catalog.kinds.router import RouterStarted
from pagetrail.catalog.kinds.worker import Bound, PoolSpec, WorkerStarted
from pagetrail.controlplane.journal import transaction_digest
from pagetrail.controlplane.log.frames import Frame
from pagetrail.controlplane.policy.registry import bind

from ..messages import Close, Incoming, Prompt, Verdict
from ..modelfree import DeclaredCosts
from .log import SimSpool, SimWriter
from .network import Network, NetworkFaults
from .nodes import ROUTER, SimRouter, SimWorker, Stores
from .story import FinishedAttempts, ViolationError, check_story
from .timeline import Draw, Timeline

BLOCK_TOKENS = 16
BLOCK_BYTES = 64 * 1024
FINGERPRINT = hashlib.sha256(b"pagetrail simulator").digest()
EVALUATORS = (
    "routing/min-ttft@1",
    "admission/reserve@1",
    "residency/value-density@1",
    "restore/min-completion@1",
    "checkpoint/expected-value@1",
    "keep/within-limits@1",
)
HEAL_US_MAX = 60_000_000
QUIET_US = 3_000_000


class FaultKind(StrEnum):
    """What can go wrong."""

    CRASH_WORKER = "crash-worker"
    PAUSE_WORKER = "pause-worker"
    CRASH_WRITER = "crash-writer"
    CUT_LINK = "cut-link"
    LOSE_MESSAGES = "lose-messages"
    FAIL_STORES = "fail-stores"


class Fault(msgspec.Struct, frozen=True):
    """One fault: when, what, to whom, for how long."""

    at_us: int
    kind: FaultKind
    target: str
    for_us: int


class SimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A run. ``faults`` None: drawn from the seed, one every ``fault_every_us``."""

    seed: int
    workers: int = 4
    pages: int = 48
    lanes: int = 2
    simulated_us: int = 20_000_000
    requests_per_s: int = 20
    fault_every_us: int = 1_000_000
    faults: tuple[Fault, ...] | None = None


class SimReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did."""

    seed: int
    requests: int
    verdicts: dict[str, int]
    events: int
    facts: int
    simulated_us: int
    faults: int
    violation: str  # empty: none
    digest: str  # of everything that happened


class World:
    """See the module."""

    def __init__(self, settings: SimSettings) -> None:
        self.settings = settings
        self.timeline = Timeline()
        self.network = Network(self.timeline, Draw(settings.seed, "network"), NetworkFaults())
        self.stores = Stores(Draw(settings.seed, "stores"))
        names = [f"worker-{number}" for number in range(settings.workers)]
        self.writer = SimWriter(self.timeline, self.network, [ROUTER, *names])
        self.spools = {name: SimSpool(name) for name in (ROUTER, *names)}
        self.verdicts: Counter[str] = Counter()
        self.submitted = 0
        self.faults = _plan(settings, names) if settings.faults is None else settings.faults
        self._closed: set[int] = set()
        self._finished = FinishedAttempts()
        self._draw = Draw(settings.seed, "workload")
        self._talks: list[list[int]] = []
        self._next_block = 1
        self.writer.start()
        self.router = SimRouter(
            _router_start(), self.timeline, self.network, self.spools[ROUTER], self._ended
        )
        self.workers = {name: self._new_worker(name) for name in names}

    @property
    def frames(self) -> list[Frame]:
        """The log as the writer's disk has it."""
        return self.writer.frames

    # ---- the run

    def run(self) -> SimReport:
        """Run to the end. A violation ends it early and is part of the report."""
        violation = ""
        try:
            self._arrange()
            self.timeline.run_until(self.settings.simulated_us, self._check)
            self._heal()
            end_us = self.settings.simulated_us + HEAL_US_MAX
            quiet_us = 0  # messages of before may still be on their way, or in a paused process
            while quiet_us < QUIET_US and self.timeline.now_us < end_us:
                self.timeline.run_until(self.timeline.now_us + 500_000, self._check)
                quiet_us = 0 if self._open() or self._busy() else quiet_us + 500_000
            self._drain()
            self._check_end()
        except InvariantError as error:
            violation = f"{type(error).__name__} at {self.timeline.now_us} us: {error}"
        return SimReport(
            seed=self.settings.seed,
            requests=self.submitted,
            verdicts=dict(sorted(self.verdicts.items())),
            events=self.timeline.happened,
            facts=self.frames[-1].next_seq if self.frames else 0,
            simulated_us=self.timeline.now_us,
            faults=len(self.faults),
            violation=violation,
            digest=self._digest(),
        )

    def _arrange(self) -> None:
        every_us = 1_000_000 // self.settings.requests_per_s
        at_us = 300_000  # the cluster has found itself by then
        while at_us < self.settings.simulated_us:
            self.timeline.after(at_us, self._submit)
            at_us += self._draw.between(every_us // 2, every_us * 3 // 2)
        for fault in self.faults:
            self.timeline.after(fault.at_us, lambda fault=fault: self._break(fault))  # type: ignore[misc]

    # ---- workload

    def _submit(self) -> None:
        self.submitted += 1
        prompt = self._prompt()
        self.router.submit(
            Incoming(
                request=f"sim-{self.submitted}",
                tenant="",
                priority=self._draw.below(2),
                deadline_us=0,
                prompt=prompt,
                max_new_tokens=self._draw.between(1, 2 * BLOCK_TOKENS),
            )
        )

    def _prompt(self) -> Prompt:
        """A conversation goes on, or a new one opens under one of three system prompts."""
        if self._talks and self._draw.below(100) < 60:
            blocks = self._talks.pop(self._draw.below(len(self._talks)))
        else:
            blocks = [-1 - self._draw.below(3)] * 2
        for _ in range(self._draw.between(1, 4)):
            blocks = [*blocks, self._next_block]
            self._next_block += 1
        if len(blocks) < 16:
            self._talks.append(blocks)
        if len(self._talks) > 24:
            self._talks.pop(0)
        parent, digests = ROOT, []
        for block in blocks:
            parent = chain(parent, (block + 8,))
            digests.append(parent)
        tail = self._draw.between(1, BLOCK_TOKENS - 1)
        tokens = len(blocks) * BLOCK_TOKENS + tail
        return Prompt(
            tokens=tokens,
            digest=chain(parent, (tail,)),
            root=ROOT,
            pages=tuple(digests),
            chunks=tuple(digests),
            adoptable=len(digests),
        )

    def _ended(self, close: Close) -> None:
        if close.number in self._closed:
            raise ViolationError(f"request {close.number} ended twice")
        self._closed.add(close.number)
        if close.verdict is Verdict.COMPLETED:
            self._finished.check(self.spools[ROUTER].epochs[1], close.number)
        self.verdicts[Verdict(close.verdict).name.lower()] += 1

    def _open(self) -> bool:
        return self.router.machine.open_requests > 0

    def _busy(self) -> bool:
        """Whether a worker still runs something, if only an attempt that was given up."""
        return any(node.worker.machine.running_attempts() for node in self.workers.values())

    # ---- faults

    def _break(self, fault: Fault) -> None:
        match fault.kind:
            case FaultKind.CRASH_WORKER:
                if self.workers[fault.target].up:
                    self.workers[fault.target].crash()
                    self.timeline.after(fault.for_us, lambda: self._restart(fault.target))
            case FaultKind.PAUSE_WORKER:
                self.workers[fault.target].paused_until_us = self.timeline.now_us + fault.for_us
            case FaultKind.CRASH_WRITER:
                if self.writer.up:
                    self.writer.crash()
                    self.timeline.after(fault.for_us, self._restart_writer)
            case FaultKind.CUT_LINK:
                sender, _, receiver = fault.target.partition(">")
                self.network.cut.add((sender, receiver))
                self.timeline.after(
                    fault.for_us, lambda: self.network.cut.discard((sender, receiver))
                )
            case FaultKind.LOSE_MESSAGES:
                self.network.faults = NetworkFaults(
                    delay_us_max=40_000, lost_ppm=150_000, repeated_ppm=150_000
                )
                self.timeline.after(fault.for_us, self._calm_network)
            case FaultKind.FAIL_STORES:
                self.stores.failing_ppm = 500_000
                self.timeline.after(fault.for_us, self._calm_stores)

    def _restart(self, name: str) -> None:
        if not self.workers[name].up:
            self.workers[name] = self._new_worker(name)

    def _restart_writer(self) -> None:
        if not self.writer.up:
            self.writer.start()

    def _calm_network(self) -> None:
        self.network.faults = NetworkFaults()

    def _calm_stores(self) -> None:
        self.stores.failing_ppm = 0

    def _heal(self) -> None:
        self.network.cut.clear()
        self._calm_network()
        self._calm_stores()
        self._restart_writer()
        for name in self.workers:
            self._restart(name)

    def _new_worker(self, name: str) -> SimWorker:
        return SimWorker(
            _worker_start(name, self.settings),
            self.timeline,
            self.network,
            self.spools[name],
            self.stores,
            DeclaredCosts(
                prefill_ns_per_token=400_000,
                first_token_ns=4_000_000,
                decode_ns_per_token=1_000_000,
            ),
            self._finished.add_if_done,
        )

    # ---- what must hold

    def _check(self) -> None:
        if self.timeline.happened % 64 == 0:
            for node in self.workers.values():
                if node.up:
                    node.worker.machine.view.owner.check()

    def _drain(self) -> None:
        """Let everything that is spooled reach the log, and stop the workers cleanly."""
        for node in (self.router, *self.workers.values()):
            if isinstance(node, SimWorker):
                node.worker.machine.close()
            else:
                node.decider.keyframe()
            node._spool(node.decider)
        deadline_us = self.timeline.now_us + HEAL_US_MAX
        while self.timeline.now_us < deadline_us and any(
            spool.next_to_ship() for spool in self.spools.values()
        ):
            self.timeline.run_until(self.timeline.now_us + 200_000, self._check)

    def _check_end(self) -> None:
        if self._open():
            raise ViolationError(
                f"{self.router.machine.open_requests} requests are still open "
                f"{HEAL_US_MAX // 1_000_000} s after every fault has healed"
            )
        if len(self._closed) != self.submitted:
            raise ViolationError(f"{self.submitted} requests came, {len(self._closed)} ended")
        self._check_log()
        for name, node in self.workers.items():
            owner = node.worker.machine.view.owner
            owner.check()
            if owner.streams() or any(owner.promised_in_all()):
                raise ViolationError(f"{name} is idle and its book holds streams or promises")

    def _check_log(self) -> None:
        logged: dict[tuple[str, int], list[bytes]] = {}
        for frame in self.frames:
            for run in frame.runs():
                digests = logged.setdefault((run.client, run.client_epoch), [])
                digests += [transaction_digest(transaction) for transaction in run.transactions]
        for name, spool in self.spools.items():
            for epoch, transactions in spool.epochs.items():
                spooled = [transaction_digest(transaction) for transaction in transactions]
                if logged.get((name, epoch), []) != spooled:
                    raise ViolationError(
                        f"the log holds {len(logged.get((name, epoch), []))} transactions of "
                        f"{name} epoch {epoch}, spooled were {len(spooled)}, or others"
                    )
        check_story(self.frames, self.stores)

    def _digest(self) -> str:
        last = self.frames[-1].chain if self.frames else b""
        counted = f"{self.timeline.happened} {self.timeline.now_us}".encode()
        return hashlib.sha256(last + counted).hexdigest()


def _plan(settings: SimSettings, workers: list[str]) -> tuple[Fault, ...]:
    draw = Draw(settings.seed, "faults")
    faults = []
    at_us = draw.between(500_000, settings.fault_every_us + 500_000)
    while at_us < settings.simulated_us:
        kind = draw.pick(list(FaultKind))
        for_us = draw.between(50_000, 2_500_000)
        target = draw.pick(workers)
        if kind is FaultKind.CUT_LINK:
            ends = [draw.pick(workers), draw.pick([ROUTER, "writer"])]
            if draw.below(2):
                ends.reverse()
            target = ">".join(ends)
        elif kind in (FaultKind.CRASH_WRITER, FaultKind.LOSE_MESSAGES, FaultKind.FAIL_STORES):
            target = ""
        faults.append(Fault(at_us, kind, target, for_us))
        at_us += draw.between(settings.fault_every_us // 2, settings.fault_every_us * 3 // 2)
    return tuple(faults)


def _bound() -> tuple[Bound, ...]:
    rows = [bind(name) for name in EVALUATORS]
    return tuple(sorted(rows, key=lambda row: row.decision_kind))


def _worker_start(name: str, settings: SimSettings) -> WorkerStarted:
    return WorkerStarted(
        worker=name,
        worker_epoch=0,
        fingerprint=FINGERPRINT,
        pools=(PoolSpec("kv", 0, settings.pages, BLOCK_BYTES),),
        page_tokens=BLOCK_TOKENS,
        chunk_tokens=BLOCK_TOKENS,
        chunk_bytes=BLOCK_BYTES,
        checkpoint_tiers=(Tier.SSD, Tier.OBJECT),
        publish_queue_max=1_024,
        staging_bytes_max=BLOCK_BYTES,
        context_tokens=settings.pages * BLOCK_TOKENS,
        verify_rows=0,
        step_rows=settings.pages * BLOCK_TOKENS,
        lanes=settings.lanes,
        kept_columns_max=settings.pages,
        kept_nodes_max=settings.pages,
        reserve_output=True,
        costs=DeclaredCosts(prefill_ns_per_token=400_000).by_metric(),
        evaluators=_bound(),
        previous_epoch=0,
        previous_chain=b"",
    )


def _router_start() -> RouterStarted:
    return RouterStarted(
        router=ROUTER,
        router_epoch=1,
        fingerprint=FINGERPRINT,
        page_tokens=BLOCK_TOKENS,
        chunk_tokens=BLOCK_TOKENS,
        chunk_bytes=BLOCK_BYTES,
        reserve_output=True,
        evaluators=_bound(),
        previous_epoch=0,
        previous_chain=b"",
    )
