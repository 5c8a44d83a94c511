"""Mistakes to plant into the production machines, and what the simulator must say to each.

``seeds`` tells how many seeds it took when the table was last measured, with ``settings_of``; a
mistake that needs more than three hundred is not caught.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import msgspec
import pytest

from pagetrail.catalog.kinds.worker import AdoptionUndone, RowsAdvanced
from pagetrail.controlplane.cluster.messages import CancelAttempt, Ended, Offer
from pagetrail.controlplane.cluster.publisher import Publisher
from pagetrail.controlplane.cluster.router import RouterMachine
from pagetrail.controlplane.cluster.simulator.disk import SimDisk
from pagetrail.controlplane.cluster.simulator.faults import Fault, FaultKind
from pagetrail.controlplane.cluster.simulator.setting import SimSettings
from pagetrail.controlplane.cluster.simulator.stores import WorkerStores
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.cluster.worker_state import WorkerState
from pagetrail.controlplane.log import committer
from pagetrail.controlplane.log.books import ClientBooks
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.sequencer import Sequencer
from pagetrail.controlplane.pages.books import Books
from pagetrail.controlplane.pages.owner import PageOwner
from pagetrail.controlplane.tiers.restoring import Restoring

Patch = pytest.MonkeyPatch
SHORT = SimSettings(
    seed=0, simulated_us=4_000_000, workers=3, requests_per_s=15, fault_every_us=400_000
)


@dataclass(frozen=True, slots=True)
class Planted:
    """A mistake. ``faults`` None: drawn from the seed; ``says``: a part of what is found."""

    name: str
    plant: Callable[[Patch], None]
    seeds: int
    says: str
    faults: tuple[Fault, ...] | None = None


def settings_of(planted: Planted, seed: int) -> SimSettings:
    """The run with which a mistake is looked for."""
    return msgspec.structs.replace(SHORT, seed=seed, faults=planted.faults)


def _pauses() -> tuple[Fault, ...]:
    """Workers that stand still a little longer than the router waits for them, in turn."""
    return tuple(
        Fault(500_000 + 250_000 * turn, FaultKind.PAUSE_WORKER, f"worker-{turn % 3}", 1_000_000)
        for turn in range(12)
    )


# ---------------------------------------------------------------- fences


def attempt_fence_dropped(patch: Patch) -> None:
    """A result of any attempt ends the request."""
    ended = RouterMachine.ended

    def unfenced(self: RouterMachine, result: Ended) -> object:
        live = self._open.get(result.number)
        return ended(self, replace(result, attempt=live.attempt if live else result.attempt))

    patch.setattr(RouterMachine, "ended", unfenced)


def writer_fence_dropped(patch: Patch) -> None:
    """A writer that another has replaced goes on acknowledging."""
    patch.setattr(committer, "check_not_fenced", lambda slots, writer_epoch: None)


def old_worker_epoch_accepted(patch: Patch) -> None:
    """An offer to the worker's life before is taken."""
    offered = WorkerMachine.offered

    def careless(self: WorkerMachine, offer: Offer, now_us: int) -> object:
        return offered(self, replace(offer, worker_epoch=self.start.worker_epoch), now_us)

    patch.setattr(WorkerMachine, "offered", careless)


def old_reports_accepted(patch: Patch) -> None:
    """A report that is not newer than the last counts."""

    def careless(self: RouterMachine, seen: object) -> bool:
        self._heartbeats[seen.worker] = seen  # type: ignore[attr-defined, assignment]
        return True

    patch.setattr(RouterMachine, "heartbeat", careless)


# ---------------------------------------------------------------- pages


def pages_released_twice(patch: Patch) -> None:
    """Whoever lets go of shared pages lets go twice."""
    drop = Books.drop_holders

    def twice(self: Books, run: object, count: int, freed: object) -> None:
        more = count + 1 if run.holders > count else count  # type: ignore[attr-defined]
        drop(self, run, more, freed)  # type: ignore[arg-type]

    patch.setattr(Books, "drop_holders", twice)


def hold_forgotten_on_abort(patch: Patch) -> None:
    """An adoption that is undone keeps its holds."""
    apply = PageOwner.apply

    def forgetful(self: PageOwner, command: msgspec.Struct) -> None:
        with pytest.MonkeyPatch.context() as inner:
            if isinstance(command, AdoptionUndone):
                inner.setattr(Books, "drop_holders", lambda *arguments: None)
            apply(self, command)

    patch.setattr(PageOwner, "apply", forgetful)


def stream_forgotten(patch: Patch) -> None:
    """A stream ends and its pages are not given back."""

    def forget(self: WorkerMachine, stream: int) -> object:
        live = self._state.live[stream]
        return self._state.forget(live, live.finish)

    patch.setattr(WorkerMachine, "closed", forget)


def advances_unrecorded(patch: Patch) -> None:
    """Streams grow and no fact says so."""

    def unrecorded(self: WorkerState) -> None:
        if self.advanced:
            self.view.owner.apply(RowsAdvanced(tuple(sorted(self.advanced.items()))))
            self.advanced.clear()

    patch.setattr(WorkerState, "flush_advanced", unrecorded)


# ---------------------------------------------------------------- tiers


def published_before_the_receipt(patch: Patch) -> None:
    """A chunk is published when it was sent to a store, not when the store has it."""
    stored_in = WorkerStores.stored_in

    def hasty(self: WorkerStores, prefix: bytes, tiers: tuple[int, ...]) -> object:
        stored_in(self, prefix, tiers)
        return tuple((tier, prefix.hex()) for tier in tiers)

    patch.setattr(WorkerStores, "stored_in", hasty)


def published_over_a_gap(patch: Patch) -> None:
    """A chunk is published though the one before it was not stored."""
    patch.setattr(Publisher, "_continues", lambda self, prompt, chunk: True)


def unwritten_rows_counted(patch: Patch) -> None:
    """A restore counts what it asked for."""
    patch.setattr(Restoring, "_rows", lambda self: self.tokens - self.first_token)


def unverified_bytes_written(patch: Patch) -> None:
    """A read that brought other bytes counts like one that brought the right ones."""
    arrived = Restoring.arrived

    def trusting(self: Restoring, place: int, verified: bool, corrupt: bool = False) -> object:
        return arrived(self, place, verified or corrupt, False)

    patch.setattr(Restoring, "arrived", trusting)


# ---------------------------------------------------------------- messages


def cancel_skipped_on_time_out(patch: Patch) -> None:
    """A time-out moves a request on and does not tell the worker that had it."""
    answered = RouterMachine.answered

    def silent(self: RouterMachine, *arguments: object) -> object:
        effects = answered(self, *arguments)  # type: ignore[arg-type]
        return [effect for effect in effects if not isinstance(effect, CancelAttempt)]

    patch.setattr(RouterMachine, "answered", silent)


def cancel_skipped_when_a_client_goes(patch: Patch) -> None:
    """A client goes away and its request runs on."""
    cancelled = RouterMachine.cancelled

    def silent(self: RouterMachine, number: int) -> object:
        effects = cancelled(self, number)
        return [effect for effect in effects if not isinstance(effect, CancelAttempt)]

    patch.setattr(RouterMachine, "cancelled", silent)


def lost_results_stay_lost(patch: Patch) -> None:
    """Nobody asks again for a result that the network has lost."""
    patch.setattr(RouterMachine, "listed", lambda self, worker, epoch, running: [])


# ---------------------------------------------------------------- log


def dedup_lost_at_restart(patch: Patch) -> None:
    """A writer that comes back does not know what its clients have sent."""
    replay = Sequencer.replay

    def forgetful(self: Sequencer, frames: object) -> None:
        replay(self, frames)  # type: ignore[arg-type]
        self._books = ClientBooks(LogLimits().answers)

    patch.setattr(Sequencer, "replay", forgetful)


def acknowledged_before_it_is_durable(patch: Patch) -> None:
    """The writer does not sync."""

    def lazy(self: SimDisk, descriptor: int) -> None:
        self.while_syncing = None

    patch.setattr(SimDisk, "fdatasync", lazy)


PLANTED = (
    Planted("drop a fence: attempts", attempt_fence_dropped, 1, "not told to give up", _pauses()),
    Planted("drop a fence: writers", writer_fence_dropped, 3, "acknowledged"),
    Planted("accept an old epoch: offers", old_worker_epoch_accepted, 11, "offered it was to"),
    Planted("accept an old epoch: reports", old_reports_accepted, 7, "is not newer than"),
    Planted("release twice", pages_released_twice, 1, ""),
    Planted("forget a hold on abort", hold_forgotten_on_abort, 1, "holders and has"),
    Planted("forget a stream", stream_forgotten, 1, ""),
    Planted("leave advances unrecorded", advances_unrecorded, 1, "replay: "),
    Planted("publish before the receipt", published_before_the_receipt, 1, "was never stored"),
    Planted("publish over a gap", published_over_a_gap, 1, "before the chunk it continues"),
    Planted("count unwritten rows", unwritten_rows_counted, 1, "was never verified"),
    Planted("write unverified bytes", unverified_bytes_written, 1, "was never verified"),
    Planted("skip the cancel: time-outs", cancel_skipped_on_time_out, 2, "was not told to give up"),
    Planted(
        "skip the cancel: clients", cancel_skipped_when_a_client_goes, 2, "was not told to give up"
    ),
    Planted("let lost results stay lost", lost_results_stay_lost, 9, "still open"),
    Planted("dedup lost at restart", dedup_lost_at_restart, 1, ""),
    Planted("acknowledge before durable", acknowledged_before_it_is_durable, 1, ""),
)
