"""Recorded look-ups rebuilt from the rules: is what the index answered what the rules say?

A decision's look-up is rebuilt for its inputs from the catalog's history, by code that is kin to
the index. Here a sample of them is asked again of the compiled rules over a replica of the whole
log. Owns the sampling and the comparison.
"""

from __future__ import annotations

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
    """Look-ups evenly spread over what passes by: every n-th, n doubling as there are more."""

    def __init__(self, most: int, history: CatalogHistory) -> None:
        self.kept: list[SampledLookup] = []
        self._most = most
        self._history = history
        self._every = 1
        self._seen = 0

    def observe(self, seen: Derivation) -> None:
        """Keep the look-up of a derived decision when it is its turn."""
        lookup = recorded_lookup(seen.kind, seen.decision)
        if lookup is None or not (lookup.known or lookup.missing):
            return
        self._seen += 1
        if self._seen % self._every:
            return
        view, decision = seen.view, seen.decision
        fingerprint, root = view.start.fingerprint, view.root_of(decision.subject)
        catalog = self._history.at(decision.as_of)
        entries = rebuild(catalog, fingerprint, root, lookup)
        self.kept.append(
            SampledLookup(
                seen.epoch.client,
                seen.epoch.client_epoch,
                seen.transaction.client_seq,
                seen.kind.name.lower(),
                decision.as_of,
                fingerprint,
                root,
                (lookup.known, lookup.last, lookup.missing),
                len(entries),
                tuple((one.worker, one.tier, one.chunks) for one in holdings(catalog, entries)),
            )
        )
        if len(self.kept) > 2 * self._most:
            self.kept = self.kept[1::2]
            self._every *= 2


def spread(found: list[SampledLookup], most: int) -> list[SampledLookup]:
    """At most so many, evenly over the log."""
    ordered = sorted(found, key=lambda one: (one.as_of, one.client, one.client_seq))
    step = -(-len(ordered) // most) if ordered else 1
    return ordered[::step]


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
