"""Facts as Arrow columns, kind by kind: how many facts at a time reach a replica. Pure.

Columns come from decoded facts (here) or straight from a sealed segment's Parquet
(``controlplane.log.sealed_columns``); both give the same. Everything is decoded and checked before
anything is written, so a fact of an unknown kind or form refuses the whole batch.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from .datalog.model import Column, Type
from .envelope import Fact
from .errors import BadInputError, CorruptionError
from .facts import KINDS, decode_body
from .replica_schema import CAUSE, KIND_TABLES, STORED_ENVELOPE, Field, Storage

ARROW = {Type.INT: pa.int64(), Type.TEXT: pa.string(), Type.BYTES: pa.binary()}

STATED = tuple(c for c in STORED_ENVELOPE if c.name != "kind")
"""The envelope's columns that cannot be derived from the others and from the kind."""

_ENCODE = msgspec.msgpack.Encoder().encode


@dataclass(frozen=True, slots=True)
class Stored:
    """Parquet files from which DuckDB takes facts of one kind itself, column by column.

    The files have been checked, and are not changed or removed before the rows are taken. All have
    the same columns: ``STATED``, and ``fields`` are those for the kind's fields, in their order;
    these are given beside the files when ``fields`` is None.
    """

    paths: tuple[Path, ...]
    fields: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class KindColumns:
    """Facts of one kind in order of ``seq``. ``envelope`` has the columns ``STATED``, ``fields``
    those of the kind's tables. What ``stored`` holds is left out there: ``envelope`` then only has
    ``seq`` and, of a catalog kind, ``op``, and ``fields`` no column if the files have them."""

    kind_id: int
    envelope: pa.Table
    fields: pa.Table
    stored: Stored | None = None

    @property
    def form(self) -> tuple[bool, tuple[str, ...] | None]:
        """What is here and what lies in files."""
        return self.stored is None, None if self.stored is None else self.stored.fields


@dataclass(frozen=True, slots=True)
class Columns:
    """Consecutive facts; ``causes`` has the columns ``CAUSE``. A kind is there once in each form
    that some of its facts have."""

    first_seq: int
    next_seq: int
    kinds: tuple[KindColumns, ...]
    causes: pa.Table


def columns_of(facts: Sequence[Fact], expected_seq: int) -> Columns:
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
    kinds = tuple(_kind_columns(kind_id, group) for kind_id, group in by_kind.items())
    causes = [
        (fact.tx, cause.client, cause.client_epoch, cause.client_seq)
        for fact in facts
        if fact.index == 0
        for cause in fact.causes
    ]
    return Columns(
        expected_seq,
        expected_seq + len(facts),
        kinds,
        table(CAUSE, list(zip(*causes, strict=True)) or [()] * len(CAUSE)),
    )


def joined(parts: Sequence[Columns]) -> Columns:
    """Columns that follow each other as one."""
    by_form: dict[object, list[KindColumns]] = {}
    for part in parts:
        for kind in part.kinds:
            by_form.setdefault((kind.kind_id, kind.form), []).append(kind)
    return Columns(
        parts[0].first_seq,
        parts[-1].next_seq,
        tuple(_joined(kinds) for kinds in by_form.values()),
        pa.concat_tables([part.causes for part in parts]),
    )


def _joined(kinds: Sequence[KindColumns]) -> KindColumns:
    files = [kind.stored for kind in kinds if kind.stored is not None]
    return KindColumns(
        kinds[0].kind_id,
        pa.concat_tables([kind.envelope for kind in kinds]),
        pa.concat_tables([kind.fields for kind in kinds]),
        Stored(tuple(p for f in files for p in f.paths), files[0].fields) if files else None,
    )


def check_gapless(columns: Columns) -> None:
    """``CorruptionError`` unless the kinds hold every ``seq`` of the range once."""
    count = columns.next_seq - columns.first_seq
    seen = np.zeros(count, np.bool_)
    rows = 0
    for kind in columns.kinds:
        seqs = kind.envelope.column("seq").to_numpy() - columns.first_seq
        rows += len(seqs)
        if len(seqs) and (seqs.min() < 0 or seqs.max() >= count):
            break
        seen[seqs] = True
    if rows != count or not seen.all():
        raise CorruptionError(
            f"the facts from {columns.first_seq} to {columns.next_seq} are not each there once; "
            "restore the segment they come from"
        )


def field_column(field: Field, values: pa.ChunkedArray | Sequence[Any]) -> pa.Array:
    """A field's values as its column: encoded or made 0 and 1 where its storage says so."""
    if field.storage is Storage.ENCODED:
        plain = values.to_pylist() if isinstance(values, pa.ChunkedArray) else values
        return _array(field.column, [_ENCODE(value) for value in plain])
    if field.storage is Storage.ZERO_ONE:
        if isinstance(values, pa.ChunkedArray):
            return values.cast(pa.int64())
        return _array(field.column, [int(value) for value in values])
    return values if isinstance(values, pa.ChunkedArray) else _array(field.column, values)


def table(columns: Sequence[Column], values: Sequence[Any]) -> pa.Table:
    """A table of typed columns; each of ``values`` is a sequence, or an Arrow array already."""
    arrays = [
        v if isinstance(v, (pa.Array, pa.ChunkedArray)) else _array(c, v)
        for c, v in zip(columns, values, strict=True)
    ]
    return pa.table(arrays, [c.name for c in columns])


def envelopes(columns: Columns) -> pa.Table:
    """The envelopes of the facts that have theirs here: the columns ``STORED_ENVELOPE``."""
    names = [c.name for c in STORED_ENVELOPE]
    parts = [table(STORED_ENVELOPE, [()] * len(names))]
    for kind in columns.kinds:
        if kind.stored is not None:
            continue
        name = pa.repeat(KINDS[kind.kind_id].name, kind.envelope.num_rows)
        parts.append(
            pa.table([name if n == "kind" else kind.envelope.column(n) for n in names], names)
        )
    return pa.concat_tables(parts)


def decoded_fields(
    kind_id: int, versions: Sequence[int], bodies: Sequence[bytes | msgspec.Raw]
) -> pa.Table:
    """Bodies of one kind as the columns of its tables. Raises as ``decode_body`` does."""
    values = _fields_at_once(kind_id, versions, bodies)
    if values is None:
        decoded = [decode_body(kind_id, v, body) for v, body in zip(versions, bodies, strict=True)]
        values = [list(map(attrgetter(c.name), decoded)) for c in KIND_TABLES[kind_id].columns]
    fields = KIND_TABLES[kind_id].fields
    columns = [field_column(field, column) for field, column in zip(fields, values, strict=True)]
    return table(KIND_TABLES[kind_id].columns, columns)


def _kind_columns(kind_id: int, facts: Sequence[Fact]) -> KindColumns:
    envelope = [list(map(attrgetter(c.name), facts)) for c in STATED]
    versions = [fact.schema_v for fact in facts]
    fields = decoded_fields(kind_id, versions, [fact.body for fact in facts])
    return KindColumns(kind_id, table(STATED, envelope), fields)


def _fields_at_once(
    kind_id: int, versions: Sequence[int], bodies: Sequence[bytes | msgspec.Raw]
) -> list[Sequence[Any]] | None:
    """The values of each field by one decoding of all bodies; None when some body needs more.

    That is a body of an older version, with fields to be defaulted, or one that is in error.
    """
    kind = KINDS.get(kind_id)
    if kind is None or set(versions) != {kind.version}:
        return None
    try:
        rows = _ROWS[kind_id].decode(_ENCODE([msgspec.Raw(body) for body in bodies]))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    return list(zip(*rows, strict=True))


def _rows_decoder(struct: type[msgspec.Struct]) -> msgspec.msgpack.Decoder[Any]:
    """Decodes an array of bodies to tuples of fields, each checked as the struct checks it."""
    hints = typing.get_type_hints(struct, include_extras=True)
    row = tuple.__class_getitem__(tuple(hints[f.name] for f in msgspec.structs.fields(struct)))
    return msgspec.msgpack.Decoder(list[row])  # type: ignore[valid-type]


_ROWS: Mapping[int, msgspec.msgpack.Decoder[Any]] = {
    kind_id: _rows_decoder(kind.struct) for kind_id, kind in KINDS.items()
}


def _array(column: Column, values: Sequence[Any]) -> pa.Array:
    try:
        return pa.array(values, ARROW[column.type])
    except (OverflowError, pa.ArrowInvalid) as error:
        raise CorruptionError(
            f"a value of field {column.name} does not fit its column ({error}); integers of "
            "facts have at most 64 bits"
        ) from error
