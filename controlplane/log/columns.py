"""Facts of one kind as a Parquet table, and back to the same bytes.

Every row carries the envelope, so a table can be read on its own by any tool; the body's fields
become typed columns under the names of the kind's struct. A body that its columns would not give
back byte for byte (of another schema version, or of a kind this build does not know) is kept whole
in the column ``body`` instead. How columns become bodies again stands in the manifest, so reading
them back needs no table of kinds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pagetrail.catalog.envelope import Cause, CompareAndSet, Fact
from pagetrail.catalog.errors import CorruptionError
from pagetrail.catalog.facts import KINDS
from pagetrail.controlplane.log.manifests import BodyColumn, Form

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_COMPRESSION_LEVEL = 9
_ENCODER = msgspec.msgpack.Encoder()
_CAUSES_DECODER = msgspec.msgpack.Decoder(tuple[Cause, ...])
_REGISTERS_DECODER = msgspec.msgpack.Decoder(tuple[CompareAndSet, ...])

_ENVELOPE = pa.schema(
    [
        ("seq", pa.int64()),
        ("tx", pa.int64()),
        ("t_us", pa.int64()),
        ("writer_epoch", pa.int64()),
        ("client", pa.string()),
        ("client_epoch", pa.int64()),
        ("client_seq", pa.int64()),
        ("op", pa.int8()),
        ("schema_v", pa.int64()),
        # The one cause, when it is an earlier transaction of the same client and epoch: how many
        # transactions before. Any other causes, and registers, as msgpack. First fact of a tx only.
        ("cause_back", pa.int64()),
        ("causes", pa.binary()),
        ("compare_and_set", pa.binary()),
        ("body", pa.binary()),
    ]
)


_ARROW = {
    Form.INTEGER: pa.int64(),
    Form.BYTES: pa.binary(),
    Form.TEXT: pa.string(),
    Form.BOOLEAN: pa.bool_(),
    Form.MSGPACK: pa.binary(),
}
_PYTHON = {Form.BYTES: bytes, Form.TEXT: str, Form.BOOLEAN: bool}


@dataclass(frozen=True, slots=True)
class StoredFact:
    """A row read back: what the log's bytes are made of."""

    seq: int
    tx: int
    client: str
    client_epoch: int
    client_seq: int
    op: int
    schema_v: int
    causes: tuple[Cause, ...]
    compare_and_set: tuple[CompareAndSet, ...]
    body: bytes


def body_columns(kind_id: int) -> tuple[BodyColumn, ...]:
    """The columns of a kind's body; none when this build does not know the kind."""
    kind = KINDS.get(kind_id)
    if kind is None:
        return ()
    info = msgspec.inspect.type_info(kind.struct)
    if not isinstance(info, msgspec.inspect.StructType):
        return ()
    taken = set(_ENVELOPE.names)
    return tuple(
        BodyColumn(f"body_{f.name}" if f.name in taken else f.name, _form_of(f.type))
        for f in info.fields
    )


def kind_table(
    facts: Sequence[Fact],
    registers: Sequence[tuple[CompareAndSet, ...]],
    columns: Sequence[BodyColumn],
) -> pa.Table:
    """Facts of one kind as a table; ``registers`` are those of each fact's transaction."""
    envelope: dict[str, list[Any]] = {name: [] for name in _ENVELOPE.names}
    values: list[list[Any]] = [[] for _ in columns]
    for fact, changes in zip(facts, registers, strict=True):
        first = fact.index == 0
        back = _cause_back(fact) if first else None
        causes = _ENCODER.encode(fact.causes) if first and fact.causes and back is None else None
        body = bytes(fact.body)
        cells = _cells(body, columns)
        row = (
            fact.seq,
            fact.tx,
            fact.t_us,
            fact.writer_epoch,
            fact.client,
            fact.client_epoch,
            fact.client_seq,
            fact.op,
            fact.schema_v,
            back,
            causes,
            _ENCODER.encode(changes) if first and changes else None,
            body if cells is None else None,
        )
        for name, value in zip(_ENVELOPE.names, row, strict=True):
            envelope[name].append(value)
        for column, value in zip(values, cells or [None] * len(columns), strict=True):
            column.append(value)
    arrays = [pa.array(envelope[field.name], field.type) for field in _ENVELOPE]
    arrays += [pa.array(v, _ARROW[c.form]) for v, c in zip(values, columns, strict=True)]
    fields = [*_ENVELOPE, *(pa.field(c.column, _ARROW[c.form]) for c in columns)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a table compactly: deltas for integers, dictionaries where values repeat."""
    dictionary, encodings = [], {}
    for field in table.schema:
        if pa.types.is_integer(field.type):
            encodings[field.name] = "DELTA_BINARY_PACKED"
        elif pa.types.is_string(field.type) or _repeats(table.column(field.name)):
            dictionary.append(field.name)
        elif pa.types.is_binary(field.type):
            encodings[field.name] = "DELTA_LENGTH_BYTE_ARRAY"
    pq.write_table(
        table,
        path,
        compression="zstd",
        compression_level=_COMPRESSION_LEVEL,
        use_dictionary=dictionary,
        column_encoding=encodings,
        write_statistics=["seq"] if "seq" in table.schema.names else False,
        store_schema=False,
    )


def read_facts(path: Path, columns: Sequence[BodyColumn]) -> Iterator[StoredFact]:
    """The rows of a kind's table. ``CorruptionError`` when it is not one."""
    try:
        table = pq.read_table(path)
        envelope = [table.column(name).to_pylist() for name in _ENVELOPE.names]
        cells = [table.column(c.column).to_pylist() for c in columns]
    except (pa.ArrowException, OSError, KeyError) as error:
        raise CorruptionError(f"{path}: not a table of facts: {error}") from error
    packed = [place for place, c in enumerate(columns) if c.form is Form.MSGPACK]
    rows = zip(*cells, strict=True) if cells else iter(() for _ in range(table.num_rows))
    for head, row in zip(zip(*envelope, strict=True), rows, strict=True):
        seq, tx, _, _, client, client_epoch, client_seq, op, schema_v, *rest = head
        back, causes, changes, body = rest
        yield StoredFact(
            seq,
            tx,
            client,
            client_epoch,
            client_seq,
            op,
            schema_v,
            _causes(client, client_epoch, client_seq, back, causes),
            () if changes is None else _REGISTERS_DECODER.decode(changes),
            _body(list(row), packed) if body is None else body,
        )


def _form_of(kind: msgspec.inspect.Type) -> Form:
    if isinstance(kind, msgspec.inspect.UnionType):
        others = [t for t in kind.types if not isinstance(t, msgspec.inspect.NoneType)]
        return _form_of(others[0]) if len(others) == 1 else Form.MSGPACK
    if isinstance(kind, msgspec.inspect.Metadata):
        return _form_of(kind.type)
    if isinstance(kind, msgspec.inspect.BoolType):
        return Form.BOOLEAN
    if isinstance(kind, msgspec.inspect.IntType):
        return Form.INTEGER
    if isinstance(kind, msgspec.inspect.BytesType):
        return Form.BYTES
    if isinstance(kind, msgspec.inspect.StrType):
        return Form.TEXT
    return Form.MSGPACK


def _cells(body: bytes, columns: Sequence[BodyColumn]) -> list[Any] | None:
    """The body's fields, or None when they would not give its bytes back."""
    try:
        fields = msgspec.msgpack.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if not isinstance(fields, list) or len(fields) != len(columns) or not columns:
        return None
    if _ENCODER.encode(fields) != body:
        return None
    for place, column in enumerate(columns):
        value = fields[place]
        if column.form is Form.MSGPACK:
            fields[place] = _ENCODER.encode(value)
        elif value is not None and not _fits(value, column.form):
            return None
    return fields


def _fits(value: Any, form: Form) -> bool:
    if form is Form.INTEGER:
        return type(value) is int and _INT64_MIN <= value <= _INT64_MAX
    return type(value) is _PYTHON[form]


def _body(fields: list[Any], packed: Sequence[int]) -> bytes:
    for place in packed:
        fields[place] = msgspec.Raw(fields[place])
    return _ENCODER.encode(fields)


def _cause_back(fact: Fact) -> int | None:
    if len(fact.causes) != 1:
        return None
    (cause,) = fact.causes
    if (cause.client, cause.client_epoch) != (fact.client, fact.client_epoch):
        return None
    return fact.client_seq - cause.client_seq


def _causes(
    client: str, client_epoch: int, client_seq: int, back: int | None, causes: bytes | None
) -> tuple[Cause, ...]:
    if back is not None:
        return (Cause(client, client_epoch, client_seq - back),)
    if causes is None:
        return ()
    return _CAUSES_DECODER.decode(causes)


def _repeats(column: pa.ChunkedArray) -> bool:
    """Whether a dictionary pays: at most half of the values are distinct."""
    return bool(pc.count_distinct(column).as_py() * 2 <= len(column))
