"""Rows of consecutive facts into the tables of a replica, inside the caller's transaction.

DuckDB finds the entities that a batch speaks of, by joins over narrow columns; which of several
facts about one entity holds until when is found here; then every table takes its rows as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .datalog.model import OPEN_SEQ
from .datalog.sql import identifier
from .errors import InvariantError
from .replica_batch import Batch
from .replica_schema import KIND_TABLES, CatalogTables, KindTables, entity_columns

_Integers = npt.NDArray[np.int64]


def insert(connection: duckdb.DuckDBPyConnection, batch: Batch) -> set[str]:
    """Insert a batch's rows, end the rows they replace; returns names of changed tables."""
    touched = {"facts"}
    _append(connection, "facts", batch.facts)
    if batch.causes.num_rows:
        touched.add("causes")
        _append(connection, "causes", batch.causes)
    catalog: list[tuple[KindTables, CatalogTables, pa.Table]] = []
    for tables, rows in batch.kinds:
        touched.add(tables.events)
        if tables.catalog is not None:
            catalog.append((tables, tables.catalog, rows))
        else:
            _append(connection, tables.events, rows)
    with ExitStack() as views:
        for tables, _, rows in catalog:
            views.enter_context(_view(connection, _incoming(tables), rows))
        for entities, statement in _naming(catalog):
            touched.add(entities)
            connection.execute(statement)
        for tables, more, rows in catalog:
            _insert_catalog(connection, tables, more, rows, batch.first_seq)
    return touched


def _append(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    with _view(connection, "incoming", rows):
        connection.execute(f"INSERT INTO {name} SELECT * FROM incoming")


@contextmanager
def _view(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> Iterator[None]:
    connection.register(name, rows)
    try:
        yield
    finally:
        connection.unregister(name)


def _incoming(tables: KindTables) -> str:
    return f"incoming_{tables.kind.name}"


def _naming(catalog: list[tuple[KindTables, CatalogTables, pa.Table]]) -> list[tuple[str, str]]:
    """(table, statement) for each kind of entity that the batch names: its first mentions."""
    mentions: dict[str, list[str]] = {}
    for tables, more, _ in catalog:
        key = _key(tables)
        mentions.setdefault(tables.kind.name, []).append(
            f"SELECT {key}, seq FROM {_incoming(tables)}"
        )
        for name in more.references:
            mentions.setdefault(name, []).append(f"SELECT {name}_id, seq FROM {_incoming(tables)}")
    statements = []
    for tables in KIND_TABLES.values():
        if tables.catalog is None or tables.kind.name not in mentions:
            continue
        key, entities = _key(tables), tables.catalog.entities
        said = " UNION ALL ".join(mentions[tables.kind.name])
        statement = (
            f"INSERT INTO {entities} SELECT {key}, min(seq) AS e FROM ({said}) "
            f"ANTI JOIN {entities} USING ({key}) GROUP BY {key} ORDER BY e"
        )
        statements.append((entities, statement))
    return statements


def _insert_catalog(
    connection: duckdb.DuckDBPyConnection,
    tables: KindTables,
    more: CatalogTables,
    rows: pa.Table,
    first_seq: int,
) -> None:
    """Keep what was said under its entity, until when it was the last; end what held before."""
    ids = _entities(connection, tables, more)
    entity = ids["e"]
    if len(entity) != rows.num_rows:
        raise InvariantError(
            f"{rows.num_rows} {tables.kind.name} facts name {len(entity)} entities; the replica "
            "is damaged, remove its file and let it be rebuilt"
        )
    seq = rows.column("seq").to_numpy()
    order = np.argsort(entity, kind="stable")
    to_seq = _until_next(entity, seq, order)
    known = _first_of_known(entity, seq, order, first_seq)
    if known.num_rows:
        with _view(connection, "ended", known):
            connection.execute(
                f"UPDATE {tables.events} SET to_seq = ended.seq FROM ended "
                f"WHERE {tables.events}.e = ended.e AND to_seq = {OPEN_SEQ}"
            )
    said = {name: rows.column(name) for name in rows.column_names}
    columns = {"e": entity, **said, **{c.name: ids[c.name] for c in more.columns}}
    _append(connection, tables.events, pa.table({**columns, "to_seq": to_seq}))


def _entities(
    connection: duckdb.DuckDBPyConnection, tables: KindTables, more: CatalogTables
) -> dict[str, _Integers]:
    """The entity of each incoming row and those it refers to, in the order of the rows."""
    joins, ids = "", "e"
    for name in more.references:
        joins += f" JOIN (SELECT {name}_id, e AS {name}_e FROM entities_{name}) USING ({name}_id)"
        ids += f", {name}_e"
    found: dict[str, _Integers] = connection.execute(
        f"SELECT {ids} FROM {_incoming(tables)} JOIN {more.entities} USING ({_key(tables)}){joins} "
        "ORDER BY seq"
    ).fetchnumpy()
    return found


def _until_next(entity: _Integers, seq: _Integers, order: _Integers) -> _Integers:
    """For each row the ``seq`` of the next row about its entity, or that it holds still."""
    to_seq = np.full(len(seq), OPEN_SEQ, np.int64)
    before, after = order[:-1], order[1:]
    same = entity[before] == entity[after]
    to_seq[before[same]] = seq[after[same]]
    return to_seq


def _first_of_known(
    entity: _Integers, seq: _Integers, order: _Integers, first_seq: int
) -> pa.Table:
    """(e, seq) of the first row about each entity that earlier facts had named."""
    sorted_entity = entity[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = sorted_entity[1:] != sorted_entity[:-1]
    places = order[first & (sorted_entity < first_seq)]
    return pa.table({"e": entity[places], "seq": seq[places]})


def _key(tables: KindTables) -> str:
    return ", ".join(identifier(c.name) for c in entity_columns(tables)[:-1])
