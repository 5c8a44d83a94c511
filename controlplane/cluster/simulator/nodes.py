"""Router and workers as nodes of the simulated cluster: thin interpreters of the real machines.

A node is an incarnation of a machine with its spool, its follower of the log and its network
handler. Everything in memory dies with the incarnation; the spool and what the tiers hold do not.
Effects are carried out as the production processes do: spool first, then send.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from pagetrail.catalog.envelope import Run
from pagetrail.catalog.facts import KindId, decode_body
from pagetrail.catalog.kinds.content import Tier, WorkerEpoch
from pagetrail.catalog.kinds.router import Answer, RouterStarted, WorkerObserved
from pagetrail.catalog.kinds.system import Refused
from pagetrail.catalog.kinds.worker import WorkerStarted
from pagetrail.controlplane.journal import Journal
from pagetrail.controlplane.policy.recorder import REFERENCE
from pagetrail.controlplane.view import WorkerView

from ..deciding import Decider
from ..messages import (
    Answered,
    ArmOfferTimeout,
    CancelAttempt,
    Close,
    Ended,
    Incoming,
    Offer,
    Restore,
    RouterEffect,
)
from ..modelfree import DeclaredCosts, Later, ModelFreeWorker
from ..publisher import Publisher
from ..router import RouterMachine
from ..router_view import RouterView
from ..worker import WorkerMachine
from .log import RETRY_US, WRITER, Fetch, Fetched, Follower, Live, ShipAnswer, SimSpool
from .network import Network
from .timeline import Draw, Timeline

ROUTER = "router"
HEARTBEAT_US = 100_000
EXPIRY_US = 600_000
OFFER_TIMEOUT_US = 400_000
KEYFRAME_EVERY = 200


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker's report with everything that lies on its device."""

    seen: WorkerObserved
    resident: frozenset[bytes]
    running: frozenset[tuple[int, int]]


@dataclass(slots=True)
class Stores:
    """What the tiers hold, and how often they fail. Survives every crash."""

    draw: Draw
    failing_ppm: int = 0
    objects: set[tuple[str, int, bytes]] = field(default_factory=set)  # (holder, tier, prefix)

    def view_of(self, worker: str) -> WorkerStores:
        """The stores as one worker reaches them."""
        return WorkerStores(self, worker)


@dataclass(slots=True)
class WorkerStores:
    """``Tiers`` with faults: a write may fail or be lost later, a read may find nothing."""

    stores: Stores
    worker: str

    def restored_tokens(self, effect: Restore, chunk_tokens: int) -> int:
        """Verified tokens: up to the first chunk that is missing or unreadable."""
        reached = effect.first_token
        first = effect.first_token // chunk_tokens
        for place, prefix in enumerate(effect.chunks):
            key = (self._holder(effect.tier), effect.tier, prefix)
            if key not in self.stores.objects or self.stores.draw.ppm(self.stores.failing_ppm):
                break
            reached = min((first + place + 1) * chunk_tokens, effect.tokens)
        return reached

    def stored_in(self, prefix: bytes, tiers: tuple[int, ...]) -> tuple[tuple[int, str], ...]:
        """Receipts of the tiers that took the chunk."""
        receipts = []
        for tier in tiers:
            if not self.stores.draw.ppm(self.stores.failing_ppm):
                self.stores.objects.add((self._holder(tier), tier, prefix))
                receipts.append((tier, prefix.hex()))
        return tuple(receipts)

    def _holder(self, tier: int) -> str:
        return "" if tier == Tier.OBJECT else self.worker


class Node:
    """What router and worker share: an incarnation that spools, ships and follows."""

    decider: Decider

    def __init__(self, name: str, timeline: Timeline, network: Network, spool: SimSpool) -> None:
        self.name = name
        self.timeline = timeline
        self.network = network
        self.spool = spool
        self.follower = Follower()
        self.up = True
        self.paused_until_us = 0
        self.epoch, self.previous = spool.begin()
        network.attach(name, self._heard)
        self._every(RETRY_US, self._ship)

    def crash(self) -> None:
        """Everything in memory is gone."""
        self.up = False
        self.network.detach(self.name)

    def _every(self, period_us: int, action: Callable[[], None]) -> None:
        def again() -> None:
            if self.up:
                self._awake(action)
                self.timeline.after(period_us, again)

        self.timeline.after(period_us, again)

    def _awake(self, action: Callable[[], None]) -> None:
        """Run an action now, or when a paused process goes on."""
        wait_us = self.paused_until_us - self.timeline.now_us
        if wait_us > 0:
            self.timeline.after(wait_us, lambda: self._awake(action) if self.up else None)
        elif self.up:
            action()

    def _heard(self, sender: str, message: object) -> None:
        self._awake(lambda: self._take(sender, message))

    def _take(self, sender: str, message: object) -> None:
        match message:
            case ShipAnswer():
                self.spool.answered(message)
                self._ship()
            case Live() | Fetched():
                self._followed(self.follower.heard(message))
                if self.follower.behind and isinstance(message, Live):
                    self.network.send(self.name, WRITER, Fetch(self.follower.next_seq))
            case _:
                self.received(sender, message)

    def _ship(self) -> None:
        ship = self.spool.next_to_ship()
        if ship is not None:
            self.network.send(self.name, WRITER, ship)

    def _spool(self, decider: Decider) -> None:
        written = decider.drain()
        if written:
            idle = self.spool.next_to_ship() is None
            self.spool.append(self.epoch, written)
            if idle:
                self._ship()

    def _followed(self, runs: list[Run]) -> None:
        raise NotImplementedError

    def received(self, sender: str, message: object) -> None:
        """A message of the cluster."""
        raise NotImplementedError


class SimWorker(Node):
    """One worker incarnation."""

    def __init__(
        self,
        start: WorkerStarted,
        timeline: Timeline,
        network: Network,
        spool: SimSpool,
        stores: Stores,
        costs: DeclaredCosts,
        ended: Callable[[Ended], None],
    ) -> None:
        super().__init__(start.worker, timeline, network, spool)
        start = with_epoch(start, self.epoch, self.previous)
        decider = Decider(
            Journal(start.worker, self.epoch),
            WorkerView(start),
            start.evaluators,
            REFERENCE,
            KEYFRAME_EVERY,
        )
        decider.write([start])
        decider.write([WorkerEpoch(start.worker, self.epoch, "")])
        machine = WorkerMachine(decider, start, self.follower.index)
        self.decider = decider
        self.worker = ModelFreeWorker(
            machine, Publisher(machine), costs, stores.view_of(start.worker)
        )
        self._ended = ended
        self._spool(decider)
        self._every(HEARTBEAT_US, self._beat)

    def received(self, sender: str, message: object) -> None:
        """An offer or a cancellation."""
        now_us = self.timeline.now_us
        match message:
            case Offer():
                self._later(self.worker.offer(message, now_us))
            case CancelAttempt():
                self._later(self.worker.cancel(message.number, message.attempt, now_us))

    def _beat(self) -> None:
        self._later(self.worker.admit(self.timeline.now_us))
        machine = self.worker.machine
        resident = frozenset(machine.prefix.digests())
        self.network.send(
            self.name, ROUTER, Beat(machine.observe(), resident, machine.running_attempts())
        )

    def _followed(self, runs: list[Run]) -> None:
        publisher = self.worker.publisher
        for run in runs:
            if (run.client, run.client_epoch) != (self.name, self.epoch):
                continue
            for transaction in run.transactions:
                first = transaction.facts[0]
                if first.kind == KindId.REFUSED:
                    refused = decode_body(first.kind, first.schema_v, first.body)
                    actual = refused.actual if isinstance(refused, Refused) else None
                    publisher.refused(transaction.client_seq, actual)
                else:
                    publisher.shown(transaction.client_seq)
        self._later(self.worker.admit(self.timeline.now_us))

    def _later(self, later: list[Later]) -> None:
        self._spool(self.decider)
        for at_us, due in later:
            self.timeline.after(
                at_us - self.timeline.now_us,
                lambda due=due: self._awake(  # type: ignore[misc]
                    lambda: self._later(self.worker.due(due, self.timeline.now_us))
                ),
            )
        for answer in self.worker.take_answers():
            if isinstance(answer, Ended):
                self._ended(answer)
            self.network.send(self.name, ROUTER, answer)


class SimRouter(Node):
    """The gateway's router."""

    def __init__(
        self,
        start: RouterStarted,
        timeline: Timeline,
        network: Network,
        spool: SimSpool,
        closed: Callable[[Close], None],
    ) -> None:
        super().__init__(ROUTER, timeline, network, spool)
        self.decider = Decider(
            Journal(ROUTER, self.epoch),
            RouterView(start),
            start.evaluators,
            REFERENCE,
            KEYFRAME_EVERY,
        )
        self.decider.write([start])
        self._closed = closed
        self._resident: dict[str, frozenset[bytes]] = {}
        self._page_tokens = start.page_tokens
        self._heard_us: dict[tuple[str, int], int] = {}
        self.machine = RouterMachine(self.decider, start, self.follower.index, self)
        self._spool(self.decider)
        self._every(HEARTBEAT_US, self._expire)

    def submit(self, incoming: Incoming) -> None:
        """A client's request."""
        _, effects = self.machine.received(incoming, self.timeline.now_us)
        self._perform(effects)

    def tokens(self, prompt_pages: tuple[bytes, ...], workers: tuple[str, ...]) -> dict[str, int]:
        """``ResidentPrefixes`` as the last reports told."""
        found = {}
        for worker in workers:
            kept, columns = self._resident.get(worker, frozenset()), 0
            while columns < len(prompt_pages) and prompt_pages[columns] in kept:
                columns += 1
            found[worker] = columns * self._page_tokens
        return found

    def received(self, sender: str, message: object) -> None:
        """A worker's report, answer or result."""
        match message:
            case Beat():
                self._beat(message)
            case Answered():
                self._perform(
                    self.machine.answered(message.number, message.attempt, Answer(message.answer))
                )
            case Ended():
                self._perform(self.machine.ended(message))

    def _beat(self, beat: Beat) -> None:
        seen = beat.seen
        if not self.machine.heartbeat(seen):
            return
        key = (seen.worker, seen.worker_epoch)
        older = [known for known in self._heard_us if known[0] == seen.worker and known < key]
        self._heard_us[key] = self.timeline.now_us
        self._resident[seen.worker] = beat.resident
        for worker, epoch in older:
            del self._heard_us[(worker, epoch)]
            self._perform(self.machine.expired(worker, epoch))
        self._perform(self.machine.listed(seen.worker, seen.worker_epoch, beat.running))
        self._perform(self.machine.retry_waiting())

    def _expire(self) -> None:
        for (worker, epoch), heard_us in sorted(self._heard_us.items()):
            if self.timeline.now_us - heard_us > EXPIRY_US:
                del self._heard_us[(worker, epoch)]
                self._resident.pop(worker, None)
                self._perform(self.machine.expired(worker, epoch))

    def _perform(self, effects: list[RouterEffect]) -> None:
        self._spool(self.decider)
        for effect in effects:
            match effect:
                case Offer() | CancelAttempt():
                    self.network.send(ROUTER, effect.worker, effect)
                case ArmOfferTimeout():
                    self.timeline.after(
                        OFFER_TIMEOUT_US,
                        lambda effect=effect: self._awake(  # type: ignore[misc]
                            lambda: self._timed_out(effect)
                        ),
                    )
                case Close():
                    self._closed(effect)

    def _timed_out(self, armed: ArmOfferTimeout) -> None:
        self._perform(self.machine.answered(armed.number, armed.attempt, Answer.TIMED_OUT))

    def _followed(self, runs: list[Run]) -> None:
        pass


def with_epoch(start: WorkerStarted, epoch: int, previous: Journal | None) -> WorkerStarted:
    """A start fact for an incarnation."""
    return msgspec.structs.replace(
        start,
        worker_epoch=epoch,
        previous_epoch=previous.client_epoch if previous is not None else 0,
        previous_chain=previous.chain if previous is not None else b"",
    )
