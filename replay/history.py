"""The catalog as of any position of the log, for look-ups that are made again.

Built once from the catalog facts, in order; then read at every position that a decision cites.
Each entity keeps its few states with the position from which each holds.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TypeVar

from pagetrail.catalog.envelope import Op, WireFact
from pagetrail.catalog.facts import decode_body
from pagetrail.catalog.index import Entry
from pagetrail.catalog.kinds.content import Copy, CopyState, LayoutPart, Model, Node, Part

V = TypeVar("V")
UNBOUND = -1


@dataclass(slots=True)
class _Node:
    """A chunk: its newest body, and its states as (position from which, known)."""

    body: Node
    known: list[tuple[int, bool]] = field(default_factory=list)
    parts: dict[bytes, _Part] = field(default_factory=dict)


@dataclass(slots=True)
class _Part:
    """A part: (position from which, its size or -1 while it is not bound)."""

    place: tuple[int, int]  # (group, shard)
    sizes: list[tuple[int, int]] = field(default_factory=list)


class CatalogHistory:
    """Every state of the catalog that look-ups can read."""

    def __init__(self) -> None:
        self._models: dict[bytes, list[tuple[int, bytes]]] = {}  # fingerprint -> its layouts
        self._layouts: dict[bytes, dict[tuple[int, int], list[tuple[int, bool]]]] = {}
        self._nodes: dict[tuple[bytes, bytes], _Node] = {}
        self._parts_of: dict[bytes, dict[bytes, _Part]] = {}  # by node id, known or not yet
        self._ready: dict[bytes, list[tuple[int, int]]] = {}  # part -> (position from which, mask)
        self._bits: dict[tuple[str, int], int] = {}
        self._holders: list[tuple[str, int]] = []

    def add(self, seq: int, wire: WireFact) -> None:
        """Fold a catalog fact; facts come in the order of the log.

        Raises PagetrailError when it cannot be read.
        """
        body = decode_body(wire.kind, wire.schema_v, wire.body)
        present = wire.op == Op.ASSERT
        since = seq + 1  # a fact at seq is part of every state as of seq + 1 and later
        if isinstance(body, Node):
            self._add_node(body, present, since)
        elif isinstance(body, Part):
            self._add_part(body, present, since)
        elif isinstance(body, Copy):
            self._add_copy(body, present and body.state == CopyState.READY, since)
        elif isinstance(body, Model):
            layout = body.layout_digest if present else b""
            self._models.setdefault(body.fingerprint, []).append((since, layout))
        elif isinstance(body, LayoutPart):
            parts = self._layouts.setdefault(body.layout_digest, {})
            parts.setdefault((body.group, body.shard), []).append((since, present))

    def at(self, position: int) -> CatalogAt:
        """The catalog as of a position."""
        return CatalogAt(self, position)

    def _add_node(self, body: Node, present: bool, since: int) -> None:
        key = (body.fingerprint, body.prefix)
        node = self._nodes.get(key)
        if node is None:
            parts = self._parts_of.setdefault(body.node_id, {})
            node = self._nodes[key] = _Node(body, parts=parts)
        node.known.append((since, present))

    def _add_part(self, body: Part, present: bool, since: int) -> None:
        parts = self._parts_of.setdefault(body.node_id, {})
        part = parts.setdefault(body.part_id, _Part((body.group, body.shard)))
        part.sizes.append((since, body.size_bytes if present else UNBOUND))

    def _add_copy(self, body: Copy, ready: bool, since: int) -> None:
        holder = (body.worker, body.tier)
        bit = self._bits.get(holder)
        if bit is None:
            if not ready:
                return
            bit = self._bits[holder] = len(self._holders)
            self._holders.append(holder)
        masks = self._ready.setdefault(body.part_id, [])
        mask = masks[-1][1] if masks else 0
        masks.append((since, mask | 1 << bit if ready else mask & ~(1 << bit)))


class CatalogAt:
    """``lookup.Catalog`` as of one position."""

    __slots__ = ("_history", "position")

    def __init__(self, history: CatalogHistory, position: int) -> None:
        self._history = history
        self.position = position

    def entry(self, fingerprint: bytes, prefix: bytes) -> Entry | None:
        """The chunk that ends the prefix, when it is known here."""
        history, position = self._history, self.position
        node = history._nodes.get((fingerprint, prefix))
        if node is None or not _value_at(node.known, position, False):
            return None
        demanded = self._demanded(fingerprint)
        mask, size_bytes, bound = -1, 0, 0
        for part_id, part in node.parts.items():
            size = _value_at(part.sizes, position, UNBOUND)
            if size != UNBOUND and (not demanded or part.place in demanded):
                bound += 1
                size_bytes += size
                mask &= _value_at(history._ready.get(part_id, []), position, 0)
        body = node.body
        whole = bound and bound >= len(demanded)
        return Entry(
            body.parent_prefix, body.token_start, body.token_end, size_bytes, mask if whole else 0
        )

    def _demanded(self, fingerprint: bytes) -> frozenset[tuple[int, int]]:
        """(group, shard) of each part that the model's layout demands; empty: none is stated."""
        layout = _value_at(self._history._models.get(fingerprint, []), self.position, b"")
        parts = self._history._layouts.get(layout, {})
        return frozenset(
            place for place, states in parts.items() if _value_at(states, self.position, False)
        )

    def holder(self, bit: int) -> tuple[str, int]:
        """(worker, tier) behind a bit of a mask."""
        return self._history._holders[bit]


def _value_at(states: list[tuple[int, V]], position: int, before: V) -> V:
    """The state that holds at a position; ``before`` until the first."""
    place = bisect_right(states, position, key=_since)
    return states[place - 1][1] if place else before


def _since(state: tuple[int, object]) -> int:
    return state[0]
