"""The router as a node of the simulated cluster: a thin interpreter of the real machine.

Its clients' requests end with it when it crashes; a new incarnation counts them from 1 again, and
greets every worker before it offers it anything.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from pagetrail.catalog.kinds.router import Answer, RouterStarted

from ..messages import (
    Answered,
    ArmOfferTimeout,
    CancelAttempt,
    Close,
    Ended,
    Incoming,
    Offer,
    RouterEffect,
)
from ..router import RouterMachine
from ..router_view import RouterView
from .clocks import SimClock
from .log import RETRY_US
from .nodes import (
    HEARTBEAT_US,
    Beat,
    Begin,
    Node,
    OfAttempt,
    Surroundings,
    Welcome,
)

EXPIRY_US = 800_000
OFFER_TIMEOUT_US = 400_000


class RouterWatch(Protocol):
    """What the world is told of a router, to judge by; see ``invariants``."""

    def performed(self, router_epoch: int, effect: RouterEffect) -> None:
        """The router lets an effect out."""

    def router_heard(self, router_epoch: int, word: Answered | Ended) -> None:
        """A worker's word reaches the router."""

    def expired(self, router_epoch: int, worker: str, worker_epoch: int) -> None:
        """The router gives a worker epoch up."""


class SimRouter(Node):
    """One incarnation of the gateway's router."""

    def __init__(
        self,
        start: RouterStarted,
        around: Surroundings,
        begin: Begin,
        clock: SimClock,
        watch: RouterWatch,
    ) -> None:
        super().__init__(start.router, around, begin)
        self._clock = clock
        self.epoch = self.spool.begin()
        start = msgspec.structs.replace(
            start,
            router_epoch=self.epoch,
            previous_epoch=begin.previous_epoch,
            previous_chain=begin.previous_chain,
        )
        self._decide_from(start, RouterView(start))
        self._watch = watch
        self._resident: dict[str, frozenset[bytes]] = {}
        self._page_tokens = start.page_tokens
        self._heard_us: dict[tuple[str, int], int] = {}
        self.machine = RouterMachine(self.decider, start, self.follower.index, self)
        self.flush()
        self._every(RETRY_US, self._ship)
        self._every(HEARTBEAT_US, self._expire)

    def submit(self, incoming: Incoming) -> int:
        """A client's request; returns its number."""
        number, effects = self.machine.received(incoming, self._clock.now_us())
        self._perform(effects)
        return number

    def cancel(self, number: int) -> None:
        """A client goes away."""
        self._awake(lambda: self._perform(self.machine.cancelled(number)))

    def tokens(self, prompt_pages: tuple[bytes, ...], workers: tuple[str, ...]) -> dict[str, int]:
        """``ResidentPrefixes`` as the last reports told."""
        found = {}
        for worker in workers:
            kept, columns = self._resident.get(worker, frozenset()), 0
            while columns < len(prompt_pages) and prompt_pages[columns] in kept:
                columns += 1
            found[worker] = columns * self._page_tokens
        return found

    def received(self, message: object) -> None:
        """A worker's report, answer or result."""
        match message:
            case Beat():
                self._beat(message)
            case OfAttempt():
                if message.router_epoch == self.epoch:
                    self._word(message.word)

    def _word(self, word: object) -> None:
        match word:
            case Answered():
                self._watch.router_heard(self.epoch, word)
                self._perform(self.machine.answered(word.number, word.attempt, word.answer))
            case Ended():
                self._watch.router_heard(self.epoch, word)
                self._perform(self.machine.ended(word))

    def _beat(self, beat: Beat) -> None:
        seen = beat.seen
        if beat.router_epoch != self.epoch:
            if beat.router_epoch < self.epoch:
                self.network.send(self.name, seen.worker, Welcome(self.epoch))
            return
        if not self.machine.heartbeat(seen):
            return
        key = (seen.worker, seen.worker_epoch)
        older = [known for known in self._heard_us if known[0] == seen.worker and known < key]
        self._heard_us[key] = self.timeline.now_us
        self._resident[seen.worker] = beat.resident
        for worker, epoch in older:
            self._give_up(worker, epoch)
        self._perform(self.machine.listed(seen.worker, seen.worker_epoch, beat.running))
        self._perform(self.machine.retry_waiting())

    def _expire(self) -> None:
        for (worker, epoch), heard_us in sorted(self._heard_us.items()):
            if self.timeline.now_us - heard_us > EXPIRY_US:
                self._resident.pop(worker, None)
                self._give_up(worker, epoch)

    def _give_up(self, worker: str, epoch: int) -> None:
        del self._heard_us[(worker, epoch)]
        self._watch.expired(self.epoch, worker, epoch)
        self._perform(self.machine.expired(worker, epoch))

    def _perform(self, effects: list[RouterEffect]) -> None:
        self.flush()
        for effect in effects:
            self._watch.performed(self.epoch, effect)
            match effect:
                case Offer() | CancelAttempt():
                    self.network.send(self.name, effect.worker, OfAttempt(self.epoch, effect))
                case ArmOfferTimeout():
                    self.timeline.after(OFFER_TIMEOUT_US, self._awake, self._timed_out, effect)
                case Close():
                    pass  # the watch has told the client

    def _timed_out(self, armed: ArmOfferTimeout) -> None:
        self._perform(self.machine.answered(armed.number, armed.attempt, Answer.TIMED_OUT))
