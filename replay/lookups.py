"""Recorded look-ups rebuilt from the rules: is what the index answered what the rules say?

A decision's look-up is rebuilt for its inputs from the catalog's history, by code that is kin to
the index. Here a sample of them is asked again of the compiled rules over a replica of the whole
log. Owns the sampling and the comparison.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pagetrail.catalog.boundaries import Boundaries, recorded_by_rule
from pagetrail.catalog.errors import BadInputError, InvariantError
from pagetrail.catalog.replica import Replica
from pagetrail.controlplane.lookup import holdings, rebuild

from .findings import Finding
from .fold import Derivation
from .history import CatalogHistory
from .inputs import recorded_lookup

LOOKUPS_MAX = 10_000
"""Most look-ups that one verification asks the rules about."""


@dataclass(frozen=True, slots=True)
class ByRule:
    """How to check: so many look-ups at most, over a replica that ``open`` fills with the log."""

    most: int
    open: Callable[[Path], AbstractContextManager[Replica]]

    def __post_init__(self) -> None:
        if not 1 <= self.most <= LOOKUPS_MAX:
            raise BadInputError(f"look-ups to check must be 1 to {LOOKUPS_MAX}, not {self.most}")


class SampledLookup(msgspec.Struct, frozen=True):
    """A recorded look-up with what replay rebuilt of it."""

    client: str
    client_epoch: int
    client_seq: int
    kind: str
    as_of: int
    fingerprint: bytes
    root: bytes
    recorded: tuple[int, bytes, bytes]  # as PrefixLookup
    known: int
    held: tuple[tuple[str, int, int], ...]  # (worker, tier, chunks)


class LookupSample:
    """The look-ups whose places hash lowest: a sample by what was decided, not by how the log was
    shared out, so every verification of a log asks about the same ones.
    """

    def __init__(self, most: int, history: CatalogHistory) -> None:
        self._most = most
        self._history = history
        self._kept: list[tuple[int, SampledLookup]] = []  # a heap, the highest hash first

    @property
    def kept(self) -> list[SampledLookup]:
        """The sample so far, at most as many as asked for."""
        return [one for _, one in self._kept]

    def observe(self, seen: Derivation) -> None:
        """Keep the look-up of a derived decision when its place hashes among the lowest."""
        lookup = recorded_lookup(seen.kind, seen.decision)
        if lookup is None or not (lookup.known or lookup.missing):
            return
        epoch, seq = seen.epoch, seen.transaction.client_seq
        rank = -_place_hash(epoch.client, epoch.client_epoch, seq)
        if len(self._kept) >= self._most and rank <= self._kept[0][0]:
            return
        view, decision = seen.view, seen.decision
        fingerprint, root = view.start.fingerprint, view.root_of(decision.subject)
        catalog = self._history.at(decision.as_of)
        entries = rebuild(catalog, fingerprint, root, lookup)
        sampled = SampledLookup(
            epoch.client,
            epoch.client_epoch,
            seq,
            seen.kind.name.lower(),
            decision.as_of,
            fingerprint,
            root,
            (lookup.known, lookup.last, lookup.missing),
            len(entries),
            tuple((one.worker, one.tier, one.chunks) for one in holdings(catalog, entries)),
        )
        if len(self._kept) < self._most:
            heapq.heappush(self._kept, (rank, sampled))
        else:
            heapq.heapreplace(self._kept, (rank, sampled))


def _place_hash(client: str, client_epoch: int, client_seq: int) -> int:
    """An even 128-bit hash of a decision's place: two places never share one in practice."""
    place = f"{client}\0{client_epoch}\0{client_seq}".encode()
    return int.from_bytes(hashlib.blake2b(place, digest_size=16).digest())


def lowest(found: list[SampledLookup], most: int) -> list[SampledLookup]:
    """The sample of the whole from the samples of its shares, in order of the log."""
    kept = heapq.nsmallest(
        most, found, key=lambda one: _place_hash(one.client, one.client_epoch, one.client_seq)
    )
    return sorted(kept, key=lambda one: (one.as_of, one.client, one.client_seq))


def lookup_findings(replica: Replica, sampled: list[SampledLookup]) -> Iterator[Finding]:
    """The look-ups to which the rules answer otherwise."""
    for one in sampled:
        place = (one.client, one.client_epoch, one.client_seq, one.kind)
        try:
            by_rule = recorded_by_rule(replica, one.fingerprint, one.root, one.recorded, one.as_of)
        except (InvariantError, BadInputError) as error:
            yield Finding(*place, f"look-up: {error}")
            continue
        rebuilt = Boundaries(one.known, frozenset(one.held))
        if by_rule != rebuilt:
            yield Finding(
                *place,
                f"look-up: by the rule {by_rule.known} chunks are known at {one.as_of}, held as "
                f"{sorted(by_rule.held)}; rebuilt were {one.known}, {sorted(one.held)}",
            )
