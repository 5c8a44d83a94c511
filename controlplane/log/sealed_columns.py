"""A sealed segment straight to columns, without a Python object per fact.

For replicas, which take a whole segment at once. The files' digests are checked against the
manifest; the frames are not rebuilt, so the chain value at the segment's end is the manifest's
(``verify`` proves that the two belong together).
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pagetrail.catalog.envelope import Cause
from pagetrail.catalog.errors import CorruptionError
from pagetrail.catalog.fact_columns import (
    ARROW,
    STATED,
    Columns,
    KindColumns,
    Stored,
    decoded_fields,
    field_column,
    table,
)
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.replica_schema import CAUSE, KIND_TABLES, KindTables, Storage
from pagetrail.controlplane.log.columns import body_columns, read_facts
from pagetrail.controlplane.log.manifests import Form, SealedFile, SealedManifest
from pagetrail.controlplane.log.sealed import read_checked
from pagetrail.controlplane.log.wire import AnswerSpan

_RARE = ("body", "cause_back", "causes")
_CAUSED = ("tx", "client", "client_epoch", "client_seq")
_CAUSES_DECODER = msgspec.msgpack.Decoder(tuple[Cause, ...])


def sealed_columns(directory: Path, manifest: SealedManifest) -> Columns:
    """The facts of a sealed segment.

    ``CorruptionError`` names a file that is not the manifest's; ``UnknownKindError`` as
    ``decode_body`` raises it.
    """
    kinds: list[KindColumns] = []
    causes: list[pa.Table] = [table(CAUSE, [()] * len(CAUSE))]
    for entry in manifest.files:
        if entry.kind == 0:
            continue
        path = directory / entry.name
        data = read_checked(path, entry)
        try:
            kind, more = _kind_columns(path, data, entry)
        except (pa.ArrowException, KeyError) as error:
            raise CorruptionError(f"{path}: not a table of facts: {error}") from error
        kinds.append(kind)
        causes += more
    return Columns(manifest.first_seq, manifest.next_seq, tuple(kinds), pa.concat_tables(causes))


def _kind_columns(path: Path, data: bytes, entry: SealedFile) -> tuple[KindColumns, list[pa.Table]]:
    """The facts of a file, whose bytes are ``data``, and the causes of those that begin one."""
    file = pq.ParquetFile(pa.BufferReader(data))
    rare = [name for name in _RARE if not _is_empty(file.metadata, name)]
    stated = [c.name for c in STATED]
    kind = KIND_TABLES.get(entry.kind)
    if kind is None or entry.body != body_columns(entry.kind) or _is_pattern(path):
        rows = file.read([*stated, *rare])
        envelope = [rows.column(c.name).cast(ARROW[c.type]) for c in STATED]
        fields = _decoded(path, data, entry)
        return KindColumns(entry.kind, table(STATED, envelope), fields), _causes(rows)
    names = ("seq",) if kind.catalog is None else ("seq", "op")
    rows = file.read([*names, "schema_v", *rare])
    held = pa.table({name: rows.column(name).cast(pa.int64()) for name in names})
    linked = any(_valid(rows, name).num_rows for name in ("causes", "cause_back"))
    causes = _causes(file.read([*_CAUSED, *rare])) if linked else []
    if not _is_plain(kind, rows):
        fields = _decoded(path, data, entry)
    elif kind.catalog is None and _is_direct(kind, entry):
        stored = Stored((path,), tuple(c.column for c in entry.body))
        return KindColumns(entry.kind, held, pa.table({}), stored), causes
    else:
        fields = _fields(kind, entry, file.read([c.column for c in entry.body]))
    return KindColumns(entry.kind, held, fields, Stored((path,), None)), causes


def _decoded(path: Path, data: bytes, entry: SealedFile) -> pa.Table:
    rows = list(read_facts(path, data, entry.body))
    return decoded_fields(entry.kind, [r.schema_v for r in rows], [r.body for r in rows])


def _is_pattern(path: Path) -> bool:
    """Whether DuckDB would take the path for a pattern of several files' paths."""
    return not set("*?[").isdisjoint(str(path))


def _is_empty(metadata: pq.FileMetaData, name: str) -> bool:
    """Whether statistics tell that a column is null in every row; older segments have none."""
    place = metadata.schema.names.index(name)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        statistics = group.column(place).statistics
        if statistics is None or not statistics.has_null_count:
            return False
        if statistics.null_count < group.num_rows:
            return False
    return True


def _valid(stored: pa.Table, name: str) -> pa.Table:
    """The rows that hold something in a column, which may have been left out."""
    if name not in stored.column_names:
        return stored.slice(0, 0)
    return stored.filter(pc.is_valid(stored.column(name)))


def sealed_spans(
    directory: Path, manifest: SealedManifest, client: str, client_epoch: int, first: int, stop: int
) -> list[AnswerSpan]:
    """Where the transactions of a client epoch from ``first`` to before ``stop`` lie, one each."""
    rows = []
    for entry in manifest.files:
        if entry.kind == 0:
            continue
        stored = pq.read_table(
            pa.BufferReader(read_checked(directory / entry.name, entry)),
            columns=["client", "client_epoch", "client_seq", "tx"],
            filters=(pc.field("client") == client)
            & (pc.field("client_epoch") == client_epoch)
            & (pc.field("client_seq") >= first)
            & (pc.field("client_seq") < stop),
        )
        refused = pa.repeat(entry.kind == KindId.REFUSED, stored.num_rows)
        rows.append(stored.select(["client_seq", "tx"]).append_column("refused", refused))
    grouped = (
        pa.concat_tables(rows)
        .group_by(["client_seq", "tx"])
        .aggregate([([], "count_all"), ("refused", "max")])
        .sort_by("client_seq")
    )
    return [
        AnswerSpan(
            row["client_seq"],
            1,
            row["tx"],
            row["count_all"],
            (row["client_seq"],) if row["refused_max"] else (),
        )
        for row in grouped.to_pylist()
    ]


def _is_plain(kind: KindTables, stored: pa.Table) -> bool:
    """Whether all bodies lie in their columns and have the form that this build gives them.

    That is not so when the sealer kept some whole (not the kind's form at that time), or when some
    are of an older version.
    """
    versions = pc.min_max(stored.column("schema_v")).as_py()
    return not _valid(stored, "body").num_rows and set(versions.values()) == {kind.kind.version}


def _is_direct(kind: KindTables, entry: SealedFile) -> bool:
    """Whether each column of the file becomes one of the kind's table by at most a cast."""
    return all(
        field.storage is not Storage.ENCODED or body.form is Form.MSGPACK
        for field, body in zip(kind.fields, entry.body, strict=True)
    )


def _fields(kind: KindTables, entry: SealedFile, stored: pa.Table) -> pa.Table:
    """The kind's fields as they were sealed."""
    fields = []
    for field, body in zip(kind.fields, entry.body, strict=True):
        values = stored.column(body.column)
        encoded = field.storage is Storage.ENCODED
        if not encoded and values.null_count:
            raise pa.ArrowInvalid(f"column {body.column} has no value in {values.null_count} rows")
        same = encoded and body.form is Form.MSGPACK
        fields.append(values if same else field_column(field, values))
    return table(kind.columns, fields)


def _causes(stored: pa.Table) -> list[pa.Table]:
    """Causes of the transactions that begin in a table: the near ones at once, others singly."""
    found = []
    near = _valid(stored, "cause_back")
    if near.num_rows:
        back = pc.subtract(near.column("client_seq"), near.column("cause_back"))
        columns = [near.column(name) for name in ("tx", "client", "client_epoch")]
        found.append(table(CAUSE, [*columns, back]))
    other = _valid(stored, "causes")
    if other.num_rows:
        rows = [
            (tx, cause.client, cause.client_epoch, cause.client_seq)
            for tx, encoded in zip(
                other.column("tx").to_pylist(), other.column("causes").to_pylist(), strict=True
            )
            for cause in _CAUSES_DECODER.decode(encoded)
        ]
        found.append(table(CAUSE, list(zip(*rows, strict=True))))
    return found
