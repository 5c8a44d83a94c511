"""Columns of facts to the rows that one apply inserts, grouped by table. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from .fact_columns import Columns, KindColumns, Stored, envelopes
from .facts import Role
from .kinds.decision import Decision
from .replica_schema import KIND_TABLES, KindTables


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of consecutive facts. ``kinds`` pairs a kind's tables with its rows: for a catalog
    kind (seq, op, fields...), for a decision (seq, kind, fields...), else (seq, fields...).
    ``stored`` are the files with the envelopes, or the fields too, of the facts that lack them
    here."""

    first_seq: int
    next_seq: int
    facts: pa.Table
    causes: pa.Table
    kinds: tuple[tuple[KindTables, pa.Table], ...]
    stored: tuple[tuple[KindTables, Stored], ...]


def batch_of(columns: Columns) -> Batch:
    """The rows of every table that ``columns`` add to."""
    return Batch(
        columns.first_seq,
        columns.next_seq,
        envelopes(columns),
        columns.causes,
        tuple(_rows(k) for k in columns.kinds if k.stored is None or k.stored.fields is None),
        tuple((KIND_TABLES[k.kind_id], k.stored) for k in columns.kinds if k.stored is not None),
    )


def _rows(kind: KindColumns) -> tuple[KindTables, pa.Table]:
    tables = KIND_TABLES[kind.kind_id]
    lead: dict[str, pa.Array] = {"seq": kind.envelope.column("seq")}
    if tables.kind.role is Role.CATALOG:
        lead["op"] = kind.envelope.column("op")
    elif tables.kind.struct is Decision:
        lead["kind"] = pa.repeat(tables.kind.name, kind.fields.num_rows)
    fields = {c.name: kind.fields.column(c.name) for c in tables.columns}
    return tables, pa.table({**lead, **fields})
