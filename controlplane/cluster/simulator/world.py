"""One simulated run: a cluster, a workload, a plan of faults, and what must hold.

A run is a function of its settings, the seed among them: the same events in the same order, the
same facts, byte for byte. What is checked while it runs is in ``invariants``. Checked at the end,
after every fault has healed: every request has ended within a bound; the log holds exactly what was
spooled, once, and a loss of power at this moment takes nothing of it; nothing is left in the books;
the log tells what happened (``story``). That every decision derives again is the caller's to check
from ``reads``.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from functools import partial

from .breaking import Breaking
from .clocks import SimClock
from .disk import SimDisk
from .faults import plan
from .invariants import Invariants, ViolationError
from .log import WRITER, ReadFrame, SimSpool
from .network import Network, NetworkFaults
from .nodes import ROUTER, Begin, Node, SimWorker, Surroundings
from .router_node import SimRouter
from .setting import COSTS, SimReport, SimSettings, router_start, worker_name, worker_start
from .starting import Starter
from .stores import Stores
from .story import check_spools, check_story
from .timeline import Draw, Timeline
from .workload import Workload
from .writer import SimWriter, scan

HEAL_US_MAX = 60_000_000
QUIET_US = 2_000_000
STEP_US = 500_000
FIRST_REQUEST_US = 400_000  # the cluster has found itself by then


class World:
    """See the module."""

    def __init__(self, settings: SimSettings) -> None:
        self.settings = settings
        seed = settings.seed
        self.timeline = Timeline()
        self.network = Network(self.timeline, Draw(seed, "network"), NetworkFaults())
        self.stores = Stores(self.timeline, Draw(seed, "stores"))
        names = [worker_name(number) for number in range(settings.workers)]
        self._numbers = {name: number for number, name in enumerate(names)}
        self.clocks = {name: SimClock(self.timeline) for name in (ROUTER, WRITER)}
        self.writer = SimWriter(
            self.timeline,
            self.network,
            SimDisk(Draw(seed, "disk")),
            self.clocks[WRITER],
            [ROUTER, *names],
        )
        self.spools = {name: SimSpool(name) for name in (ROUTER, *names)}
        self.invariants = Invariants()
        self.faults = (
            plan(seed, names, settings.simulated_us, settings.fault_every_us)
            if settings.faults is None
            else settings.faults
        )
        self._around = Surroundings(self.timeline, self.network)
        self._workload = Workload(Draw(seed, "workload"))
        self._starting: dict[str, Starter] = {}
        self.router: SimRouter
        self.workers: dict[str, SimWorker] = {}
        self.writer.start()
        self._begin_router(Begin(self.spools[ROUTER], None))
        for name in names:
            self._begin_worker(name, Begin(self.spools[name], None))
        self._breaking = Breaking(self, Draw(seed, "breaking"))

    @property
    def reads(self) -> list[ReadFrame]:
        """The log as the writer made it durable, decoded."""
        return self.writer.reads

    def run(self) -> SimReport:
        """Run to the end. A violation ends it early and is part of the report."""
        violation = ""
        try:
            self.timeline.after(FIRST_REQUEST_US, self._submit)
            self._breaking.arrange(self.faults)
            self.timeline.run_until(self.settings.simulated_us)
            self._breaking.heal()
            self._settle()
            self._drain()
            self._check_end()
        except Exception as error:  # whatever a process dies of is a violation
            violation = f"{type(error).__name__} at {self.timeline.now_us} us: {error}"
        last = self.reads[-1].frame if self.reads else None
        counted = f"{self.timeline.happened} {self.timeline.now_us}".encode()
        return SimReport(
            seed=self.settings.seed,
            requests=self.invariants.submitted,
            verdicts=dict(sorted(self.invariants.verdicts.items())),
            events=self.timeline.happened,
            facts=last.next_seq if last else 0,
            simulated_us=self.timeline.now_us,
            faults=dict(sorted(Counter(str(fault.kind) for fault in self.faults).items())),
            violation=violation,
            digest=hashlib.sha256((last.chain if last else b"") + counted).hexdigest(),
        )

    # ---- processes

    def restart_worker(self, name: str) -> None:
        """Start a worker that is down."""
        if not self.workers[name].up:
            self._start(name, partial(self._begin_worker, name))

    def crash_router(self) -> None:
        """Kill the gateway; its clients see it."""
        self.invariants.gateway_lost(self.router.epoch)
        self.router.crash()

    def restart_router(self) -> None:
        """Start the gateway when it is down."""
        if not self.router.up:
            self._start(ROUTER, self._begin_router)

    def _start(self, name: str, begun: Callable[[Begin], None]) -> None:
        """A process that starts; it ends in the call of ``begun``."""
        if name not in self._starting:
            self._starting[name] = Starter(name, self._around, self.spools[name], begun)

    def _begin_worker(self, name: str, begin: Begin) -> None:
        self._starting.pop(name, None)
        start = worker_start(self._numbers[name], self.settings)
        self.workers[name] = SimWorker(
            start, self._around, begin, self.stores, COSTS, self.invariants
        )

    def _begin_router(self, begin: Begin) -> None:
        self._starting.pop(ROUTER, None)
        self.router = SimRouter(
            router_start(), self._around, begin, self.clocks[ROUTER], self.invariants
        )

    # ---- clients

    def _submit(self) -> None:
        if self.timeline.now_us >= self.settings.simulated_us:
            return
        gap_us = self._workload.gap_us(self.settings.requests_per_s)
        self.timeline.after(gap_us, self._submit)
        incoming = self._workload.next(f"sim-{self.invariants.submitted + 1}")
        patience_us = self._workload.patience_us()
        router = self.router
        if not router.up:
            self.invariants.refused()
            return
        self.invariants.submitted += 1
        number = router.submit(incoming)
        self.invariants.received((router.epoch, number))
        if patience_us:
            self.timeline.after(patience_us, router.cancel, number)

    # ---- the end

    def _settle(self) -> None:
        """Until nothing is open, runs, or may still be on its way."""
        end_us = self.timeline.now_us + HEAL_US_MAX
        quiet_us = 0
        while quiet_us < QUIET_US and self.timeline.now_us < end_us:
            self.timeline.run_until(self.timeline.now_us + STEP_US)
            quiet_us = 0 if self.invariants.open_requests or self._busy() else quiet_us + STEP_US

    def _busy(self) -> bool:
        """Whether a process starts, or a worker still runs something that was given up."""
        return bool(self._starting) or any(
            worker.machine.running_attempts() for worker in self.workers.values()
        )

    def _drain(self) -> None:
        """Let everything that is spooled reach the log, and stop the processes cleanly."""
        nodes: list[Node] = [self.router, *self.workers.values()]
        for worker in self.workers.values():
            worker.machine.close()
        self.router.decider.keyframe()
        for node in nodes:
            node.flush()
        end_us = self.timeline.now_us + HEAL_US_MAX
        while self.timeline.now_us < end_us and any(
            spool.next_to_ship() for spool in self.spools.values()
        ):
            self.timeline.run_until(self.timeline.now_us + STEP_US // 2)

    def _check_end(self) -> None:
        invariants = self.invariants
        if invariants.open_requests:
            raise ViolationError(
                f"{invariants.open_requests} requests are still open "
                f"{HEAL_US_MAX // 1_000_000} s after every fault has healed"
            )
        if invariants.verdicts.total() != invariants.submitted:
            raise ViolationError(
                f"{invariants.submitted} requests came, {invariants.verdicts.total()} ended"
            )
        for name, worker in self.workers.items():
            owner = worker.machine.view.owner
            owner.check()
            if owner.streams() or any(owner.promised_in_all()):
                raise ViolationError(f"{name} is idle and its book holds streams or promises")
        self.writer.lose_power()
        frames, _ = scan(self.writer.disk)
        if [frame.chain for frame in frames] != [read.frame.chain for read in self.reads]:
            raise ViolationError(
                f"{len(self.reads)} frames were acknowledged; after a loss of power the disk "
                f"holds {len(frames)}, or others"
            )
        check_spools(self.reads, self.spools)
        check_story(self.reads, self.stores.received)
