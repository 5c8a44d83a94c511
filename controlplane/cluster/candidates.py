"""What a router's workers offer a request, column by column.

Owns the columns that do not depend on the request, kept from decision to decision and built again
only for workers of which something has changed since. Pure; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

from pagetrail.catalog.index import Entry
from pagetrail.catalog.kinds.content import Tier
from pagetrail.catalog.kinds.router import WorkerObserved
from pagetrail.catalog.kinds.worker import Metric

from ..lookup import Catalog, Holding, holdings

RECOMPUTE = -1
MIB = 1024 * 1024

# Plain integers: members of an enumeration are slower to look up.
_DEVICE = int(Tier.DEVICE)
_PREFILL = int(Metric.PREFILL_NS_PER_TOKEN)
_FIRST_TOKEN = int(Metric.FIRST_TOKEN_NS)
_UPLOAD = int(Metric.UPLOAD_NS_PER_MIB)
_READ_COST = {
    int(Tier.RAM): int(Metric.RAM_NS_PER_MIB),
    int(Tier.SSD): int(Metric.SSD_NS_PER_MIB),
    int(Tier.PEER): int(Metric.PEER_NS_PER_MIB),
    int(Tier.OBJECT): int(Metric.OBJECT_NS_PER_MIB),
}


class Columns(NamedTuple):
    """The workers' own columns of ``RouteInputs``, in its order."""

    ids: tuple[str, ...]
    epochs: tuple[int, ...]
    online: tuple[bool, ...]
    model_loaded: tuple[bool, ...]
    context_tokens: tuple[int, ...]
    verify_rows: tuple[int, ...]
    available_pages: tuple[int, ...]
    queue_ns: tuple[int, ...]
    prefill_ns_per_token: tuple[int, ...]
    first_token_ns: tuple[int, ...]


_Standing = tuple[int, bool, bool, int, int, int, int]

_NOBODY = Columns(*((),) * len(Columns._fields))


class Starts(NamedTuple):
    """The ways to start, as ``RouteInputs`` ends with them."""

    places: tuple[int, ...]
    tiers: tuple[int, ...]
    tokens: tuple[int, ...]
    load_ns: tuple[int, ...]
    restore_ns: tuple[int, ...]


class CandidateTable:
    """The workers' columns as of the last decision."""

    __slots__ = (
        "_available",
        "_changed",
        "_columns",
        "_fingerprint",
        "_places",
        "_queue",
        "_rows",
        "changed",
    )

    def __init__(self, fingerprint: bytes) -> None:
        self._fingerprint = fingerprint
        self._places: dict[str, int] = {}
        self._rows: dict[str, _Standing] = {}
        self._available: list[int] = []  # the two columns that nearly every change is in
        self._queue: list[int] = []
        self._columns: Columns = _NOBODY
        self._changed: set[str] = set()
        self.changed = self._changed.add
        """Something of a worker is not as it was: a report, a booking, or that it is there."""

    def columns(
        self, workers: Mapping[str, WorkerObserved], booked: Callable[[str], tuple[int, int]]
    ) -> Columns:
        """The columns as they are now, in byte order of worker ids.

        ``booked`` gives (pages, nanoseconds of work) by worker.
        """
        if not self._changed:
            return self._columns
        places, rows = self._places, self._rows
        anew = len(workers) != len(places) or not self._changed <= places.keys()
        if anew:
            ids = sorted(workers, key=str.encode)
            self._places = places = {worker: place for place, worker in enumerate(ids)}
            self._rows = rows = {worker: self._standing(workers[worker]) for worker in ids}
            self._available, self._queue = [0] * len(ids), [0] * len(ids)
        available, queue_ns = self._available, self._queue
        for worker in places if anew else self._changed:
            seen, place = workers[worker], places[worker]
            standing = self._standing(seen)
            if standing != rows[worker]:
                rows[worker] = standing
                anew = True
            booked_pages, booked_ns = booked(worker)
            free = seen.free_pages - booked_pages
            available[place] = (free if free > 0 else 0) + seen.reclaimable_pages
            queue_ns[place] = seen.queue_ns + booked_ns
        self._changed.clear()
        load = (tuple(available), tuple(queue_ns))
        if not anew:
            self._columns = Columns._make((*self._columns[:6], *load, *self._columns[8:]))
        elif places:
            standings = tuple(zip(*rows.values(), strict=True))
            self._columns = Columns._make((tuple(places), *standings[:5], *load, *standings[5:]))
        else:
            self._columns = _NOBODY
        return self._columns

    def _standing(self, seen: WorkerObserved) -> _Standing:
        """What of a worker seldom changes: the columns but those of its load."""
        return (
            seen.worker_epoch,
            seen.online,
            seen.fingerprint == self._fingerprint,
            seen.context_tokens,
            seen.verify_rows,
            seen.costs[_PREFILL],
            seen.costs[_FIRST_TOKEN],
        )


def starts_of(
    workers: Mapping[str, WorkerObserved],
    ids: tuple[str, ...],
    resident: Mapping[str, int],
    catalog: Catalog,
    entries: tuple[Entry, ...],
    chunk_tokens: int,
) -> Starts:
    """Every way to start a request: recompute all, or reuse a prefix that a tier holds.

    ``resident``: tokens on the workers' devices; ``entries``: the chunks that the catalog knows.
    """
    shared = {0: _by_worker(holdings(catalog, entries, 0)) if entries else {}}
    if not ids or (not resident and not shared[0]):
        return _recompute_all(len(ids))
    rows: list[tuple[int, int, int, int, int]] = []
    for place, worker in enumerate(ids):
        rows.append((place, RECOMPUTE, 0, 0, 0))
        here = resident.get(worker, 0)
        if here:
            rows.append((place, _DEVICE, here, 0, 0))
        first = here // chunk_tokens
        if first not in shared:
            shared[first] = _by_worker(holdings(catalog, entries, first))
        held = shared[first]
        if held:
            costs = workers[worker].costs
            # A peer's copy is reached through the peer tier, when there is one.
            for _, holding in sorted((*held.get("", ()), *held.get(worker, ()))):
                load_ns = holding.missing_bytes * costs[_READ_COST[holding.tier]] // MIB
                restore_ns = holding.missing_bytes * costs[_UPLOAD] // MIB
                rows.append((place, holding.tier, holding.tokens, load_ns, restore_ns))
    return Starts(*zip(*rows, strict=True))


@lru_cache(maxsize=8)
def _recompute_all(workers: int) -> Starts:
    none = (0,) * workers
    return Starts(tuple(range(workers)), (RECOMPUTE,) * workers, none, none, none)


def _by_worker(held: tuple[Holding, ...]) -> dict[str, list[tuple[int, Holding]]]:
    """Holdings by holder, each with its place in their order; the object store's under ''."""
    found: dict[str, list[tuple[int, Holding]]] = {}
    for place, holding in enumerate(held):
        found.setdefault(holding.worker, []).append((place, holding))
    return found
