"""Integer ids for the entities that incoming catalog facts speak of.

An entity's id is the ``seq`` of the first fact that named it, be it by a fact of its own kind or by
another's reference. What repeats inside a batch is found here, column by column; DuckDB is only
asked which of the distinct keys earlier facts have named, and takes the new ones.
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
from .replica_schema import REFERABLE, CatalogTables, KindTables, entity_columns

Integers = npt.NDArray[np.int64]


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
class _Mentions:
    """Keys, as columns of equal length, and the ``seq`` of the fact that holds each.

    ``lengths``: the mentions come in so many stretches, each in order of ``seq``.
    """

    keys: pa.Table
    seq: Integers
    lengths: Sequence[int]


def name_entities(
    connection: duckdb.DuckDBPyConnection, incoming: Sequence[Incoming]
) -> tuple[list[Ids], set[str]]:
    """Ids for every row, inside the caller's transaction; and the tables that took new entities.

    ``InvariantError`` when a table of entities holds one twice.
    """
    references: list[dict[str, Integers]] = [{} for _ in incoming]
    own: dict[str, Integers] = {}
    touched: set[str] = set()
    for name in REFERABLE:
        mentioning = [
            (one, ids)
            for one, ids in zip(incoming, references, strict=True)
            if one.tables.kind.name == name or name in one.catalog.references
        ]
        if not mentioning:
            continue
        columns = [one.rows.column(f"{name}_id") for one, _ in mentioning]
        mentions = _Mentions(
            pa.table({f"{name}_id": pa.chunked_array([c for m in columns for c in m.chunks])}),
            np.concatenate([one.seq for one, _ in mentioning]),
            [one.rows.num_rows for one, _ in mentioning],
        )
        entities = f"entities_{name}"
        touched.add(entities)
        e = _assign(connection, entities, mentions)
        for (one, ids), part in zip(mentioning, _split(e, mentions.lengths), strict=True):
            if one.tables.kind.name == name:
                own[name] = part
            else:
                ids[f"{name}_e"] = part
    for one, ids in zip(incoming, references, strict=True):
        if one.tables.kind.name in own:
            continue
        key = {
            c.name: ids[c.name] if c.name in ids else one.rows.column(c.name)
            for c in entity_columns(one.tables)[:-1]
        }
        mentions = _Mentions(pa.table(key), one.seq, [one.rows.num_rows])
        touched.add(one.catalog.entities)
        own[one.tables.kind.name] = _assign(connection, one.catalog.entities, mentions)
    found = [
        Ids(own[one.tables.kind.name], ids) for one, ids in zip(incoming, references, strict=True)
    ]
    return found, touched


def _assign(connection: duckdb.DuckDBPyConnection, entities: str, mentions: _Mentions) -> Integers:
    """The id of each mention; entities that are named for the first time are entered."""
    codes, count = _codes(mentions.keys)
    place, first = _first_mentions(codes, count, mentions)
    distinct = mentions.keys.take(pa.array(place)).append_column(
        "place", pa.array(np.arange(count))
    )
    key = ", ".join(map(identifier, mentions.keys.column_names))
    connection.register("mentioned", distinct)
    try:
        known = connection.execute(
            f"SELECT place, e FROM mentioned JOIN {entities} USING ({key})"
        ).fetchnumpy()
        places: Integers = known["place"]
        if len(np.unique(places)) != len(places):
            raise InvariantError(
                f"{entities} holds an entity twice; the replica is damaged, remove its file and "
                "let it be rebuilt"
            )
    finally:
        connection.unregister("mentioned")
    is_new = np.ones(count, np.bool_)
    is_new[places] = False
    first[places] = known["e"]
    new = np.flatnonzero(is_new)
    new = new[np.argsort(first[new], kind="stable")]
    rows = distinct.drop_columns("place").take(pa.array(new))
    connection.register("named", rows.append_column("e", pa.array(first[new])))
    try:
        connection.execute(f"INSERT INTO {entities} SELECT * FROM named")
    finally:
        connection.unregister("named")
    return first[codes]


def _codes(keys: pa.Table) -> tuple[Integers, int]:
    """(a number for each row, the same for equal rows; how many there are, from 0 without gaps)."""
    codes, count = _distinct(keys.column(0))
    for column in keys.columns[1:]:
        more, size = _distinct(column)
        codes, count = _distinct(pa.chunked_array([pa.array(codes * size + more)]))
    return codes, count


def _distinct(column: pa.ChunkedArray) -> tuple[Integers, int]:
    encoded = pc.dictionary_encode(column.combine_chunks())
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)


def _first_mentions(codes: Integers, count: int, mentions: _Mentions) -> tuple[Integers, Integers]:
    """For each code (a row that has it, the lowest ``seq`` of those that do)."""
    place, first = np.zeros(count, np.int64), np.full(count, np.iinfo(np.int64).max)
    start = 0
    for length in mentions.lengths:
        # Of several values for one place the last stays, so the earliest is assigned last.
        rows = np.arange(start, start + length)[::-1]
        held = codes[rows]
        here = np.full(count, np.iinfo(np.int64).max)
        here[held] = mentions.seq[rows]
        place[held] = rows
        np.minimum(first, here, out=first)
        start += length
    return place, first


def _split(values: Integers, lengths: Sequence[int]) -> list[Integers]:
    return np.split(values, np.cumsum(lengths)[:-1])


def _integers(column: pa.ChunkedArray) -> Integers:
    values: Integers = column.to_numpy()
    return values
