"""A batch of decoded facts into the tables of a replica, inside the caller's transaction."""

from __future__ import annotations

from contextlib import ExitStack

import duckdb

from .datalog.model import OPEN_SEQ
from .datalog.sql import identifier
from .replica_batch import Batch
from .replica_schema import KIND_TABLES, CatalogTables, KindTables, entity_columns


def insert(connection: duckdb.DuckDBPyConnection, batch: Batch) -> set[str]:
    """Insert a batch's rows, end the state rows they replace; returns names of changed tables."""
    touched = {"facts"}
    with ExitStack() as views:

        def view(name: str, rows: object) -> None:
            connection.register(name, rows)
            views.callback(connection.unregister, name)

        view("incoming_facts", batch.facts)
        connection.execute("INSERT INTO facts SELECT * FROM incoming_facts")
        if batch.causes.num_rows:
            touched.add("causes")
            view("incoming_causes", batch.causes)
            connection.execute("INSERT INTO causes SELECT * FROM incoming_causes")
        catalog: list[tuple[KindTables, CatalogTables]] = []
        for tables, rows in batch.kinds:
            view(_incoming(tables), rows)
            touched.add(tables.events)
            if tables.catalog is not None:
                catalog.append((tables, tables.catalog))
            else:
                connection.execute(f"INSERT INTO {tables.events} SELECT * FROM {_incoming(tables)}")
        for entities, statement in _naming(catalog):
            touched.add(entities)
            connection.execute(statement)
        for tables, more in catalog:
            touched.add(more.state)
            for statement in _catalog_statements(tables, more, batch.first_seq):
                connection.execute(statement)
    return touched


def _incoming(tables: KindTables) -> str:
    return f"incoming_{tables.kind.name}"


def _naming(catalog: list[tuple[KindTables, CatalogTables]]) -> list[tuple[str, str]]:
    """(table, statement) for each kind of entity that the batch names: its first mentions."""
    mentions: dict[str, list[str]] = {}
    for tables, more in catalog:
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


def _catalog_statements(
    tables: KindTables, more: CatalogTables, first_seq: int
) -> tuple[str, str, str]:
    """Keep what was said under its entity, end what held, begin what holds now."""
    columns = ", ".join(identifier(c.name) for c in tables.columns)
    joins, ids = "", ""
    for name in more.references:
        joins += f" JOIN (SELECT {name}_id, e AS {name}_e FROM entities_{name}) USING ({name}_id)"
        ids += f", {name}_e"
    arrived = f"(SELECT * FROM {tables.events} WHERE seq >= {first_seq})"
    return (
        f"INSERT INTO {tables.events} SELECT e, seq, op, {columns}{ids} FROM {_incoming(tables)} "
        f"JOIN {more.entities} USING ({_key(tables)}){joins} ORDER BY seq",
        f"UPDATE {more.state} SET to_seq = ended.seq FROM "
        f"(SELECT e, min(seq) AS seq FROM {arrived} GROUP BY e) ended "
        f"WHERE {more.state}.e = ended.e AND to_seq = {OPEN_SEQ}",
        f"INSERT INTO {more.state} SELECT e, {columns}{ids}, seq, to_seq FROM (SELECT *, "
        f"coalesce(lead(seq) OVER (PARTITION BY e ORDER BY seq), {OPEN_SEQ}) AS to_seq "
        f"FROM {arrived}) WHERE op = 1 ORDER BY seq",
    )


def _key(tables: KindTables) -> str:
    return ", ".join(identifier(c.name) for c in entity_columns(tables)[:-1])
