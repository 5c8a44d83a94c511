"""Workers as nodes of the simulated cluster: thin interpreters of the real machines.

A node is an incarnation of a machine with its spool, its follower of the log and its network
handler. Everything in memory dies with the incarnation; the spool and what the tiers hold do not.
Effects are carried out as the production processes do: spool first, then send. The router's node
is in ``router_node``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from pagetrail.catalog.envelope import Run
from pagetrail.catalog.facts import KindId, decode_body
from pagetrail.catalog.kinds.content import WorkerEpoch
from pagetrail.catalog.kinds.router import Answer, RouterStarted, WorkerObserved
from pagetrail.catalog.kinds.system import Refused
from pagetrail.catalog.kinds.worker import WorkerStarted
from pagetrail.controlplane.journal import Journal
from pagetrail.controlplane.policy.recorder import REFERENCE
from pagetrail.controlplane.view import WorkerView

from ..deciding import Decider
from ..messages import Answered, CancelAttempt, Ended, Offer
from ..modelfree import DeclaredCosts, Due, Later, ModelFreeWorker, RestoreDue
from ..publisher import Publisher
from ..router_view import RouterView
from ..worker import WorkerMachine
from .log import RETRY_US, WRITER, Fetch, Fetched, Follower, Live, ShipAnswer, SimSpool
from .network import Network
from .stores import Stores, WorkerStores
from .timeline import Timeline

ROUTER = "router"
HEARTBEAT_US = 200_000
KEYFRAME_EVERY = 200


@dataclass(frozen=True, slots=True)
class Beat:
    """A worker's report with everything that lies on its device, and the router it obeys."""

    seen: WorkerObserved
    resident: frozenset[bytes]
    running: frozenset[tuple[int, int]]
    router_epoch: int


@dataclass(frozen=True, slots=True)
class Welcome:
    """A router greets a worker; attempts of earlier epochs of the router are given up."""

    router_epoch: int


@dataclass(frozen=True, slots=True)
class OfAttempt:
    """A word about an attempt; what belongs to another epoch of the router is dropped."""

    router_epoch: int
    word: Offer | CancelAttempt | Answered | Ended


class Watch(Protocol):
    """What the world is told, to judge by; see ``invariants``."""

    def acted(self, worker: SimWorker) -> None:
        """A worker has done something."""

    def worker_ended(self, router_epoch: int, ended: Ended) -> None:
        """A worker tells how an attempt ended."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every node stands in."""

    timeline: Timeline
    network: Network


@dataclass(frozen=True, slots=True)
class Begin:
    """What an incarnation begins with: its spool, and what it has read of the log."""

    spool: SimSpool
    previous: Journal | None  # where its epoch before ended in the log
    follower: Follower = field(default_factory=Follower)

    @property
    def previous_epoch(self) -> int:
        """The epoch before; 0: there was none."""
        return self.previous.client_epoch if self.previous is not None else 0

    @property
    def previous_chain(self) -> bytes:
        """The chain where it ended."""
        return self.previous.chain if self.previous is not None else b""


class Node:
    """What router and worker share: an incarnation that spools, ships and follows."""

    decider: Decider

    def __init__(self, name: str, around: Surroundings, begin: Begin) -> None:
        self.name = name
        self.timeline = around.timeline
        self.network = around.network
        self.spool = begin.spool
        self.follower = begin.follower
        self.up = True
        self.epoch = 0
        self.paused_until_us = 0
        self.network.attach(name, self._heard)

    def _decide_from(
        self, start: WorkerStarted | RouterStarted, view: WorkerView | RouterView
    ) -> None:
        """Begin this incarnation's journal with its start fact."""
        journal = Journal(self.name, self.epoch)
        self.decider = Decider(journal, view, start.evaluators, REFERENCE, KEYFRAME_EVERY)
        self.decider.write([start])

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

    def _awake(self, action: Callable[..., None], *arguments: object) -> None:
        """Run an action now, or when a paused process goes on."""
        if not self.up:
            return
        wait_us = self.paused_until_us - self.timeline.now_us
        if wait_us > 0:
            self.timeline.after(wait_us, self._awake, action, *arguments)
        else:
            action(*arguments)

    def _heard(self, sender: str, message: object) -> None:
        self._awake(self._take, sender, message)

    def _take(self, sender: str, message: object) -> None:
        match message:
            case ShipAnswer():
                self.spool.answered(message)
                self._ship()
            case Live() | Fetched():
                runs = self.follower.heard(message)
                if runs:
                    self.followed(runs)
                if self.follower.behind and isinstance(message, Live):
                    self.network.send(self.name, WRITER, Fetch(self.follower.next_seq))
            case _:
                self.received(message)

    def _ship(self) -> None:
        ship = self.spool.next_to_ship()
        if ship is not None:
            self.network.send(self.name, WRITER, ship)

    def flush(self) -> None:
        """Spool what was decided; it is shipped when nothing else is on its way."""
        written = self.decider.drain()
        if written:
            idle = self.spool.next_to_ship() is None
            self.spool.append(self.epoch, written, self.timeline.now_us)
            if idle:
                self._ship()

    def followed(self, runs: list[Run]) -> None:
        """New runs of the log."""

    def received(self, message: object) -> None:
        """A message of the cluster."""


class SimWorker(Node):
    """One worker incarnation. Its device takes time by the timeline, which never steps."""

    def __init__(
        self,
        start: WorkerStarted,
        around: Surroundings,
        begin: Begin,
        stores: Stores,
        costs: DeclaredCosts,
        watch: Watch,
    ) -> None:
        super().__init__(start.worker, around, begin)
        self.epoch = self.spool.begin()
        start = msgspec.structs.replace(
            start,
            worker_epoch=self.epoch,
            previous_epoch=begin.previous_epoch,
            previous_chain=begin.previous_chain,
        )
        self._decide_from(start, WorkerView(start))
        self.decider.write([WorkerEpoch(start.worker, self.epoch, "")])
        self.machine = WorkerMachine(self.decider, start, self.follower.index)
        self._stores = WorkerStores(
            stores, start.worker, self.epoch, start.fingerprint, self.follower.index
        )
        self.worker = ModelFreeWorker(self.machine, Publisher(self.machine), costs, self._stores)
        self._watch = watch
        self._router_epoch = 0
        self._greeted = 0  # by a newer router, whose offers wait until the old attempts have ended
        self._under_way = 0
        self.flush()
        self._every(RETRY_US, self._ship)
        self._every(HEARTBEAT_US, self._beat)

    def received(self, message: object) -> None:
        """A greeting, an offer or a cancellation."""
        match message:
            case OfAttempt():
                self._attempt(message)
            case Welcome():
                if message.router_epoch > max(self._greeted, self._router_epoch):
                    self._greeted = message.router_epoch
                    for number, attempt in sorted(self.machine.running_attempts()):
                        self._later(self.worker.cancel(number, attempt, self.timeline.now_us))
                    self._obey()

    def _attempt(self, message: OfAttempt) -> None:
        if message.router_epoch != self._router_epoch or self._greeted:
            return
        word, now_us = message.word, self.timeline.now_us
        match word:
            case Offer():
                key = (word.number, word.attempt)
                if self.spool.full and key not in self.machine.running_attempts():
                    self._send(Answered(*key, Answer.DECLINED))
                    return
                self._later(self.worker.offer(word, now_us))
            case CancelAttempt():
                self._later(self.worker.cancel(word.number, word.attempt, now_us))

    def _obey(self) -> None:
        """Nothing runs for the router before: from now on the one that greeted is obeyed."""
        if self._greeted and not self.machine.running_attempts():
            self.machine.router_restarted()
            self._router_epoch, self._greeted = self._greeted, 0

    def _beat(self) -> None:
        now_us = self.timeline.now_us
        self._later(self.worker.admit(now_us))
        if not self._under_way and not self.worker.publisher.pending:
            self._later(self.worker.refuse_starved(now_us))
        self._obey()
        machine = self.machine
        beat = Beat(
            machine.observe(),
            frozenset(machine.prefix.digests()),
            machine.running_attempts(),
            self._router_epoch,
        )
        self.network.send(self.name, ROUTER, beat)

    def followed(self, runs: list[Run]) -> None:
        """What the log shows of this epoch has been published, or refused."""
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
        """Spool what was decided, then arrange what comes due and tell the router."""
        self.flush()
        for at_us, due in later:
            wait_us = at_us - self.timeline.now_us
            if isinstance(due, RestoreDue):
                wait_us += self._stores.read_late_us
            self._under_way += 1
            self.timeline.after(wait_us, self._awake, self._due, due)
        for answer in self.worker.take_answers():
            if isinstance(answer, Ended):
                self._watch.worker_ended(self._router_epoch, answer)
            self._send(answer)
        self._watch.acted(self)

    def _due(self, due: Due) -> None:
        self._under_way -= 1
        self._later(self.worker.due(due, self.timeline.now_us))
        self._obey()

    def _send(self, word: Answered | Ended) -> None:
        self.network.send(self.name, ROUTER, OfAttempt(self._router_epoch, word))
