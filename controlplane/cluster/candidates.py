"""What a router's workers offer a request, column by column.

Owns the columns that do not depend on the request, kept from decision to decision and built again
only for workers of which something has changed since. Pure; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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

    __slots__ = ("_changed", "_columns", "_fingerprint", "_lists", "_places", "_rows")

    def __init__(self, fingerprint: bytes) -> None:
        self._fingerprint = fingerprint
        self._places: dict[str, int] = {}
        self._rows: dict[str, tuple[int, ...]] = {}
        self._lists: list[list[int]] = []  # by column, without the ids
        self._columns: Columns = _NOBODY
        self._changed: set[str] = set()

    def changed(self, worker: str) -> None:
        """Something of a worker is not as it was: a report, a booking, or that it is there."""
        self._changed.add(worker)

    def columns(
        self, workers: Mapping[str, WorkerObserved], booked: Callable[[str], tuple[int, int]]
    ) -> Columns:
        """The columns as they are now, in byte order of worker ids.

        ``booked`` gives (pages, nanoseconds of work) by worker.
        """
        if not self._changed:
            return self._columns
        if all(map(self._places.__contains__, self._changed)) and (
            len(workers) == len(self._places)
        ):
            touched = set[int]()
            for worker in self._changed:
                row, known = self._row(workers[worker], booked(worker)), self._rows[worker]
                if row != known:
                    self._rows[worker] = row
                    place = self._places[worker]
                    for number, value in enumerate(row):
                        if value != known[number]:
                            self._lists[number][place] = value
                            touched.add(number)
            columns: list[Any] = list(self._columns)
            for number in touched:
                columns[number + 1] = tuple(self._lists[number])
            self._columns = Columns(*columns)
        else:
            ids = sorted(workers, key=str.encode)
            self._places = {worker: place for place, worker in enumerate(ids)}
            self._rows = {worker: self._row(workers[worker], booked(worker)) for worker in ids}
            self._lists = [list(column) for column in zip(*self._rows.values(), strict=True)]
            columns = [tuple(ids), *map(tuple, self._lists)]
            self._columns = Columns(*columns) if ids else _NOBODY
        self._changed.clear()
        return self._columns

    def _row(self, seen: WorkerObserved, booked: tuple[int, int]) -> tuple[int, ...]:
        booked_pages, booked_ns = booked
        free = seen.free_pages - booked_pages
        return (
            seen.worker_epoch,
            seen.online,
            seen.fingerprint == self._fingerprint,
            seen.context_tokens,
            seen.verify_rows,
            (free if free > 0 else 0) + seen.reclaimable_pages,
            seen.queue_ns + booked_ns,
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
    shared = {0: _by_worker(holdings(catalog, entries, 0))}
    if not ids or (not resident and not shared[0]):
        none = (0,) * len(ids)
        return Starts(tuple(range(len(ids))), (RECOMPUTE,) * len(ids), none, none, none)
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


def _by_worker(held: tuple[Holding, ...]) -> dict[str, list[tuple[int, Holding]]]:
    """Holdings by holder, each with its place in their order; the object store's under ''."""
    found: dict[str, list[tuple[int, Holding]]] = {}
    for place, holding in enumerate(held):
        found.setdefault(holding.worker, []).append((place, holding))
    return found
