"""A router's policy-visible state, folded from its journal.

Owns what the router knew when it decided: the newest observation of each worker, what it has
booked with them since, and its open requests. Production folds each fact as it writes it; replay
folds the same facts again. Pure; reads no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.index import Entry
from pagetrail.catalog.kinds.content import Tier
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
from pagetrail.catalog.kinds.worker import Metric

from ..lookup import Catalog, PrefixLookup
from ..policy.inputs import RouteChoice, RouteInputs
from .candidates import CandidateTable, starts_of


class RouteRecorded(msgspec.Struct, frozen=True, array_like=True):
    """What a route decision read that its journal and the catalog do not imply.

    ``resident``: (worker, tokens) of the prompt that lie on a worker's device, by worker id; these
    travel in observations off the log.
    """

    lookup: PrefixLookup
    resident: tuple[tuple[str, int], ...]


class Booking(msgspec.Struct, array_like=True):
    """What one attempt takes of a worker until the worker's own observation shows it."""

    worker: str
    pages: int
    work_ns: int
    accepted: bool


class OpenRequest(msgspec.Struct, array_like=True):
    """A request that has not ended."""

    received: RequestReceived
    attempt: int
    excluded: list[str]


class RouterState(msgspec.Struct, array_like=True):
    """The view in its canonical form; mappings stand as sorted pairs."""

    workers: list[WorkerObserved]
    requests: list[tuple[int, OpenRequest]]
    bookings: list[tuple[tuple[int, int], Booking]]


class RouterView:
    """Fold of a router's commands."""

    def __init__(self, start: RouterStarted) -> None:
        self.start = start
        self.workers: dict[str, WorkerObserved] = {}
        self.requests: dict[int, OpenRequest] = {}
        self.bookings: dict[tuple[int, int], Booking] = {}
        self._booked: dict[str, set[tuple[int, int]]] = {}  # keys of the bookings by worker
        self._table = CandidateTable(start.fingerprint)

    # ---- fold

    def apply(self, command: msgspec.Struct) -> None:
        """Fold one command. Raises InvariantError, with nothing changed, for an illegal one."""
        _APPLY[type(command)](self, command)

    def _observed(self, seen: WorkerObserved) -> None:
        worker, epoch = seen.worker, seen.worker_epoch
        known = self.workers.get(worker)
        if known is not None:
            known_epoch = known.worker_epoch
            if epoch < known_epoch or (
                epoch == known_epoch and seen.observation <= known.observation
            ):
                raise InvariantError(
                    f"observation {seen.observation} of {worker} epoch {epoch} is "
                    f"not newer than {known.observation} of epoch {known_epoch}"
                )
            if epoch != known_epoch:
                for request in self.requests.values():
                    if worker in request.excluded:
                        request.excluded.remove(worker)
        self.workers[worker] = seen
        self._table.changed(worker)
        booked = self._booked.get(worker)
        if booked:
            for key in [key for key in booked if self.bookings[key].accepted]:
                self._unbook(key)

    def _expired(self, gone: WorkerExpired) -> None:
        known = self.workers.get(gone.worker)
        if known is not None and known.worker_epoch == gone.worker_epoch:
            del self.workers[gone.worker]
            self._table.changed(gone.worker)

    def _received(self, received: RequestReceived) -> None:
        if received.number in self.requests:
            raise InvariantError(f"request number {received.number} is taken")
        self.requests[received.number] = OpenRequest(received, 0, [])

    def _extended(self, extended: RequestExtended) -> None:
        request = self._request(extended.number)
        request.received = msgspec.structs.replace(
            request.received,
            prompt_tokens=extended.prompt_tokens,
            max_new_tokens=extended.max_new_tokens,
            prompt_digest=extended.prompt_digest,
        )

    def _offered(self, offer: RequestOffered) -> None:
        request = self._request(offer.number)
        if offer.attempt != request.attempt + 1:
            raise InvariantError(
                f"request {offer.number}: attempt {offer.attempt} after {request.attempt}"
            )
        request.attempt = offer.attempt
        booking = Booking(offer.worker, offer.booked_pages, offer.booked_ns, False)
        self._book((offer.number, offer.attempt), booking)
        if offer.worker not in request.excluded:
            request.excluded.append(offer.worker)

    def _answered(self, answered: OfferAnswered) -> None:
        key = (answered.number, answered.attempt)
        booking = self.bookings.get(key)
        if booking is None:
            return
        if answered.answer == Answer.ACCEPTED:
            booking.accepted = True
        else:
            self._unbook(key)

    def _ended(self, ended: AttemptEnded) -> None:
        self._unbook((ended.number, ended.attempt))
        if ended.completed:
            self._request(ended.number)
            del self.requests[ended.number]

    def _closed(self, closed: RequestClosed) -> None:
        request = self._request(closed.number)
        self._unbook((closed.number, request.attempt))
        del self.requests[closed.number]

    def _book(self, key: tuple[int, int], booking: Booking) -> None:
        self.bookings[key] = booking
        self._booked.setdefault(booking.worker, set()).add(key)
        self._table.changed(booking.worker)

    def _unbook(self, key: tuple[int, int]) -> None:
        booking = self.bookings.pop(key, None)
        if booking is not None:
            self._booked[booking.worker].remove(key)
            self._table.changed(booking.worker)

    def _request(self, number: int) -> OpenRequest:
        request = self.requests.get(number)
        if request is None:
            raise InvariantError(f"request number {number} is not open")
        return request

    # ---- inputs

    def root_of(self, number: int) -> bytes:
        """The root of a request's prefix chain."""
        return self._request(number).received.root

    def route_inputs(
        self, number: int, recorded: RouteRecorded, catalog: Catalog, entries: tuple[Entry, ...]
    ) -> RouteInputs:
        """The complete inputs of a route decision for an open request."""
        request, start = self._request(number), self.start
        workers = self._table.columns(self.workers, self._booked_at)
        ways = starts_of(
            self.workers, workers.ids, dict(recorded.resident), catalog, entries, start.chunk_tokens
        )
        # When every worker that can ever take it has had its turn the next round starts; attempts
        # stay bounded. One that never can must not keep it waiting for the others for ever.
        left = any(
            worker not in request.excluded and self._may_ever_take(seen, request.received)
            for worker, seen in self.workers.items()
        )
        return RouteInputs(
            request.received.prompt_tokens,
            request.received.max_new_tokens if start.reserve_output else 0,
            start.page_tokens,
            tuple(request.excluded) if left else (),
            *workers,
            *ways,
        )

    def _may_ever_take(self, seen: WorkerObserved, received: RequestReceived) -> bool:
        """Whether a worker could run a request if it had nothing else to do."""
        tokens = received.prompt_tokens
        if self.start.reserve_output:
            tokens += received.max_new_tokens
        pages = -(-(tokens + seen.verify_rows) // self.start.page_tokens)
        return (
            seen.fingerprint == self.start.fingerprint
            and tokens <= seen.context_tokens
            and (not seen.total_pages or pages <= seen.total_pages)
        )

    def booking_of(self, number: int, choice: RouteChoice) -> tuple[int, int]:
        """(pages, nanoseconds) of work that a choice takes of its worker."""
        received = self._request(number).received
        seen = self.workers[choice.worker]
        rows = received.prompt_tokens
        if self.start.reserve_output:
            rows += received.max_new_tokens + seen.verify_rows
        page_tokens = self.start.page_tokens
        resident = choice.tokens if choice.tier == Tier.DEVICE else 0
        pages = max(0, -(-rows // page_tokens) - resident // page_tokens)
        missing = max(0, received.prompt_tokens - 1 - choice.tokens)
        return pages, missing * seen.costs[Metric.PREFILL_NS_PER_TOKEN]

    def _booked_at(self, worker: str) -> tuple[int, int]:
        """(pages, nanoseconds of work) booked at a worker."""
        pages = work_ns = 0
        for key in self._booked.get(worker, ()):
            booking = self.bookings[key]
            pages += booking.pages
            work_ns += booking.work_ns
        return pages, work_ns

    # ---- canonical form

    def encode(self) -> bytes:
        """Equal views have equal bytes."""
        return msgspec.msgpack.encode(
            RouterState(
                [self.workers[worker] for worker in sorted(self.workers, key=str.encode)],
                sorted(self.requests.items(), key=lambda pair: pair[0]),
                sorted(self.bookings.items(), key=lambda pair: pair[0]),
            )
        )

    @classmethod
    def decode(cls, start: RouterStarted, state: bytes) -> RouterView:
        """The view that ``encode`` wrote."""
        read = msgspec.msgpack.decode(state, type=RouterState)
        view = cls(start)
        view.requests = dict(read.requests)
        for seen in read.workers:
            view.workers[seen.worker] = seen
            view._table.changed(seen.worker)
        for key, booking in read.bookings:
            view._book(key, booking)
        return view


_APPLY: dict[type[msgspec.Struct], Callable[[RouterView, Any], None]] = {
    WorkerObserved: RouterView._observed,
    WorkerExpired: RouterView._expired,
    RequestReceived: RouterView._received,
    RequestExtended: RouterView._extended,
    RequestOffered: RouterView._offered,
    OfferAnswered: RouterView._answered,
    AttemptEnded: RouterView._ended,
    RequestClosed: RouterView._closed,
}
