"""What must hold in a simulated cluster while it runs, judged from outside the machines.

After each event that a worker acted in: its book adds up, every time by its counts, and every
``BOOK_EVERY`` events by counting each page and hold again. After each effect that leaves the router
and each word that reaches it: every request ends once; a request completes only with an attempt
that some worker has brought to its end; the attempt before is over, or was told to give up, before
another one goes out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.kinds.router import Answer
from pagetrail.catalog.kinds.worker import FinishReason

from ..messages import Answered, CancelAttempt, Close, Ended, Offer, RouterEffect, Verdict
from .nodes import SimWorker

BOOK_EVERY = 256
_DONE = (FinishReason.STOP, FinishReason.LENGTH)
Request = tuple[int, int]  # (router epoch, number)


class ViolationError(InvariantError):
    """Something that must hold did not."""


@dataclass(slots=True)
class _Attempt:
    attempt: int
    worker: str
    worker_epoch: int
    over: bool = False


class Invariants:
    """See the module. ``verdicts`` count how requests ended for their clients."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        self.submitted = 0
        self._open: dict[Request, _Attempt | None] = {}
        self._ended: set[Request] = set()
        self._done: set[tuple[int, int, int]] = set()
        self._events: Counter[str] = Counter()

    # ---- requests

    @property
    def open_requests(self) -> int:
        """Requests whose clients wait."""
        return len(self._open)

    def received(self, request: Request) -> None:
        """A client's request has reached a router; it may have ended at once."""
        if request not in self._ended:
            self._open.setdefault(request, None)

    def refused(self) -> None:
        """A client finds no gateway."""
        self.submitted += 1
        self.verdicts["refused"] += 1

    def gateway_lost(self, router_epoch: int) -> None:
        """Clients of a router that is gone lose their connections."""
        for request in [request for request in self._open if request[0] == router_epoch]:
            self._end(request, "lost")

    def worker_ended(self, router_epoch: int, ended: Ended) -> None:
        """A worker tells how an attempt ended."""
        if ended.reason in _DONE:
            self._done.add((router_epoch, ended.number, ended.attempt))

    def performed(self, router_epoch: int, effect: RouterEffect) -> None:
        """The router lets an effect out."""
        match effect:
            case Offer():
                self._offered((router_epoch, effect.number), effect)
            case CancelAttempt():
                self._over((router_epoch, effect.number), effect.attempt)
            case Close():
                self._closed((router_epoch, effect.number), effect)
            case _:
                pass

    def router_heard(self, router_epoch: int, word: Answered | Ended) -> None:
        """A worker's word reaches the router."""
        if isinstance(word, Ended) or word.answer is Answer.DECLINED:
            self._over((router_epoch, word.number), word.attempt)

    def expired(self, router_epoch: int, worker: str, worker_epoch: int) -> None:
        """The router gives a worker epoch up."""
        for request, attempt in self._open.items():
            if (
                attempt is not None
                and request[0] == router_epoch
                and (attempt.worker, attempt.worker_epoch) == (worker, worker_epoch)
            ):
                attempt.over = True

    def _offered(self, request: Request, offer: Offer) -> None:
        before = self._open.get(request)
        if before is not None and before.attempt == offer.attempt:
            return  # the same attempt once more
        if before is not None and not before.over:
            raise ViolationError(
                f"request {request[1]} is offered as attempt {offer.attempt} while attempt "
                f"{before.attempt} runs at {before.worker} and was not told to give up"
            )
        self._open[request] = _Attempt(offer.attempt, offer.worker, offer.worker_epoch)

    def _over(self, request: Request, attempt: int) -> None:
        known = self._open.get(request)
        if known is not None and known.attempt == attempt:
            known.over = True

    def _closed(self, request: Request, close: Close) -> None:
        attempt = self._open.get(request)
        if attempt is not None and not attempt.over:
            raise ViolationError(
                f"request {request[1]} ended while attempt {attempt.attempt} runs at "
                f"{attempt.worker} and was not told to give up"
            )
        verdict = Verdict(close.verdict)
        if verdict is Verdict.COMPLETED and (
            attempt is None or (*request, attempt.attempt) not in self._done
        ):
            raise ViolationError(
                f"request {request[1]} completed with "
                + (f"attempt {attempt.attempt}" if attempt is not None else "no attempt")
                + ", which no worker has finished"
            )
        self._end(request, verdict.name.lower())

    def _end(self, request: Request, verdict: str) -> None:
        if request in self._ended:
            raise ViolationError(f"request {request[1]} of router epoch {request[0]} ended twice")
        self._ended.add(request)
        self._open.pop(request, None)
        self.verdicts[verdict] += 1

    # ---- books

    def acted(self, worker: SimWorker) -> None:
        """A worker has done something."""
        self._events[worker.name] += 1
        owner = worker.machine.view.owner
        if self._events[worker.name] % BOOK_EVERY == 0:
            owner.check()
            return
        total, free, held = owner.total(), owner.free(), owner.held()
        promised = owner.promised_in_all()
        streams = [owner.promised(stream) for stream in owner.streams()]
        for group, pages in enumerate(total):
            if free[group] + held[group] != pages or not 0 <= promised[group] <= free[group]:
                raise ViolationError(
                    f"{worker.name} has {free[group]} pages free, {held[group]} held and "
                    f"{promised[group]} promised, of {pages}"
                )
            if sum(one[group] for one in streams) != promised[group]:
                raise ViolationError(
                    f"{worker.name} has promised {promised[group]} pages in all, its streams may "
                    f"take {sum(one[group] for one in streams)}"
                )
