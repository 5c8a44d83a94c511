"""The router machine: which worker gets which request, and what happens when that fails.

Theory of operation. A request is RECEIVED, then OFFERED to one worker at a time, then ASSIGNED to
the worker that accepts; it ends COMPLETED, FAILED or CANCELLED. An assignment is the pair
(request, attempt), attempts count from 1, and every answer, result, time-out and booking carries
its pair: what belongs to an older attempt changes nothing but that attempt's own booking. A
time-out cancels the attempt before the next offer goes out. A request that no worker can take now,
but one might later, waits here and is tried again, in order of arrival, when a worker reports.

Owns the router's journal and view. Does no I/O and reads no clock: events are method calls with
the time as an argument, effects are returned.

    phase      event            next       effects
    RECEIVED   route: a worker  OFFERED    Offer, ArmOfferTimeout
    RECEIVED   route: none now  RECEIVED   -
    RECEIVED   route: never     FAILED     Close
    OFFERED    accepted         ASSIGNED   -
    OFFERED    declined         RECEIVED   (route again)
    OFFERED    timed out        RECEIVED   CancelAttempt (route again)
    OFFERED    ended            as ASSIGNED (the answer was lost)
    ASSIGNED   ended, done      COMPLETED  Close
    ASSIGNED   ended, error     RECEIVED   (route again, from the boundary reached)
    ASSIGNED   worker expired   RECEIVED   (route again)
    any open   cancelled        CANCELLED  CancelAttempt, Close
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import msgspec

from pagetrail.catalog.envelope import Cause
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.decision import Outcome
from pagetrail.catalog.kinds.router import (
    Answer,
    AttemptEnded,
    OfferAnswered,
    RequestClosed,
    RequestExtended,
    RequestOffered,
    RequestReceived,
    RouterStarted,
    WorkerExpired,
    WorkerObserved,
)
from pagetrail.catalog.kinds.worker import FinishReason

from ..lookup import Catalog, look_up
from ..policy.inputs import RouteChoice, RouteInputs, RouteReason
from .deciding import Decider
from .messages import (
    ArmOfferTimeout,
    CancelAttempt,
    Close,
    Ended,
    Incoming,
    Offer,
    RouterEffect,
    Verdict,
)
from .router_view import RouteRecorded, RouterView

ATTEMPTS_MAX = 8

_LASTING = frozenset(
    {
        RouteReason.CONTEXT_EXCEEDED,
        RouteReason.MODEL_NOT_LOADED,
        RouteReason.PREFIX_LONGER_THAN_REQUEST,
    }
)


class Phase(IntEnum):
    """Where an open request stands."""

    RECEIVED = 0
    OFFERED = 1
    ASSIGNED = 2


class ResidentPrefixes(Protocol):
    """What lies on the workers' devices, as their events told; never in the catalog."""

    def tokens(self, prompt_pages: tuple[bytes, ...], workers: tuple[str, ...]) -> dict[str, int]:
        """Tokens of the prompt that are resident, by worker; workers with none may be absent."""


@dataclass(slots=True)
class _Live:
    number: int
    incoming: Incoming
    phase: Phase
    attempt: int
    worker: str
    worker_epoch: int
    generated: int
    decided: Cause | None
    waiting: bool


class RouterMachine:
    """One router; see the module's theory of operation."""

    def __init__(
        self,
        decider: Decider,
        start: RouterStarted,
        catalog: Catalog,
        resident: ResidentPrefixes,
    ) -> None:
        self._decider = decider
        self._view: RouterView = decider.view
        self._start = start
        self._catalog = catalog
        self._resident = resident
        self._heartbeats: dict[str, WorkerObserved] = {}
        self._open: dict[int, _Live] = {}
        self._next_number = 1

    @property
    def open_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._open)

    @property
    def waiting_requests(self) -> int:
        """Open requests that no worker could take yet."""
        return sum(live.phase is Phase.RECEIVED for live in self._open.values())

    # ---- events from clients

    def received(self, incoming: Incoming, now_us: int) -> tuple[int, list[RouterEffect]]:
        """A request arrives. Returns its number and what follows."""
        number = self._next_number
        self._next_number += 1
        prompt = incoming.prompt
        self._decider.write(
            [
                RequestReceived(
                    number=number,
                    request=incoming.request,
                    tenant=incoming.tenant,
                    priority=incoming.priority,
                    arrival_us=now_us,
                    prompt_tokens=prompt.tokens,
                    max_new_tokens=incoming.max_new_tokens,
                    prompt_digest=prompt.digest,
                    root=prompt.root,
                )
            ]
        )
        live = _Live(number, incoming, Phase.RECEIVED, 0, "", 0, 0, None, False)
        self._open[number] = live
        return number, self._route(live)

    def cancelled(self, number: int) -> list[RouterEffect]:
        """The client went away."""
        live = self._open.pop(number, None)
        if live is None:
            return []
        self._decider.write([RequestClosed(number, FinishReason.CANCELLED)])
        effects: list[RouterEffect] = []
        if live.phase is not Phase.RECEIVED:
            effects.append(CancelAttempt(number, live.attempt, live.worker))
        effects.append(Close(number, Verdict.CANCELLED, FinishReason.CANCELLED))
        return effects

    # ---- events from workers

    def heartbeat(self, seen: WorkerObserved) -> bool:
        """A worker reports. Only strictly newer reports count; returns whether this one did."""
        known = self._heartbeats.get(seen.worker)
        if known is not None and (known.worker_epoch, known.observation) >= (
            seen.worker_epoch,
            seen.observation,
        ):
            return False
        self._heartbeats[seen.worker] = seen
        return True

    def listed(
        self, worker: str, worker_epoch: int, running: Set[tuple[int, int]]
    ) -> list[RouterEffect]:
        """A worker says which attempts it runs. One that is assigned to it and missing there is
        offered again: a worker that has ended it tells the result again, so a lost result is
        found; otherwise it runs it after all.
        """
        effects: list[RouterEffect] = []
        for live in self._open.values():
            if (
                live.phase is Phase.ASSIGNED
                and (live.worker, live.worker_epoch) == (worker, worker_epoch)
                and (live.number, live.attempt) not in running
            ):
                effects.append(self._offer(live))
        return effects

    def retry_waiting(self) -> list[RouterEffect]:
        """Route again what waits, in order of arrival."""
        effects: list[RouterEffect] = []
        for live in [live for live in self._open.values() if live.phase is Phase.RECEIVED]:
            effects += self._route(live)
        return effects

    def expired(self, worker: str, worker_epoch: int) -> list[RouterEffect]:
        """A worker's reports stopped, or it restarted. Fenced by the epoch the expiry was armed
        for: a newer epoch's reports stay, and only what ran in the older one is routed again.
        """
        known = self._heartbeats.get(worker)
        if known is not None and known.worker_epoch == worker_epoch:
            del self._heartbeats[worker]
            self._decider.write([WorkerExpired(worker, worker_epoch)])
        effects: list[RouterEffect] = []
        for live in list(self._open.values()):
            if live.worker == worker and live.worker_epoch == worker_epoch:
                if live.phase is Phase.RECEIVED:
                    continue
                self._decider.write([AttemptEnded(live.number, live.attempt, False)])
                effects += self._again(live)
        return effects

    def answered(self, number: int, attempt: int, answer: Answer) -> list[RouterEffect]:
        """An offer was accepted, declined, or not answered in time."""
        live = self._open.get(number)
        if live is None or live.attempt != attempt or live.phase is not Phase.OFFERED:
            return []
        self._decider.write([OfferAnswered(number, attempt, answer)])
        if answer is Answer.ACCEPTED:
            live.phase = Phase.ASSIGNED
            return []
        effects: list[RouterEffect] = []
        if answer is Answer.TIMED_OUT:
            effects.append(CancelAttempt(number, attempt, live.worker))
        return effects + self._again(live)

    def progressed(self, number: int, attempt: int, generated: int) -> bool:
        """Tokens reached the client. False: an older attempt's, to be dropped."""
        live = self._open.get(number)
        if live is None or live.attempt != attempt or live.phase is Phase.RECEIVED:
            return False
        live.generated = generated
        return True

    def extended(self, number: int, incoming: Incoming) -> None:
        """The next attempt's prompt: the first one with the tokens that were sent since.

        To be said before the event that ends the running attempt.
        """
        live = self._open.get(number)
        if live is None or live.incoming.prompt.digest == incoming.prompt.digest:
            return
        live.incoming = incoming
        self._decider.write(
            [
                RequestExtended(
                    number,
                    incoming.prompt.tokens,
                    incoming.max_new_tokens,
                    incoming.prompt.digest,
                )
            ]
        )

    def assigned_to(self, worker: str, worker_epoch: int) -> list[int]:
        """Requests whose running attempt is at one worker epoch."""
        return [
            live.number
            for live in self._open.values()
            if (live.worker, live.worker_epoch) == (worker, worker_epoch)
            and live.phase is not Phase.RECEIVED
        ]

    def ended(self, ended: Ended) -> list[RouterEffect]:
        """An attempt ended at its worker."""
        live = self._open.get(ended.number)
        if live is None or live.attempt != ended.attempt or live.phase is Phase.RECEIVED:
            return []
        done = ended.reason in (FinishReason.STOP, FinishReason.LENGTH)
        self._decider.write([AttemptEnded(ended.number, ended.attempt, done)])
        if not done:
            return self._again(live)
        del self._open[ended.number]
        if live.decided is not None:
            self._decider.write(
                [
                    Outcome(
                        KindId.ROUTE,
                        ended.number,
                        (ended.ttft_ns, ended.cached_tokens, ended.attempt),
                    )
                ],
                causes=[live.decided],
            )
        self._decider.keyframe_if_due()
        return [Close(ended.number, Verdict.COMPLETED, ended.reason)]

    # ---- deciding

    def _again(self, live: _Live) -> list[RouterEffect]:
        live.phase = Phase.RECEIVED
        if live.attempt >= ATTEMPTS_MAX:
            return self._fail(live, Verdict.FAILED)
        return self._route(live)

    def _route(self, live: _Live) -> list[RouterEffect]:
        self._record_observations()
        prompt = live.incoming.prompt
        lookup, entries = look_up(self._catalog, self._start.fingerprint, prompt.reusable_chunks)
        workers = tuple(self._view.workers)
        resident = self._resident.tokens(prompt.reusable_pages, workers)
        recorded = RouteRecorded(
            lookup,
            tuple(
                (worker, min(tokens, prompt.tokens - 1))
                for worker, tokens in sorted(resident.items())
                if tokens
            ),
        )
        inputs = self._view.route_inputs(live.number, recorded, self._catalog, entries)
        evaluation, decided = self._decider.evaluate(
            KindId.ROUTE, inputs, live.number, self._catalog.position, recorded
        )
        choice: RouteChoice = evaluation.choice
        if not choice.worker:
            never = self._never(inputs, evaluation.columns)
            if live.waiting and not never and evaluation.reason == RouteReason.NO_WORKER:
                return []  # the decision to wait stands; deciding the same again is no news
            live.waiting = True
            live.decided = self._decider.write([decided])
            return self._fail(live, Verdict.TOO_LONG) if never else []
        attempt = live.attempt + 1
        booked_pages, booked_ns = self._view.booking_of(live.number, choice)
        live.decided = self._decider.write(
            [
                decided,
                RequestOffered(
                    number=live.number,
                    attempt=attempt,
                    worker=choice.worker,
                    worker_epoch=choice.worker_epoch,
                    booked_pages=booked_pages,
                    booked_ns=booked_ns,
                ),
            ]
        )
        live.attempt, live.phase, live.waiting = attempt, Phase.OFFERED, False
        live.worker, live.worker_epoch = choice.worker, choice.worker_epoch
        return [
            self._offer(live),
            ArmOfferTimeout(live.number, attempt),
        ]

    def _offer(self, live: _Live) -> Offer:
        return Offer(
            live.number,
            live.attempt,
            live.worker,
            live.worker_epoch,
            live.incoming,
            live.generated,
        )

    def _record_observations(self) -> None:
        """The first decision that uses a report records it."""
        for worker in sorted(self._heartbeats):
            seen = self._heartbeats[worker]
            known = self._view.workers.get(worker)
            if known is not None:
                aged = msgspec.structs.replace(seen, observation=known.observation)
                if aged == known:
                    continue  # nothing a policy reads has changed
            self._decider.write([seen])

    def _never(self, inputs: RouteInputs, columns: tuple[tuple[int, ...], ...]) -> bool:
        """Whether none of the workers that are heard will ever take the request."""
        force = self._decider.table[KindId.ROUTE]
        names = [term.name for term in force.evaluator.terms]
        read = [names.index(name) for name in ("candidate", "reason", "required_pages")]
        rows = list(zip(*[columns[place] for place in read], strict=True)) if columns else []
        needed: dict[int, int] = {}  # pages by candidate, without what lies there already
        for place, _, pages in rows:
            needed[place] = max(pages, needed.get(place, 0))
        return bool(inputs.workers) and all(
            self._lasts(inputs.workers[place], reason, needed[place]) for place, reason, _ in rows
        )

    def _lasts(self, worker: str, reason: int, needed_pages: int) -> bool:
        """Whether waiting cannot make an alternative at this worker possible."""
        if reason in _LASTING:
            return True
        total_pages = self._view.workers[worker].total_pages
        return 0 < total_pages < needed_pages

    def _fail(self, live: _Live, verdict: Verdict) -> list[RouterEffect]:
        del self._open[live.number]
        self._decider.write([RequestClosed(live.number, FinishReason.ERROR)])
        return [Close(live.number, verdict, FinishReason.ERROR)]
