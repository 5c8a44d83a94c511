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
    decoded_fields,
    field_column,
    table,
)
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.replica_schema import CAUSE, KIND_TABLES, Storage
from pagetrail.controlplane.log.columns import body_columns, read_facts
from pagetrail.controlplane.log.manifests import Form, SealedFile, SealedManifest
from pagetrail.controlplane.log.sealed import read_checked
from pagetrail.controlplane.log.wire import AnswerSpan

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
            stored = pq.read_table(pa.BufferReader(data))
            envelope = [stored.column(c.name).cast(ARROW[c.type]) for c in STATED]
            fields = _fields(entry, stored)
            causes += _causes(stored)
        except (pa.ArrowException, KeyError) as error:
            raise CorruptionError(f"{path}: not a table of facts: {error}") from error
        if fields is None:
            rows = list(read_facts(path, data, entry.body))
            fields = decoded_fields(entry.kind, [r.schema_v for r in rows], [r.body for r in rows])
        kinds.append(KindColumns(entry.kind, table(STATED, envelope), fields))
    return Columns(manifest.first_seq, manifest.next_seq, tuple(kinds), pa.concat_tables(causes))


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


def _fields(entry: SealedFile, stored: pa.Table) -> pa.Table | None:
    """The kind's fields as they were sealed; None when its bodies must be decoded one by one.

    That is so when the sealer kept some whole (not the kind's form at that time), when some are of
    an older version, or when the kind has got fields since.
    """
    kind = KIND_TABLES.get(entry.kind)
    if kind is None or entry.body != body_columns(entry.kind):
        return None
    if stored.column("body").null_count < stored.num_rows:
        return None
    versions = pc.min_max(stored.column("schema_v")).as_py()
    if set(versions.values()) != {kind.kind.version}:
        return None
    fields = []
    for field, body in zip(kind.fields, entry.body, strict=True):
        values = stored.column(body.column)
        encoded = field.storage is Storage.ENCODED
        if not encoded and values.null_count:
            return None
        same = encoded and body.form is Form.MSGPACK
        fields.append(values if same else field_column(field, values))
    return table(kind.columns, fields)


def _causes(stored: pa.Table) -> list[pa.Table]:
    """Causes of the transactions that begin in a table: the near ones at once, others singly."""
    found = []
    near = stored.filter(pc.is_valid(stored.column("cause_back")))
    if near.num_rows:
        back = pc.subtract(near.column("client_seq"), near.column("cause_back"))
        columns = [near.column(name) for name in ("tx", "client", "client_epoch")]
        found.append(table(CAUSE, [*columns, back]))
    other = stored.filter(pc.is_valid(stored.column("causes")))
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
