"""The live index of the catalog: which chunks are known, and who holds a whole copy of each.

A plain dictionary, folded from the same facts as a replica and read by the thread that decides,
so the position it saw is exact. Owns no I/O and no database. What it answers is specified by the
rules in ``rules/boundaries.dl``; replay rebuilds it from facts.

A holder is a (worker, tier) and has one bit, given in the order in which holders first report a
ready copy. A holder has a node when it has a ready copy of every part that the layout of the
node's model demands; where the log states no layout of the model, of every part that is bound, and
there is at least one. Publishers bind a node and all of its parts in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from .envelope import Fact, Op, Run
from .errors import BadInputError, CorruptionError, InvariantError
from .facts import KindId, decode_body
from .identity import node_id, part_id
from .kinds.content import Copy, CopyState, LayoutPart, Model, Node, Part

HOLDERS_MAX = 65_536
"""Most (worker, tier) pairs over the life of a log; masks are as wide as the pairs seen."""

LOOKED_UP = frozenset(
    map(int, (KindId.MODEL, KindId.LAYOUT_PART, KindId.NODE, KindId.PART, KindId.COPY))
)
"""The kinds of fact that look-ups rest on."""


class Entry(msgspec.Struct, frozen=True, gc=False):
    """One chunk as the catalog knows it. ``mask`` has a bit for each holder of a whole copy."""

    parent_prefix: bytes
    token_start: int
    token_end: int
    size_bytes: int  # all parts
    mask: int


class StoredPart(msgspec.Struct, frozen=True, gc=False):
    """Where one holder keeps one part of a chunk, and what its bytes must be."""

    part_id: bytes
    group: int
    shard: int
    content_id: bytes
    size_bytes: int
    location: str


@dataclass(frozen=True, slots=True)
class CatalogChanges:
    """What a stretch of the log, ``[first_seq, next_seq)``, changes in an index.

    Read and checked once, it may be folded into any number of indexes.
    """

    first_seq: int
    next_seq: int
    changes: tuple[tuple[bool, msgspec.Struct], ...]  # (asserted, body), in order

    @classmethod
    def of_runs(cls, first_seq: int, runs: Iterable[Run]) -> CatalogChanges:
        """Read the runs of a frame that starts at ``first_seq``. Raises as ``apply`` does."""
        seq = first_seq
        changes = []
        for run in runs:
            for transaction in run.transactions:
                for wire in transaction.facts:
                    if wire.kind in LOOKED_UP:
                        changes.append(_change(seq, wire.op, wire.kind, wire.schema_v, wire.body))
                    seq += 1
        return cls(first_seq, seq, tuple(changes))


class LiveIndex:
    """The catalog as of ``position``, the number of facts applied."""

    __slots__ = (
        "_bits",
        "_bound",
        "_entries",
        "_holders",
        "_keys",
        "_layouts",
        "_locations",
        "_models",
        "_parts",
        "_ready",
        "position",
    )

    def __init__(self) -> None:
        self.position = 0
        self._entries: dict[bytes, dict[bytes, Entry]] = {}  # fingerprint -> prefix -> entry
        self._models: dict[bytes, bytes] = {}  # fingerprint -> layout
        self._layouts: dict[bytes, frozenset[tuple[int, int]]] = {}  # -> (group, shard) demanded
        self._keys: dict[bytes, tuple[bytes, bytes]] = {}  # node -> (fingerprint, prefix)
        self._bound: dict[bytes, dict[bytes, Part]] = {}  # node -> part -> its newest fact
        self._parts: dict[bytes, bytes] = {}  # part -> node
        self._ready: dict[bytes, int] = {}  # part -> mask of ready copies
        self._locations: dict[tuple[bytes, int], str] = {}  # (part, bit) of ready copies
        self._bits: dict[tuple[str, int], int] = {}
        self._holders: list[tuple[str, int]] = []

    def entry(self, fingerprint: bytes, prefix: bytes) -> Entry | None:
        """The chunk that ends the prefix, when it is known."""
        entries = self._entries.get(fingerprint)
        return None if entries is None else entries.get(prefix)

    def layout_digest(self, fingerprint: bytes) -> bytes | None:
        """Digest of the layout that the log states for a model; None where it states none."""
        return self._models.get(fingerprint)

    def holder(self, bit: int) -> tuple[str, int]:
        """(worker, tier) behind a bit of a mask; the worker is empty for the object store.

        Raises IndexError for a bit that no mask has.
        """
        if bit < 0:
            raise IndexError(f"a mask has no bit {bit}")
        return self._holders[bit]

    def stored(
        self, fingerprint: bytes, prefix: bytes, worker: str, tier: int
    ) -> tuple[StoredPart, ...]:
        """The parts of a chunk as a holder keeps them, by (group, shard).

        Empty when the holder has no ready copy of some part.
        """
        bit = self._bits.get((worker, tier))
        entry = self.entry(fingerprint, prefix)
        if bit is None or entry is None or not entry.mask >> bit & 1:
            return ()
        found = []
        for part in self._counted(fingerprint, node_id(fingerprint, prefix)):
            location = self._locations[(part.part_id, bit)]
            found.append(
                StoredPart(
                    part.part_id, part.group, part.shard, part.content_id, part.size_bytes, location
                )
            )
        return tuple(sorted(found, key=lambda part: (part.group, part.shard)))

    def apply(self, facts: Iterable[Fact]) -> None:
        """Fold facts that continue at ``position``; those of other kinds only count.

        Raises, with the index unchanged: BadInputError on a gap, UnknownKindError and
        CorruptionError as ``decode_body`` does, CorruptionError for an id that is not the digest
        of what it names.
        """
        position = self.position
        changes: list[tuple[bool, msgspec.Struct]] = []
        for fact in facts:
            if fact.seq != position:
                raise _gap(fact.seq, position)
            position += 1
            if fact.kind in LOOKED_UP:
                changes.append(_change(fact.seq, fact.op, fact.kind, fact.schema_v, fact.body))
        self._take(changes)
        self.position = position

    def fold(self, changes: CatalogChanges) -> None:
        """Fold what was read of a stretch of the log that continues at ``position``.

        Raises BadInputError on a gap, with the index unchanged.
        """
        if changes.first_seq != self.position:
            raise _gap(changes.first_seq, self.position)
        self._take(changes.changes)
        self.position = changes.next_seq

    def _take(self, changes: Iterable[tuple[bool, msgspec.Struct]]) -> None:
        for holds, body in changes:
            if isinstance(body, Copy):
                self._copy(body, holds and body.state == CopyState.READY)
            elif isinstance(body, Part):
                self._part(body, holds)
            elif isinstance(body, Node):
                self._node(body, holds)
            elif isinstance(body, LayoutPart):
                self._layout_part(body, holds)
            elif isinstance(body, Model):
                self._model(body, holds)

    def _copy(self, body: Copy, ready: bool) -> None:
        holder = (body.worker, body.tier)
        bit = self._bits.get(holder)
        before = self._ready.get(body.part_id, 0)
        if bit is None:
            if not ready:
                return
            if len(self._holders) >= HOLDERS_MAX:
                raise InvariantError(
                    f"more than {HOLDERS_MAX} pairs of worker and tier have held copies; start a "
                    "new log from a keyframe"
                )
            bit = self._bits[holder] = len(self._holders)
            self._holders.append(holder)
        if ready:
            self._locations[(body.part_id, bit)] = body.location
        else:
            self._locations.pop((body.part_id, bit), None)
        after = before | 1 << bit if ready else before & ~(1 << bit)
        if after == before:
            return
        if after:
            self._ready[body.part_id] = after
        else:
            del self._ready[body.part_id]
        node = self._parts.get(body.part_id)
        if node is not None:
            self._refresh(node)

    def _part(self, body: Part, holds: bool) -> None:
        if holds:
            self._parts[body.part_id] = body.node_id
            self._bound.setdefault(body.node_id, {})[body.part_id] = body
        elif self._parts.pop(body.part_id, None) is not None:
            bound = self._bound[body.node_id]
            del bound[body.part_id]
            if not bound:
                del self._bound[body.node_id]
        self._refresh(body.node_id)

    def _node(self, body: Node, holds: bool) -> None:
        if holds:
            self._keys[body.node_id] = (body.fingerprint, body.prefix)
            self._entries.setdefault(body.fingerprint, {})[body.prefix] = Entry(
                body.parent_prefix, body.token_start, body.token_end, 0, 0
            )
            self._refresh(body.node_id)
        elif self._keys.pop(body.node_id, None) is not None:
            entries = self._entries[body.fingerprint]
            del entries[body.prefix]
            if not entries:
                del self._entries[body.fingerprint]

    def _model(self, body: Model, holds: bool) -> None:
        if holds:
            self._models[body.fingerprint] = body.layout_digest
        else:
            self._models.pop(body.fingerprint, None)
        self._refresh_model(body.fingerprint)

    def _layout_part(self, body: LayoutPart, holds: bool) -> None:
        demanded = self._layouts.get(body.layout_digest, frozenset())
        one = {(body.group, body.shard)}
        self._layouts[body.layout_digest] = demanded | one if holds else demanded - one
        for fingerprint, layout in self._models.items():
            if layout == body.layout_digest:
                self._refresh_model(fingerprint)

    def _refresh_model(self, fingerprint: bytes) -> None:
        """Its layout is stated before its nodes, so that there is hardly ever one to refresh."""
        for prefix in self._entries.get(fingerprint, {}):
            self._refresh(node_id(fingerprint, prefix))

    def _demanded(self, fingerprint: bytes) -> frozenset[tuple[int, int]]:
        """(group, shard) of each part that the model's layout demands; empty: none is stated."""
        return self._layouts.get(self._models.get(fingerprint, b""), frozenset())

    def _counted(self, fingerprint: bytes, node: bytes) -> list[Part]:
        """The bound parts that a node is made of: those of its layout, where one is stated."""
        bound = self._bound.get(node, {}).values()
        demanded = self._demanded(fingerprint)
        return [p for p in bound if not demanded or (p.group, p.shard) in demanded]

    def _refresh(self, node: bytes) -> None:
        """Bring a known node's size and mask up to date with its parts and their copies."""
        key = self._keys.get(node)
        if key is None:
            return
        parts = self._counted(key[0], node)
        mask = -1 if parts and len(parts) >= len(self._demanded(key[0])) else 0
        size_bytes = 0
        for part in parts:
            mask &= self._ready.get(part.part_id, 0)
            size_bytes += part.size_bytes
        old = self._entries[key[0]][key[1]]
        self._entries[key[0]][key[1]] = Entry(
            old.parent_prefix, old.token_start, old.token_end, size_bytes, mask
        )


def _gap(seq: int, position: int) -> BadInputError:
    return BadInputError(
        f"fact {seq} does not continue at {position}; fetch the range between from the log and "
        "apply it first"
    )


def _change(
    seq: int, op: int, kind: int, schema_v: int, encoded: msgspec.Raw
) -> tuple[bool, msgspec.Struct]:
    body = decode_body(kind, schema_v, encoded)
    _check_ids(seq, body)
    return op == Op.ASSERT, body


def _check_ids(seq: int, body: msgspec.Struct) -> None:
    """An id stands for what it is the digest of; a fact that says otherwise would let one
    tenant's or model's state answer for another's."""
    if isinstance(body, Node) and node_id(body.fingerprint, body.prefix) != body.node_id:
        raise CorruptionError(f"fact {seq}: node_id is not the id of its fingerprint and prefix")
    if isinstance(body, Part) and part_id(body.node_id, body.group, body.shard) != body.part_id:
        raise CorruptionError(f"fact {seq}: part_id is not the id of its node, group and shard")
