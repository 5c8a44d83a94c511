"""Prefix look-ups in the catalog: what a decider records of one, and what it derives from it.

A look-up walks a prompt's chunk digests from the root and stops at the first chunk that the
catalog does not know. Recorded are only the two digests at that edge: the last known chunk leads
back to the root through its parents, and the first missing one must be absent. From them, and the
catalog as of the decision's position, replay rebuilds everything the look-up returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.index import Entry


class Catalog(Protocol):
    """The catalog as of one position of the log."""

    @property
    def position(self) -> int:
        """Facts applied: every fact with ``seq < position`` and no other."""

    def entry(self, fingerprint: bytes, prefix: bytes) -> Entry | None:
        """The chunk that ends the prefix, when it is known."""

    def holder(self, bit: int) -> tuple[str, int]:
        """(worker, tier) behind a bit of a mask; the worker is empty for the object store."""


class PrefixLookup(msgspec.Struct, frozen=True, array_like=True):
    """A look-up as it is recorded."""

    known: int  # chunks known without a gap from the root
    last: bytes  # prefix digest of the last known chunk; empty when there is none
    missing: bytes  # prefix digest of the first unknown chunk; empty when all are known


class Holding(msgspec.Struct, frozen=True, array_like=True):
    """A holder has every chunk of ``[from the first asked for, chunks)``."""

    tier: int
    worker: str
    chunks: int  # counted from the root
    tokens: int
    missing_bytes: int  # bytes of the chunks after the first asked for


def look_up(
    catalog: Catalog, fingerprint: bytes, prompt: Sequence[bytes]
) -> tuple[PrefixLookup, tuple[Entry, ...]]:
    """Walk a prompt's chunk digests; the entries are those of the known chunks, root first."""
    entries: list[Entry] = []
    for prefix in prompt:
        entry = catalog.entry(fingerprint, prefix)
        if entry is None:
            break
        entries.append(entry)
    known = len(entries)
    return (
        PrefixLookup(
            known,
            prompt[known - 1] if known else b"",
            prompt[known] if known < len(prompt) else b"",
        ),
        tuple(entries),
    )


def rebuild(
    catalog: Catalog, fingerprint: bytes, root: bytes, recorded: PrefixLookup
) -> tuple[Entry, ...]:
    """The entries that a recorded look-up returned, from the catalog as of its position.

    Raises InvariantError when the catalog cannot have answered so: a chunk is unknown, the chain
    does not reach the tenant's root in the recorded number of steps, or the first missing chunk
    was known.
    """
    entries: list[Entry] = []
    prefix = recorded.last or root
    while prefix != root and len(entries) < recorded.known:
        entry = catalog.entry(fingerprint, prefix)
        if entry is None:
            raise InvariantError(
                f"the look-up names chunk {prefix.hex()[:16]}, unknown at {catalog.position}"
            )
        entries.append(entry)
        prefix = entry.parent_prefix
    if len(entries) != recorded.known or prefix != root:
        raise InvariantError(
            f"the look-up names {recorded.known} known chunks; the chain back to the root differs"
        )
    if recorded.missing and catalog.entry(fingerprint, recorded.missing) is not None:
        raise InvariantError(
            f"the look-up calls chunk {recorded.missing.hex()[:16]} missing; it was known"
        )
    entries.reverse()
    return tuple(entries)


def holdings(catalog: Catalog, entries: Sequence[Entry], first: int = 0) -> tuple[Holding, ...]:
    """The longest boundary of every holder over the chunks from ``first`` on.

    In order of (tier, worker).
    """
    if first >= len(entries):
        return ()
    found: list[Holding] = []
    running = entries[first].mask
    missing_bytes = 0
    for place in range(first, len(entries)):
        entry = entries[place]
        dropped = running & ~entry.mask
        if dropped:
            _collect(catalog, dropped, place, entries, missing_bytes, found)
        running &= entry.mask
        if not running:
            break
        missing_bytes += entry.size_bytes
    if running:
        _collect(catalog, running, len(entries), entries, missing_bytes, found)
    found.sort(key=lambda holding: (holding.tier, holding.worker))
    return tuple(found)


def _collect(
    catalog: Catalog,
    mask: int,
    chunks: int,
    entries: Sequence[Entry],
    missing_bytes: int,
    found: list[Holding],
) -> None:
    while mask:
        bit = (mask & -mask).bit_length() - 1
        mask &= mask - 1
        worker, tier = catalog.holder(bit)
        found.append(Holding(tier, worker, chunks, entries[chunks - 1].token_end, missing_bytes))
