"""Faults carried out: how each kind breaks the simulated world, and how it heals."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from pagetrail.catalog.errors import InvariantError

from .faults import OF_A_CLOCK, OF_A_WORKER, Fault, FaultKind
from .network import NetworkFaults
from .nodes import ROUTER
from .stores import Mood
from .timeline import Draw
from .writer import SLOW_SYNC_US, SYNC_US

if TYPE_CHECKING:
    from .world import World

BAD_NETWORK = NetworkFaults(delay_us_max=300_000, lost_ppm=150_000, repeated_ppm=150_000)
STEP_US = 5_000_000  # of a clock
LOST_OBJECTS_PPM = 400_000

_MOODS = {
    FaultKind.FAIL_STORES: Mood.FAILING,
    FaultKind.LATE_STORES: Mood.LATE,
    FaultKind.PARTIAL_OBJECTS: Mood.PARTIAL,
    FaultKind.STALE_OBJECTS: Mood.STALE,
}

_OF_THE_WRITER = frozenset(
    {
        FaultKind.CRASH_WRITER,
        FaultKind.POWER_OFF_WRITER,
        FaultKind.TAKE_OVER_WRITER,
        FaultKind.TAKE_OVER_WHILE_SYNCING,
        FaultKind.BREAK_DISK,
        FaultKind.FILL_DISK,
        FaultKind.SLOW_DISK,
    }
)


class Breaking:
    """Breaks one world."""

    def __init__(self, world: World, draw: Draw) -> None:
        self._world = world
        self._draw = draw

    def arrange(self, faults: Iterable[Fault]) -> None:
        """Let the faults happen at their times."""
        for fault in faults:
            self._world.timeline.after(fault.at_us, self._break, fault)

    def heal(self) -> None:
        """End every fault, and start what is down. A process that stands still goes on later."""
        world = self._world
        world.network.cut.clear()
        self._calm_network()
        self._calm_stores()
        self._mend_disk()
        world.writer.settle()
        world.writer.start()
        for name in world.clocks:
            self._set_clock(name, 0)
        world.restart_router()
        for name in world.workers:
            world.spools[name].full = False
            world.restart_worker(name)

    def _break(self, fault: Fault) -> None:
        if fault.kind in OF_A_WORKER:
            self._break_worker(fault)
        elif fault.kind in OF_A_CLOCK:
            off_us = STEP_US if fault.kind is FaultKind.CLOCK_FORWARD else -STEP_US
            self._set_clock(fault.target, off_us)
            self._later(fault, self._set_clock, fault.target, 0)
        elif fault.kind in _MOODS:
            self._world.stores.become(_MOODS[fault.kind])
            self._later(fault, self._calm_stores)
        elif fault.kind in (FaultKind.CRASH_GATEWAY, FaultKind.PAUSE_GATEWAY):
            self._break_gateway(fault)
        elif fault.kind in _OF_THE_WRITER:
            self._break_writer(fault)
        else:
            self._break_rest(fault)

    def _later(self, fault: Fault, action: Callable[..., None], *arguments: object) -> None:
        self._world.timeline.after(fault.for_us, action, *arguments)

    def _break_worker(self, fault: Fault) -> None:
        world = self._world
        worker = world.workers[fault.target]
        match fault.kind:
            case FaultKind.PAUSE_WORKER:
                worker.paused_until_us = world.timeline.now_us + fault.for_us
            case FaultKind.FILL_SPOOL:
                world.spools[fault.target].full = True
                self._later(fault, self._empty_spool, fault.target)
            case _:
                if not worker.up:
                    return
                worker.crash()
                if fault.kind is FaultKind.POWER_OFF_WORKER:
                    world.network.silence(fault.target)
                    world.spools[fault.target].lose_unsynced(world.timeline.now_us)
                self._later(fault, world.restart_worker, fault.target)

    def _break_gateway(self, fault: Fault) -> None:
        world = self._world
        if fault.kind is FaultKind.PAUSE_GATEWAY:
            world.router.paused_until_us = world.timeline.now_us + fault.for_us
        elif world.router.up:
            world.crash_router()
            self._later(fault, world.restart_router)

    def _break_writer(self, fault: Fault) -> None:
        writer = self._world.writer
        match fault.kind:
            case FaultKind.CRASH_WRITER:
                writer.crash()
                self._later(fault, writer.start)
            case FaultKind.POWER_OFF_WRITER:
                writer.lose_power()
                self._later(fault, writer.start)
            case FaultKind.TAKE_OVER_WRITER:
                writer.take_over(self._misled())
                self._later(fault, writer.settle)
            case FaultKind.TAKE_OVER_WHILE_SYNCING:
                writer.take_over_while_syncing(self._misled())
                self._later(fault, writer.settle)
            case FaultKind.BREAK_DISK:
                writer.disk.broken = True
                self._later(fault, self._mend_disk)
            case FaultKind.FILL_DISK:
                writer.disk.full = True
                self._later(fault, self._mend_disk)
            case _:
                writer.sync_us = SLOW_SYNC_US
                self._later(fault, self._mend_disk)

    def _break_rest(self, fault: Fault) -> None:
        world = self._world
        match fault.kind:
            case FaultKind.CUT_LINK:
                sender, _, receiver = fault.target.partition(">")
                world.network.cut.add((sender, receiver))
                self._later(fault, world.network.cut.discard, (sender, receiver))
            case FaultKind.LOSE_MESSAGES:
                world.network.faults = BAD_NETWORK
                self._later(fault, self._calm_network)
            case FaultKind.LOSE_OBJECTS:
                world.stores.lose(fault.target, LOST_OBJECTS_PPM)
            case _:
                raise InvariantError(f"nothing breaks by {fault.kind}")

    def _misled(self) -> frozenset[str]:
        names = [ROUTER, *self._world.workers]
        return frozenset(name for name in names if self._draw.below(2))

    def _set_clock(self, name: str, off_us: int) -> None:
        self._world.clocks[name].off_us = off_us

    def _empty_spool(self, name: str) -> None:
        self._world.spools[name].full = False

    def _calm_network(self) -> None:
        self._world.network.faults = NetworkFaults()

    def _calm_stores(self) -> None:
        self._world.stores.become(Mood.SOUND)

    def _mend_disk(self) -> None:
        writer = self._world.writer
        writer.disk.broken = writer.disk.full = False
        writer.sync_us = SYNC_US
