"""Columns of facts to the rows that one apply inserts, grouped by table. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from .fact_columns import Columns, KindColumns, Stored, envelopes
from .facts import Role
from .kinds.decision import Decision
from .replica_schema import KIND_TABLES, KindTables


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of consecutive facts. ``kinds`` pairs a kind's tables with its rows in order of ``seq``:
    for a catalog kind (seq, op, fields...), for a decision (seq, kind, fields...), else
    (seq, fields...).
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
    by_kind: dict[int, list[pa.Table]] = {}
    for kind in columns.kinds:
        if kind.stored is None or kind.stored.fields is None:
            by_kind.setdefault(kind.kind_id, []).append(_rows(kind))
    return Batch(
        columns.first_seq,
        columns.next_seq,
        envelopes(columns),
        columns.causes,
        tuple((KIND_TABLES[kind_id], _ordered(parts)) for kind_id, parts in by_kind.items()),
        tuple((KIND_TABLES[k.kind_id], k.stored) for k in columns.kinds if k.stored is not None),
    )


def _rows(kind: KindColumns) -> pa.Table:
    tables = KIND_TABLES[kind.kind_id]
    lead: dict[str, pa.Array] = {"seq": kind.envelope.column("seq")}
    if tables.kind.role is Role.CATALOG:
        lead["op"] = kind.envelope.column("op")
    elif tables.kind.struct is Decision:
        lead["kind"] = pa.repeat(tables.kind.name, kind.fields.num_rows)
    fields = {c.name: kind.fields.column(c.name) for c in tables.columns}
    return pa.table({**lead, **fields})


def _ordered(parts: Sequence[pa.Table]) -> pa.Table:
    """The rows of a kind's forms, each in order of ``seq``, in that order together."""
    return parts[0] if len(parts) == 1 else pa.concat_tables(parts).sort_by("seq")
