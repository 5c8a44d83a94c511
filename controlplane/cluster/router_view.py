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

from ..lookup import Catalog, Holding, PrefixLookup, holdings
from ..policy.inputs import Boundary, RouteCandidate, RouteChoice, RouteInputs

RECOMPUTE = -1
MIB = 1024 * 1024


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


_Sources = tuple[WorkerObserved, int, tuple[Holding, ...], tuple[int, int]]
_Built = tuple[_Sources, RouteCandidate]
_NOTHING_BOOKED = (0, 0)


class RouterView:
    """Fold of a router's commands."""

    def __init__(self, start: RouterStarted) -> None:
        self.start = start
        self.workers: dict[str, WorkerObserved] = {}
        self.requests: dict[int, OpenRequest] = {}
        self.bookings: dict[tuple[int, int], Booking] = {}
        self._order: list[str] = []  # of the workers; stale when their number differs
        self._built: dict[str, _Built] = {}  # candidates, as of the last decision

    # ---- fold

    def apply(self, command: msgspec.Struct) -> None:
        """Fold one command. Raises InvariantError, with nothing changed, for an illegal one."""
        _APPLY[type(command)](self, command)

    def _observed(self, seen: WorkerObserved) -> None:
        known = self.workers.get(seen.worker)
        if known is not None and (seen.worker_epoch, seen.observation) <= (
            known.worker_epoch,
            known.observation,
        ):
            raise InvariantError(
                f"observation {seen.observation} of {seen.worker} epoch {seen.worker_epoch} is "
                f"not newer than {known.observation} of epoch {known.worker_epoch}"
            )
        if known is not None and known.worker_epoch != seen.worker_epoch:
            for request in self.requests.values():
                if seen.worker in request.excluded:
                    request.excluded.remove(seen.worker)
        self.workers[seen.worker] = seen
        for key in [
            key
            for key, booking in self.bookings.items()
            if booking.worker == seen.worker and booking.accepted
        ]:
            del self.bookings[key]

    def _expired(self, gone: WorkerExpired) -> None:
        known = self.workers.get(gone.worker)
        if known is not None and known.worker_epoch == gone.worker_epoch:
            del self.workers[gone.worker]
            self._order = []
            self._built.pop(gone.worker, None)

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
        self.bookings[(offer.number, offer.attempt)] = Booking(
            offer.worker, offer.booked_pages, offer.booked_ns, False
        )
        if offer.worker not in request.excluded:
            request.excluded.append(offer.worker)

    def _answered(self, answered: OfferAnswered) -> None:
        booking = self.bookings.get((answered.number, answered.attempt))
        if booking is None:
            return
        if answered.answer == Answer.ACCEPTED:
            booking.accepted = True
        else:
            del self.bookings[(answered.number, answered.attempt)]

    def _ended(self, ended: AttemptEnded) -> None:
        self.bookings.pop((ended.number, ended.attempt), None)
        if ended.completed:
            self._request(ended.number)
            del self.requests[ended.number]

    def _closed(self, closed: RequestClosed) -> None:
        request = self._request(closed.number)
        self.bookings.pop((closed.number, request.attempt), None)
        del self.requests[closed.number]

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
        request = self._request(number)
        resident = dict(recorded.resident)
        chunk_tokens = self.start.chunk_tokens
        shared: dict[int, tuple[Holding, ...]] = {0: holdings(catalog, entries, 0)}
        workers, built, booked = self.workers, self._built, self._booked()
        candidates = []
        for worker in self._in_order():
            here = resident.get(worker, 0)
            held = shared.get(here // chunk_tokens)
            if held is None:
                first = here // chunk_tokens
                held = shared[first] = holdings(catalog, entries, first)
            # A candidate is built again only when something that it is built from has changed.
            sources = (workers[worker], here, held, booked.get(worker, _NOTHING_BOOKED))
            known = built.get(worker)
            if known is None or known[0] != sources:
                known = built[worker] = (sources, _candidate(self, worker, *sources[1:]))
            candidates.append(known[1])
        # When every worker has had its turn the next round starts; attempts stay bounded.
        left = any(worker not in request.excluded for worker in self.workers)
        return RouteInputs(
            request.received.prompt_tokens,
            request.received.max_new_tokens if self.start.reserve_output else 0,
            tuple(request.excluded) if left else (),
            tuple(candidates),
        )

    def _in_order(self) -> list[str]:
        """Workers in byte order of their ids."""
        if len(self._order) != len(self.workers):
            self._order = sorted(self.workers, key=str.encode)
        return self._order

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

    def _booked(self) -> dict[str, tuple[int, int]]:
        sums: dict[str, tuple[int, int]] = {}
        for booking in self.bookings.values():
            pages, work_ns = sums.get(booking.worker, (0, 0))
            sums[booking.worker] = (pages + booking.pages, work_ns + booking.work_ns)
        return sums

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
        view.workers = {seen.worker: seen for seen in read.workers}
        view.requests = dict(read.requests)
        view.bookings = dict(read.bookings)
        return view


def _candidate(
    view: RouterView,
    worker: str,
    resident_tokens: int,
    held: tuple[Holding, ...],
    booked: tuple[int, int],
) -> RouteCandidate:
    seen = view.workers[worker]
    booked_pages, booked_ns = booked
    upload_ns = seen.costs[Metric.UPLOAD_NS_PER_MIB]
    boundaries = [Boundary(RECOMPUTE, 0, 0, 0)]
    if resident_tokens:
        boundaries.append(Boundary(Tier.DEVICE, resident_tokens, 0, 0))
    for holding in held:
        if holding.worker not in ("", worker):
            continue  # a peer's copy is reached through the peer tier, when there is one
        size = holding.missing_bytes
        boundaries.append(
            Boundary(
                holding.tier,
                holding.tokens,
                size * seen.costs[_READ_COST[holding.tier]] // MIB,
                size * upload_ns // MIB,
            )
        )
    return RouteCandidate(
        worker=worker,
        worker_epoch=seen.worker_epoch,
        online=seen.online,
        model_loaded=seen.fingerprint == view.start.fingerprint,
        context_tokens=seen.context_tokens,
        verify_rows=seen.verify_rows,
        page_tokens=view.start.page_tokens,
        free_pages=max(0, seen.free_pages - booked_pages),
        reclaimable_pages=seen.reclaimable_pages,
        queue_ns=seen.queue_ns + booked_ns,
        prefill_ns_per_token=seen.costs[Metric.PREFILL_NS_PER_TOKEN],
        first_token_ns=seen.costs[Metric.FIRST_TOKEN_NS],
        boundaries=tuple(boundaries),
    )


_READ_COST: dict[int, Metric] = {
    Tier.RAM: Metric.RAM_NS_PER_MIB,
    Tier.SSD: Metric.SSD_NS_PER_MIB,
    Tier.PEER: Metric.PEER_NS_PER_MIB,
    Tier.OBJECT: Metric.OBJECT_NS_PER_MIB,
}

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
