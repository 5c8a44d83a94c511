"""Facts to Arrow: the columns that one apply inserts, grouped by table. Pure.

Everything is decoded before anything is written, so a fact of an unknown kind or form refuses the
whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import msgspec
import pyarrow as pa

from .datalog.model import Column, Type
from .envelope import Fact
from .errors import BadInputError, CorruptionError
from .facts import Role, decode_body
from .kinds.decision import Decision
from .replica_schema import CAUSE, ENVELOPE, KIND_TABLES, KindTables, Storage

_ARROW = {Type.INT: pa.int64(), Type.TEXT: pa.string(), Type.BYTES: pa.binary()}
_ENCODE = msgspec.msgpack.Encoder().encode
_ENVELOPE_ATTRIBUTES = tuple("index" if c.name == "idx" else c.name for c in ENVELOPE)
_SEQ, _OP, _KIND = Column("seq", Type.INT), Column("op", Type.INT), Column("kind", Type.TEXT)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows of consecutive facts. ``kinds`` pairs a kind's tables with its rows: for a catalog
    kind (seq, op, fields...), for a decision (seq, kind, fields...), else (seq, fields...)."""

    first_seq: int
    next_seq: int
    facts: pa.Table
    causes: pa.Table
    kinds: tuple[tuple[KindTables, pa.Table], ...]


def batch_of(facts: Sequence[Fact], expected_seq: int) -> Batch:
    """Decode ``facts``, which must continue at ``expected_seq`` without a gap and end with a whole
    transaction as their frame does.

    Raises BadInputError on a gap, UnknownKindError and CorruptionError as ``decode_body`` does.
    """
    by_kind: dict[int, list[Fact]] = {}
    for offset, fact in enumerate(facts):
        if fact.seq != expected_seq + offset:
            raise BadInputError(
                f"fact {fact.seq} does not continue at {expected_seq + offset}; fetch the range "
                "between from the log and apply it first"
            )
        by_kind.setdefault(fact.kind, []).append(fact)
    kinds = tuple(_rows(kind_id, group) for kind_id, group in by_kind.items())
    names = {kind_id: KIND_TABLES[kind_id].kind.name for kind_id in by_kind}
    envelope: list[Sequence[Any]] = [
        [names[fact.kind] for fact in facts] if column.name == "kind" else _values(facts, attribute)
        for column, attribute in zip(ENVELOPE, _ENVELOPE_ATTRIBUTES, strict=True)
    ]
    causes = [
        (fact.tx, cause.client, cause.client_epoch, cause.client_seq)
        for fact in facts
        if fact.index == 0
        for cause in fact.causes
    ]
    return Batch(
        expected_seq,
        expected_seq + len(facts),
        _table(ENVELOPE, envelope),
        _table(CAUSE, list(zip(*causes, strict=True)) or [()] * len(CAUSE)),
        kinds,
    )


def _rows(kind_id: int, facts: list[Fact]) -> tuple[KindTables, pa.Table]:
    bodies = [decode_body(kind_id, f.schema_v, f.body) for f in facts]
    tables = KIND_TABLES[kind_id]
    columns, values = [_SEQ], [_values(facts, "seq")]
    if tables.kind.role is Role.CATALOG:
        columns.append(_OP)
        values.append(_values(facts, "op"))
    elif tables.kind.struct is Decision:
        columns.append(_KIND)
        values.append([tables.kind.name] * len(facts))
    for field in tables.fields:
        found = _values(bodies, field.column.name)
        if field.storage is Storage.ENCODED:
            found = [_ENCODE(value) for value in found]
        elif field.storage is Storage.ZERO_ONE:
            found = [int(value) for value in found]
        columns.append(field.column)
        values.append(found)
    return tables, _table(columns, values)


def _values(of: Sequence[object], attribute: str) -> list[Any]:
    return list(map(attrgetter(attribute), of))


def _table(columns: Sequence[Column], values: Sequence[Sequence[Any]]) -> pa.Table:
    return pa.table(
        [_array(c, v) for c, v in zip(columns, values, strict=True)], [c.name for c in columns]
    )


def _array(column: Column, values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values, _ARROW[column.type])
    except (OverflowError, pa.ArrowInvalid) as error:
        raise CorruptionError(
            f"a value of field {column.name} does not fit its column ({error}); integers of "
            "facts have at most 64 bits"
        ) from error
