"""The replica's own account of its rows, so that rows lost quietly are noticed when it is opened.

For each table: how many rows there are and the exclusive-or of their hashes; for tables whose rows
end also how many have and the exclusive-or over (from, to) of those. Written in the transaction
that writes the rows. DuckDB's hash may change between versions; a replica written by another
version is rebuilt anyway.
"""

from __future__ import annotations

from collections.abc import Collection

import duckdb

from .datalog.model import OPEN_SEQ
from .datalog.sql import identifier, literal
from .replica_schema import STORED_TABLES, StoredTable


def open_ledger(connection: duckdb.DuckDBPyConnection) -> None:
    """Enter all tables as empty."""
    rows = ", ".join(f"({literal(t.name)}, 0, 0, 0, 0)" for t in STORED_TABLES)
    connection.execute(f"INSERT INTO ledger VALUES {rows}")


def enter_rows(
    connection: duckdb.DuckDBPyConnection, first_seq: int, touched: Collection[str]
) -> None:
    """Account for what the facts from ``first_seq`` on have added to and ended in some tables."""
    tallies = " UNION ALL ".join(_tally(t, first_seq) for t in STORED_TABLES if t.name in touched)
    connection.execute(
        "UPDATE ledger SET row_count = row_count + n.rows, row_hash = xor(row_hash, n.hash), "
        "closed_count = closed_count + n.closed, closed_hash = xor(closed_hash, n.closing) "
        f"FROM ({tallies}) n WHERE table_name = n.name"
    )


def check_ledger(connection: duckdb.DuckDBPyConnection) -> str:
    """Count everything again; empty when all is there, else what is wrong with which table."""
    for table in STORED_TABLES:
        found = connection.execute(_tally(table, 0)).fetchall()
        entered = connection.execute(
            "SELECT table_name, row_count, row_hash, closed_count, closed_hash FROM ledger "
            "WHERE table_name = ?",
            [table.name],
        ).fetchall()
        if found != entered:
            rows = entered[0][1] if len(entered) == 1 else "no"
            return f"table {table.name} holds {found[0][1]} rows, its ledger {rows} or other ones"
    return ""


def _tally(table: StoredTable, first_seq: int) -> str:
    """SELECT (name, rows, hash, closed, closing) of what came from ``first_seq`` on."""
    columns = ", ".join(identifier(c.name) for c in table.columns)
    rows = (
        f"SELECT count(*) AS rows, coalesce(bit_xor(hash({columns})), 0::UBIGINT) AS hash "
        f"FROM {table.name} WHERE {table.since} >= {first_seq}"
    )
    closed = "SELECT 0 AS closed, 0::UBIGINT AS closing"
    if table.closes:
        closed = (
            "SELECT count(*) AS closed, "
            f"coalesce(bit_xor(hash({table.since}, to_seq)), 0::UBIGINT) AS closing "
            f"FROM {table.name} WHERE to_seq >= {first_seq} AND to_seq < {OPEN_SEQ}"
        )
    return f"SELECT '{table.name}' AS name, * FROM ({rows}), ({closed})"
