"""Integer ids for the entities that incoming catalog facts speak of.

An entity's id is the ``seq`` of the first fact that named it, be it by a fact of its own kind or by
another's reference. ``grouped`` finds what speaks of the same, column by column, and touches no
database; ``name_entities`` then asks DuckDB which of the distinct ones earlier facts have named,
and enters the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .datalog.sql import identifier
from .errors import InvariantError
from .identity import DIGEST_BYTES
from .replica_schema import REFERABLE, CatalogTables, KindTables, entity_columns

Integers = npt.NDArray[np.int64]

_SPARSE = 8
"""Up to so many possible numbers for each row, a table with a place for each number is faster than
one that hashes."""

_FACTORS = (
    np.uint64(0x9E3779B97F4A7C15),
    np.uint64(0xC2B2AE3D27D4EB4F),
    np.uint64(0x165667B19E3779F9),
    np.uint64(0xD6E8FEB86659FD93),
    np.uint64(0xFF51AFD7ED558CCD),
)
"""Odd, so that no bits are lost; the upper bits of a product depend on all lower ones."""

_ALL_FOUR = np.uint32(0x01_01_01_01)
"""Four comparisons that hold, read as one number."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """Facts of one catalog kind, in order of ``seq``."""

    tables: KindTables
    catalog: CatalogTables
    rows: pa.Table

    @property
    def seq(self) -> Integers:
        """The ``seq`` of each row."""
        return _integers(self.rows.column("seq"))


@dataclass(frozen=True, slots=True)
class Ids:
    """For each row of an ``Incoming``: its entity and, by column, what else it refers to."""

    entity: Integers
    references: Mapping[str, Integers]


@dataclass(frozen=True, slots=True)
class Group:
    """All mentions of one kind of entity. ``codes`` gives each its entity, numbered from 0 without
    gaps; by that number ``place`` is the first of its mentions, and ``first`` the least ``seq``.

    The mentions are the rows of the places ``owners`` of the incoming kinds, one after another.
    """

    codes: Integers
    place: Integers
    first: Integers
    owners: tuple[int, ...]
    lengths: tuple[int, ...]

    def split(self, mentions: Integers) -> dict[int, Integers]:
        """Values of mentions by their owners."""
        ends = np.cumsum(self.lengths)[:-1]
        return dict(zip(self.owners, np.split(mentions, ends), strict=True))


def grouped(incoming: Sequence[Incoming]) -> dict[str, Group]:
    """The mentions of entities, by the name of their kind, those that others refer to first."""
    groups: dict[str, Group] = {}
    referred: list[dict[str, tuple[Integers, int]]] = [{} for _ in incoming]
    for name in REFERABLE:
        owners = _owners(incoming, name)
        if not owners:
            continue
        columns = [incoming[place].rows.column(f"{name}_id") for place in owners]
        codes, count = _distinct(pa.chunked_array([c for m in columns for c in m.chunks]))
        group = groups[name] = _group(codes, count, [incoming[place] for place in owners], owners)
        for place, part in group.split(codes).items():
            referred[place][f"{name}_id"] = part, count
    for place, one in enumerate(incoming):
        if one.tables.kind.name not in groups:
            parts = [
                referred[place][field] if field in one.catalog.ids else _distinct(rows)
                for field, rows in ((f, one.rows.column(f)) for f in one.tables.kind.entity)
            ]
            groups[one.tables.kind.name] = _group(*_combined(parts), [one], (place,))
    return groups


def name_entities(
    connection: duckdb.DuckDBPyConnection,
    incoming: Sequence[Incoming],
    groups: Mapping[str, Group],
) -> tuple[list[Ids], set[str]]:
    """Ids for every row, inside the caller's transaction; and the tables that took new entities.

    ``InvariantError`` when a table of entities holds one twice.
    """
    own: dict[int, Integers] = {}
    references: list[dict[str, Integers]] = [{} for _ in incoming]
    touched: set[str] = set()
    for name, group in groups.items():
        entities = f"entities_{name}"
        touched.add(entities)
        e = _assign(connection, entities, _keys(name, group, incoming, references), group)
        for place, ids in group.split(e).items():
            if incoming[place].tables.kind.name == name:
                own[place] = ids
            else:
                references[place][f"{name}_e"] = ids
    return [Ids(own[place], references[place]) for place in range(len(incoming))], touched


def _owners(incoming: Sequence[Incoming], name: str) -> tuple[int, ...]:
    """Places of the kinds whose facts name entities of a kind that can be referred to."""
    return tuple(
        place
        for place, one in enumerate(incoming)
        if one.tables.kind.name == name or name in one.catalog.references
    )


def _keys(
    name: str,
    group: Group,
    incoming: Sequence[Incoming],
    references: Sequence[Mapping[str, Integers]],
) -> pa.Table:
    """What names each entity of a group: the columns of its kind's table of entities but ``e``."""
    if name in REFERABLE:
        field = f"{name}_id"
        chunks = [c for o in group.owners for c in incoming[o].rows.column(field).chunks]
        return pa.table({field: _taken(pa.chunked_array(chunks), group.place)})
    (owner,) = group.owners
    one, ids = incoming[owner], references[owner]
    columns = [column.name for column in entity_columns(one.tables)[:-1]]
    return pa.table(
        {
            c: ids[c][group.place] if c in ids else _taken(one.rows.column(c), group.place)
            for c in columns
        }
    )


def _taken(column: pa.ChunkedArray, places: Integers) -> pa.ChunkedArray:
    """The values at some places, without a copy where these follow each other."""
    first, count = int(places[0]), len(places)
    if places[-1] - first == count - 1 and (places[1:] > places[:-1]).all():
        return column.slice(first, count)
    return column.take(pa.array(places))


def _assign(
    connection: duckdb.DuckDBPyConnection, entities: str, keys: pa.Table, group: Group
) -> Integers:
    """The id of each mention; entities that are named for the first time are entered."""
    count = len(group.place)
    key = ", ".join(map(identifier, keys.column_names))
    connection.register("mentioned", keys.append_column("place", pa.array(np.arange(count))))
    try:
        known = connection.execute(
            f"SELECT place, e FROM mentioned JOIN {entities} USING ({key})"
        ).fetchnumpy()
    finally:
        connection.unregister("mentioned")
    places: Integers = known["place"]
    if len(np.unique(places)) != len(places):
        raise InvariantError(
            f"{entities} holds an entity twice; the replica is damaged, remove its file and let it "
            "be rebuilt"
        )
    e = group.first.copy()
    e[places] = known["e"]
    if len(places) or not (e[:-1] < e[1:]).all():
        is_new = np.ones(count, np.bool_)
        is_new[places] = False
        new = np.flatnonzero(is_new)
        new = new[np.argsort(e[new], kind="stable")]
        named = keys.take(pa.array(new)).append_column("e", pa.array(e[new]))
    else:  # all are new and in order, as when a replica is filled from nothing
        named = keys.append_column("e", pa.array(e))
    connection.register("named", named)
    try:
        connection.execute(f"INSERT INTO {entities} SELECT * FROM named")
    finally:
        connection.unregister("named")
    return e[group.codes]


def _group(
    codes: Integers, count: int, owners: Sequence[Incoming], places: tuple[int, ...]
) -> Group:
    latest = np.iinfo(np.int64).max
    place, first = np.zeros(count, np.int64), np.full(count, latest)
    end = len(codes)
    for one in reversed(owners):
        # Of several values for one place the last stays, so the earliest is assigned last.
        rows = np.arange(end - one.rows.num_rows, end)[::-1]
        held = codes[rows]
        here = np.full(count, latest)
        here[held] = one.seq[::-1]
        place[held] = rows
        np.minimum(first, here, out=first)
        end -= one.rows.num_rows
    return Group(codes, place, first, places, tuple(one.rows.num_rows for one in owners))


def _combined(parts: Sequence[tuple[Integers, int]]) -> tuple[Integers, int]:
    """One numbering of rows from those by their columns; each is (a number for each row, how many
    numbers there are)."""
    codes, count = parts[0]
    for more, size in parts[1:]:
        codes, count = _renumbered(codes * size + more, count * size)
    return codes, count


def _renumbered(numbers: Integers, size: int) -> tuple[Integers, int]:
    """The same with numbers below ``size`` of which not all are there."""
    rows = len(numbers)
    if size > _SPARSE * rows:
        return _encoded(pa.array(numbers))
    table = np.empty(size, np.int64)
    table[numbers[::-1]] = np.arange(rows - 1, -1, -1)  # the first row stays, see ``_group``
    return _numbered(table[numbers])


def _distinct(column: pa.ChunkedArray) -> tuple[Integers, int]:
    words = _words(column)
    first = None if words is None else _first_alike(words)
    return _encoded(column.combine_chunks()) if first is None else _numbered(first)


def _encoded(values: pa.Array) -> tuple[Integers, int]:
    encoded = pc.dictionary_encode(values)
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def _numbered(first: Integers) -> tuple[Integers, int]:
    """Numbers from 0 without gaps, by the first row that holds what a row holds."""
    number = np.cumsum(first == np.arange(len(first)))
    return number[first] - 1, int(number[-1])


def _first_alike(words: npt.NDArray[np.uint64]) -> Integers | None:
    """For each row the first with the same words; None when that is not found in a few rounds.

    A hash table without chains: in each round the first row in a slot keeps it, and the rows that
    differ from it go on to the next round. Many times faster than a table that grows.
    """
    rows = len(words)
    bits = rows.bit_length()
    table = np.empty(1 << bits, np.int64)
    first = np.empty(rows, np.int64)
    left, sought = np.arange(rows), words
    for factor in _FACTORS:
        mixed = sought[:, 0] ^ sought[:, 1] ^ sought[:, 2] ^ sought[:, 3]
        slot = ((mixed * factor) >> np.uint64(64 - bits)).astype(np.int64)
        table[slot[::-1]] = left[::-1]
        holder = table.take(slot)
        same = (words.take(holder, axis=0) == sought).view(_ALL_FOUR.dtype)[:, 0] == _ALL_FOUR
        first[left[same]] = holder[same]
        left = left[~same]
        if not len(left):
            return first
        sought = words.take(left, axis=0)
    return None


def _words(column: pa.ChunkedArray) -> npt.NDArray[np.uint64] | None:
    """Digests as ``[rows, 4]``, which are told apart faster as numbers; None when they are none."""
    if not pa.types.is_binary(column.type) or not len(column):
        return None
    parts = []
    for values in column.chunks:
        if not len(values):
            continue
        _, offsets, data = values.buffers()
        ends = np.frombuffer(offsets, np.int32)[values.offset : values.offset + len(values) + 1]
        if not (np.diff(ends) == DIGEST_BYTES).all():
            return None
        held = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
        parts.append(held.view(np.uint64).reshape(len(values), -1))
    return np.concatenate(parts)


def _integers(column: pa.ChunkedArray) -> Integers:
    values: Integers = column.to_numpy()
    return values
