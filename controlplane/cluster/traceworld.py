"""A model-free cluster serving a trace under a logical clock.

The production router and worker machines, wired to each other by plain calls; time passes only
from event to event. Owns the order of events, which is total: by time, then by the order in which
they were arranged. The log and its catalog are behind ``Outlet``; whoever implements it does the
I/O. Bodies of facts depend on nothing but the trace and the settings, because a decision that
reads the catalog first waits until every earlier publication has been settled.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.kinds.router import Answer

from .deciding import Decider
from .messages import (
    Answered,
    CancelAttempt,
    Close,
    Ended,
    Incoming,
    Offer,
    RouterEffect,
    Verdict,
)
from .modelfree import Due, Later, ModelFreeWorker
from .router import RouterMachine


@dataclass(frozen=True, slots=True)
class Shown:
    """The log shows a transaction of a client; ``actual`` is set when it was refused."""

    client_seq: int
    refused: bool
    actual: bytes | None


class Outlet(Protocol):
    """The log as the world sees it."""

    def spool(self, client: str, transactions: list[Transaction]) -> None:
        """Take transactions over, durably enough to act on them."""

    def settle(self) -> dict[str, list[Shown]]:
        """Return when the catalog has caught up with all that was spooled.

        Answers, by client, every transaction shown since the last call.
        """


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request of the trace."""

    at_us: int
    incoming: Incoming


@dataclass(slots=True)
class Tally:
    """What became of the requests."""

    completed: int = 0
    failed: int = 0
    ttft_ns: list[int] = field(default_factory=list)


class OwnPrefixes:
    """Resident prefixes as the workers' own indexes answer; there is no distance here."""

    def __init__(self, workers: dict[str, ModelFreeWorker]) -> None:
        self._workers = workers

    def tokens(self, prompt_pages: tuple[bytes, ...], workers: tuple[str, ...]) -> dict[str, int]:
        """Tokens of the prompt that are resident, by worker."""
        return {
            worker: self._workers[worker].machine.resident_tokens(prompt_pages)
            for worker in workers
        }


class TraceWorld:
    """Router and workers around one clock."""

    def __init__(
        self,
        router: RouterMachine,
        router_decider: Decider,
        workers: dict[str, ModelFreeWorker],
        outlet: Outlet,
    ) -> None:
        self.now_us = 0
        self.tally = Tally()
        self._router = router
        self._router_decider = router_decider
        self._workers = workers
        self._outlet = outlet
        self._heap: list[tuple[int, int, str, Due]] = []
        self._order = 0
        self._arrived_us: dict[int, int] = {}
        self._offered_us: dict[int, int] = {}
        self._unsettled = True

    def serve(self, arrivals: Iterable[Arrival]) -> None:
        """Serve a trace to its end, and write the closing keyframes."""
        for arrival in arrivals:
            self._run_until(arrival.at_us)
            self.now_us = max(self.now_us, arrival.at_us)
            self._arrive(arrival)
        self._run_out()
        for worker in self._workers.values():
            worker.machine.close()
            self._spool(worker)
        self._router_decider.keyframe()
        self._spool_router()
        self._outlet.settle()

    # ---- events

    def _arrive(self, arrival: Arrival) -> None:
        self._settle_if_published()
        self._hear_all()
        number, effects = self._router.received(arrival.incoming, arrival.at_us)
        self._arrived_us[number] = arrival.at_us
        self._spool_router()
        self._perform(effects)

    def _run_until(self, at_us: int | None) -> None:
        while self._heap and (at_us is None or self._heap[0][0] <= at_us):
            self.now_us, _, name, due = heapq.heappop(self._heap)
            self._settle_if_published()
            worker = self._workers[name]
            self._later(name, worker.due(due, self.now_us))
            self._after(worker)

    def _run_out(self) -> None:
        """Run until nothing is under way; a request that even then does not fit has failed."""
        while True:
            self._run_until(None)
            self._settle()
            for name, worker in self._workers.items():
                self._later(name, worker.admit(self.now_us))
                self._after(worker)
            if not self._heap and not self._unsettled:
                for name, worker in self._workers.items():
                    self._later(name, worker.refuse_starved(self.now_us))
                    self._after(worker)
                if not self._heap:
                    break
        if self._router.open_requests:
            raise InvariantError(
                f"{self._router.open_requests} requests are open and nothing is under way; the "
                "machines have lost them"
            )

    def _perform(self, effects: list[RouterEffect]) -> None:
        for effect in effects:
            match effect:
                case Offer():
                    self._offered_us[effect.number] = self.now_us
                    worker = self._workers[effect.worker]
                    self._later(effect.worker, worker.offer(effect, self.now_us))
                    self._after(worker)
                case Close():
                    if effect.verdict is Verdict.COMPLETED:
                        self.tally.completed += 1
                    else:
                        self.tally.failed += 1
                    self._arrived_us.pop(effect.number)
                    self._offered_us.pop(effect.number, None)
                case CancelAttempt():
                    worker = self._workers[effect.worker]
                    for later in worker.cancel(effect.number, effect.attempt, self.now_us):
                        self._later(effect.worker, [later])
                    self._after(worker)
                case _:
                    pass  # an offer is answered at once here; its time-out never comes due

    def _after(self, worker: ModelFreeWorker) -> None:
        """Spool what a worker wrote, then let the router hear of it."""
        self._unsettled |= worker.publisher.pending > 0
        self._spool(worker)
        ended = False
        for answer in worker.take_answers():
            match answer:
                case Answered():
                    effects = self._router.answered(
                        answer.number, answer.attempt, Answer(answer.answer)
                    )
                case Ended():
                    ended = True
                    if answer.number in self._arrived_us:
                        waited_us = (
                            self._offered_us[answer.number] - self._arrived_us[answer.number]
                        )
                        self.tally.ttft_ns.append(waited_us * 1000 + answer.ttft_ns)
                    effects = self._router.ended(answer)
            self._spool_router()
            self._perform(effects)
        if ended and self._router.waiting_requests:
            self._settle_if_published()
            self._hear_all()
            effects = self._router.retry_waiting()
            self._spool_router()
            self._perform(effects)

    # ---- surroundings

    def _hear_all(self) -> None:
        for worker in self._workers.values():
            self._router.heartbeat(worker.machine.observe())

    def _later(self, name: str, later: list[Later]) -> None:
        for at_us, due in later:
            self._order += 1
            heapq.heappush(self._heap, (max(at_us, self.now_us), self._order, name, due))

    def _spool(self, worker: ModelFreeWorker) -> None:
        self._outlet.spool(worker.name, worker.machine.decider.drain())

    def _spool_router(self) -> None:
        self._outlet.spool("router", self._router_decider.drain())

    def _settle_if_published(self) -> None:
        if self._unsettled:
            self._settle()

    def _settle(self) -> None:
        shown = self._outlet.settle()
        for name in sorted(self._workers):
            worker = self._workers[name]
            for item in shown.get(name, []):
                if item.refused:
                    worker.publisher.refused(item.client_seq, item.actual)
                else:
                    worker.publisher.shown(item.client_seq)
            self._spool(worker)
        self._unsettled = any(worker.publisher.pending for worker in self._workers.values())
