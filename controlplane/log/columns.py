"""Facts of one kind as a Parquet table, and back to the same bytes.

Every row carries the envelope, so a table can be read on its own by any tool; the body's fields
become typed columns under the names of the kind's struct. A body that has not its kind's form, or
that its columns would not give back byte for byte, or of a kind this build does not know, is kept
whole in the column ``body`` instead. How columns become bodies again stands in the manifest, so
reading them back needs no table of kinds.
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
from pagetrail.catalog.errors import CorruptionError, PagetrailError
from pagetrail.catalog.facts import KINDS, decode_body, encode_body
from pagetrail.controlplane.log.manifests import BodyColumn, Form

_INT64_MIN, _INT64_MAX = -(2**63), 2**63 - 1
_COMPRESSION_LEVEL = 9
_STATISTICS = ("seq", "cause_back", "causes", "body")
"""By these a reader finds a fact, and need not read columns that hold nothing."""
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
_PYTHON = {Form.INTEGER: int, Form.BYTES: bytes, Form.TEXT: str, Form.BOOLEAN: bool}


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
    bodies = [bytes(fact.body) for fact in facts]
    rows_of_fields = [
        _fields_of(body, len(columns)) if _reads_back(fact, body) else None
        for fact, body in zip(facts, bodies, strict=True)
    ]
    values, whole = _body_values(bodies, rows_of_fields, columns)
    rows = zip(
        *(
            (
                fact.seq,
                fact.tx,
                fact.t_us,
                fact.writer_epoch,
                fact.client,
                fact.client_epoch,
                fact.client_seq,
                fact.op,
                fact.schema_v,
                *(_links(fact, changes) if fact.index == 0 else (None, None, None)),
                body,
            )
            for fact, changes, body in zip(facts, registers, whole, strict=True)
        ),
        strict=True,
    )
    arrays = [pa.array(v, f.type) for v, f in zip(rows, _ENVELOPE, strict=True)]
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
        write_statistics=[n for n in _STATISTICS if n in table.schema.names] or False,
        store_schema=False,
    )


def read_facts(path: Path, data: bytes, columns: Sequence[BodyColumn]) -> Iterator[StoredFact]:
    """The rows of a kind's table, whose bytes are ``data``. ``CorruptionError`` if it is none."""
    try:
        table = pq.read_table(pa.BufferReader(data))
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


def _body_values(
    bodies: Sequence[bytes], rows: list[list[Any] | None], columns: Sequence[BodyColumn]
) -> tuple[list[list[Any]], list[bytes | None]]:
    """(values of each column, bodies kept whole): a body is in its columns or whole, never both.

    ``rows`` are the fields of each body, None for one to be kept whole.
    """
    for place, column in enumerate(columns):
        if column.form is not Form.MSGPACK and not _all_fit(rows, place, column.form):
            rows = [
                row if row is not None and _fits(row[place], column.form) else None for row in rows
            ]
    values = []
    for place, column in enumerate(columns):
        cells = [None if row is None else row[place] for row in rows]
        if column.form is Form.MSGPACK:
            encode = _ENCODER.encode
            cells = [
                None if row is None else encode(cell) for row, cell in zip(rows, cells, strict=True)
            ]
        values.append(cells)
    whole = [body if row is None else None for body, row in zip(bodies, rows, strict=True)]
    return values, whole


def _reads_back(fact: Fact, body: bytes) -> bool:
    """Whether the body has its kind's form, and its kind's struct gives the same bytes again.

    Who reads the columns later may then take them for values of the struct, unseen.
    """
    try:
        return encode_body(decode_body(fact.kind, fact.schema_v, body)) == body
    except PagetrailError:
        return False


def _fields_of(body: bytes, count: int) -> list[Any] | None:
    """The body's fields when it is an array of ``count`` in its canonical form, else None."""
    try:
        fields = msgspec.msgpack.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    if type(fields) is not list or len(fields) != count or not count:
        return None
    return fields if _ENCODER.encode(fields) == body else None


def _all_fit(rows: Sequence[list[Any] | None], place: int, form: Form) -> bool:
    """Whether every value of a column fits, found out without a call per value."""
    values = [row[place] for row in rows if row is not None and row[place] is not None]
    if not set(map(type, values)) <= {_PYTHON[form]}:
        return False
    return (
        form is not Form.INTEGER
        or not values
        or (min(values) >= _INT64_MIN and max(values) <= _INT64_MAX)
    )


def _fits(value: Any, form: Form) -> bool:
    if value is None:
        return True
    if form is Form.INTEGER:
        return type(value) is int and _INT64_MIN <= value <= _INT64_MAX
    return type(value) is _PYTHON[form]


def _body(fields: list[Any], packed: Sequence[int]) -> bytes:
    for place in packed:
        fields[place] = msgspec.Raw(fields[place])
    return _ENCODER.encode(fields)


def _links(
    fact: Fact, changes: tuple[CompareAndSet, ...]
) -> tuple[int | None, bytes | None, bytes | None]:
    """(cause_back, causes, compare_and_set) of a transaction's first fact."""
    back = _cause_back(fact) if fact.causes else None
    return (
        back,
        _ENCODER.encode(fact.causes) if fact.causes and back is None else None,
        _ENCODER.encode(changes) if changes else None,
    )


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
