"""Rows of consecutive facts into the tables of a replica, inside the caller's transaction.

Which of several facts about one entity holds until when is found here, by the ids that
``replica_naming`` gives; then every table takes its rows as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from .datalog.model import OPEN_SEQ
from .datalog.sql import identifier, literal
from .errors import CorruptionError
from .fact_columns import Stored
from .kinds.decision import Decision
from .replica_batch import Batch
from .replica_naming import Ids, Incoming, Integers, grouped, name_entities
from .replica_schema import STORED_ENVELOPE, KindTables, event_columns


def insert(connection: duckdb.DuckDBPyConnection, batch: Batch) -> set[str]:
    """Insert a batch's rows, end the rows they replace; returns names of changed tables.

    CorruptionError when a file that rows lie in cannot be read or misses a value.
    """
    touched: set[str] = set()
    if batch.facts.num_rows:
        touched.add("facts")
        _append(connection, "facts", batch.facts)
    if batch.causes.num_rows:
        touched.add("causes")
        _append(connection, "causes", batch.causes)
    catalog: list[Incoming] = []
    for tables, rows in batch.kinds:
        touched.add(tables.events)
        if tables.catalog is not None:
            catalog.append(Incoming(tables, tables.catalog, rows))
        else:
            _append(connection, tables.events, rows)
    if batch.stored:
        with ThreadPoolExecutor(1) as beside:  # alone, neither keeps all processors busy
            groups = beside.submit(grouped, catalog)
            touched |= _insert_stored(connection, batch.stored)
        named, entered = name_entities(connection, catalog, groups.result())
    else:
        named, entered = name_entities(connection, catalog, grouped(catalog))
    for incoming, ids in zip(catalog, named, strict=True):
        _insert_catalog(connection, incoming, ids, batch.first_seq)
    return touched | entered


def _insert_stored(
    connection: duckdb.DuckDBPyConnection, kinds: Sequence[tuple[KindTables, Stored]]
) -> set[str]:
    """Insert what files hold of envelopes and fields; returns names of changed tables."""
    envelope = {c.name: identifier(c.name) for c in STORED_ENVELOPE}
    _take(
        connection,
        "facts",
        [(envelope | {"kind": literal(tables.kind.name)}, one.paths) for tables, one in kinds],
    )
    events: dict[str, list[tuple[Mapping[str, str], Sequence[Path]]]] = {}
    for tables, stored in kinds:
        if stored.fields is not None:
            row = {c.name: identifier(c.name) for c in event_columns(tables)}
            if tables.kind.struct is Decision:
                row["kind"] = literal(tables.kind.name)
            for column, field in zip(tables.columns, stored.fields, strict=True):
                row[column.name] = identifier(field)
            events.setdefault(tables.events, []).append((row, stored.paths))
    for table, sources in events.items():
        _take(connection, table, sources)
    return {"facts", *events}


def _take(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    sources: Sequence[tuple[Mapping[str, str], Sequence[Path]]],
) -> None:
    """Insert rows of files: from each source, for each column of the table an expression over the
    files' columns. All in one statement, between whose parts no processor waits."""
    columns = ", ".join(map(identifier, sources[0][0]))
    parts = [
        f"SELECT {', '.join(row.values())} FROM read_parquet(?, hive_partitioning = false)"
        for row, _ in sources
    ]
    files = [[str(path) for path in paths] for _, paths in sources]
    try:
        connection.execute(f"INSERT INTO {table} ({columns}) {' UNION ALL '.join(parts)}", files)
    except (duckdb.IOException, duckdb.InvalidInputException, duckdb.ConstraintException) as error:
        count = sum(map(len, files))
        raise CorruptionError(f"{files[0][0]}, or another of {count} files: {error}") from error


def _append(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> None:
    columns = ", ".join(map(identifier, rows.column_names))
    with _view(connection, "incoming", rows):
        connection.execute(f"INSERT INTO {name} ({columns}) SELECT * FROM incoming")


@contextmanager
def _view(connection: duckdb.DuckDBPyConnection, name: str, rows: pa.Table) -> Iterator[None]:
    connection.register(name, rows)
    try:
        yield
    finally:
        connection.unregister(name)


def _insert_catalog(
    connection: duckdb.DuckDBPyConnection, incoming: Incoming, ids: Ids, first_seq: int
) -> None:
    """Keep what was said under its entity, until when it was the last; end what held before."""
    tables, rows, entity, seq = incoming.tables, incoming.rows, ids.entity, incoming.seq
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
    cells = {"e": entity, **said, **ids.references}
    ordered = {column.name: cells[column.name] for column in event_columns(tables)}
    _append(connection, tables.events, pa.table({**ordered, "to_seq": to_seq}))


def _until_next(entity: Integers, seq: Integers, order: Integers) -> Integers:
    """For each row the ``seq`` of the next row about its entity, or that it holds still."""
    to_seq = np.full(len(seq), OPEN_SEQ, np.int64)
    before, after = order[:-1], order[1:]
    same = entity[before] == entity[after]
    to_seq[before[same]] = seq[after[same]]
    return to_seq


def _first_of_known(entity: Integers, seq: Integers, order: Integers, first_seq: int) -> pa.Table:
    """(e, seq) of the first row about each entity that earlier facts had named."""
    sorted_entity = entity[order]
    first = np.ones(len(order), np.bool_)
    first[1:] = sorted_entity[1:] != sorted_entity[:-1]
    places = order[first & (sorted_entity < first_seq)]
    return pa.table({"e": entity[places], "seq": seq[places]})
