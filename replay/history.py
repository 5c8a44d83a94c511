"""The catalog as of any position of the log, for look-ups that are made again.

Built once from the catalog facts, in order; then read at every position that a decision cites.
Each entity keeps its few states with the position from which each holds.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from pagetrail.catalog.envelope import Fact, Op
from pagetrail.catalog.facts import KindId, decode_body
from pagetrail.catalog.index import Entry
from pagetrail.catalog.kinds.content import Copy, CopyState, Node, Part


class _Node:
    __slots__ = ("changes", "node", "parts")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.parts: list[bytes] = []
        self.changes: list[int] = []  # positions from which it is known, unknown, known, ...


class _Part:
    __slots__ = ("holders", "part", "since")

    def __init__(self, part: Part, since: int) -> None:
        self.part = part
        self.since = since
        self.holders: list[tuple[int, int]] = []  # (position from which, mask)


class CatalogHistory:
    """Every state of the catalog that look-ups can read."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[bytes, bytes], _Node] = {}
        self._by_id: dict[bytes, _Node] = {}
        self._parts: dict[bytes, _Part] = {}
        self._bits: dict[tuple[str, int], int] = {}
        self._holders: list[tuple[str, int]] = []

    def add(self, facts: Iterable[Fact]) -> None:
        """Fold catalog facts, in the order of the log; others are passed over."""
        for fact in facts:
            if fact.kind in (KindId.NODE, KindId.PART, KindId.COPY):
                body = decode_body(fact.kind, fact.schema_v, fact.body)
                present = fact.op == Op.ASSERT
                # A fact at seq is part of every state as of seq + 1 and later.
                since = fact.seq + 1
                if isinstance(body, Node):
                    self._add_node(body, present, since)
                elif isinstance(body, Part):
                    self._add_part(body, since)
                elif isinstance(body, Copy):
                    self._add_copy(body, present, since)

    def at(self, position: int) -> CatalogAt:
        """The catalog as of a position."""
        return CatalogAt(self, position)

    def _add_node(self, body: Node, present: bool, since: int) -> None:
        node = self._by_id.get(body.node_id)
        if node is None:
            node = _Node(body)
            self._by_id[body.node_id] = node
            self._nodes[(body.fingerprint, body.prefix)] = node
        if bool(len(node.changes) % 2) != present:
            node.changes.append(since)

    def _add_part(self, body: Part, since: int) -> None:
        if body.part_id not in self._parts:
            self._parts[body.part_id] = _Part(body, since)
            node = self._by_id.get(body.node_id)
            if node is not None:
                node.parts.append(body.part_id)

    def _add_copy(self, body: Copy, present: bool, since: int) -> None:
        part = self._parts.get(body.part_id)
        if part is None:
            return
        holder = (body.worker, body.tier)
        bit = self._bits.get(holder)
        if bit is None:
            bit = self._bits[holder] = len(self._holders)
            self._holders.append(holder)
        mask = part.holders[-1][1] if part.holders else 0
        ready = present and body.state == CopyState.READY
        mask = mask | 1 << bit if ready else mask & ~(1 << bit)
        part.holders.append((since, mask))


class CatalogAt:
    """``lookup.Catalog`` as of one position."""

    __slots__ = ("_history", "position")

    def __init__(self, history: CatalogHistory, position: int) -> None:
        self._history = history
        self.position = position

    def entry(self, fingerprint: bytes, prefix: bytes) -> Entry | None:
        """The chunk that ends the prefix, when it is known here."""
        history = self._history
        node = history._nodes.get((fingerprint, prefix))
        if node is None or not bisect_right(node.changes, self.position) % 2:
            return None
        mask, size_bytes = -1, 0
        for part_id in node.parts:
            part = history._parts[part_id]
            if part.since > self.position:
                continue
            size_bytes += part.part.size_bytes
            place = bisect_right(part.holders, (self.position, _ANY_MASK))
            mask &= part.holders[place - 1][1] if place else 0
        body = node.node
        return Entry(body.parent_prefix, body.token_start, body.token_end, size_bytes, max(mask, 0))

    def holder(self, bit: int) -> tuple[str, int]:
        """(worker, tier) behind a bit of a mask."""
        return self._history._holders[bit]


_ANY_MASK = 1 << 4096  # larger than any mask: sorts after every state of the same position
