"""Exporting a log's facts for other tools: Parquet, Arrow IPC or JSON lines.

Every format carries the same columns: the envelope, and the body as msgpack and, for kinds this
build knows, as JSON with byte strings in hexadecimal. The log itself is only read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from pagetrail.catalog.envelope import Fact
from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.catalog.facts import KINDS, decode_body
from pagetrail.catalog.plain import plain
from pagetrail.controlplane.log.reader import read_log

_BATCH_FACTS = 65_536

_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("tx", pa.int64()),
        ("t_us", pa.int64()),
        ("writer_epoch", pa.int64()),
        ("client", pa.string()),
        ("client_epoch", pa.int64()),
        ("client_seq", pa.int64()),
        ("index", pa.int32()),
        ("op", pa.int8()),
        ("kind", pa.int64()),
        ("kind_name", pa.string()),
        ("schema_v", pa.int64()),
        ("causes", pa.string()),
        ("fields", pa.string()),
        ("body", pa.binary()),
    ]
)


class ExportFormat(Enum):
    """What ``export_log`` writes."""

    PARQUET = "parquet"
    ARROW = "arrow"
    JSONL = "jsonl"


def export_log(
    directory: str | Path, form: ExportFormat | str, out: str | Path, *, from_seq: int = 0
) -> int:
    """Write the facts of a run's log from ``from_seq`` on to the file ``out``; return how many.

    ``out`` must not exist; after an error it is removed. ``BadInputError`` for an unknown form or
    an existing file; reading errors as ``read_log`` raises them.
    """
    try:
        form = ExportFormat(form)
    except ValueError as error:
        names = ", ".join(f.value for f in ExportFormat)
        raise BadInputError(f"export form {form!r} is unknown; expected one of {names}") from error
    out = Path(out)
    if out.exists():
        raise BadInputError(f"{out} exists; name a new file, or remove that one first")
    batches = _batches(directory, from_seq)
    try:
        if form is ExportFormat.JSONL:
            return _write_lines(batches, out)
        return _write_tables(batches, out, form)
    except BaseException:
        out.unlink(missing_ok=True)
        raise


def _batches(directory: str | Path, from_seq: int) -> Iterator[list[dict[str, Any]]]:
    rows: list[dict[str, Any]] = []
    for frame in read_log(directory, from_seq):
        rows += [_row(fact) for fact in frame.facts() if fact.seq >= from_seq]
        if len(rows) >= _BATCH_FACTS:
            yield rows
            rows = []
    if rows:
        yield rows


def _row(fact: Fact) -> dict[str, Any]:
    kind = KINDS.get(fact.kind)
    return {
        "seq": fact.seq,
        "tx": fact.tx,
        "t_us": fact.t_us,
        "writer_epoch": fact.writer_epoch,
        "client": fact.client,
        "client_epoch": fact.client_epoch,
        "client_seq": fact.client_seq,
        "index": fact.index,
        "op": fact.op,
        "kind": fact.kind,
        "kind_name": None if kind is None else kind.name,
        "schema_v": fact.schema_v,
        "causes": msgspec.json.encode(fact.causes).decode(),
        "fields": _fields(fact),
        "body": bytes(fact.body),
    }


def _fields(fact: Fact) -> str | None:
    """The body as a JSON object by field name; None when this build cannot read it."""
    try:
        body = decode_body(fact.kind, fact.schema_v, fact.body)
    except PagetrailError:
        return None
    return msgspec.json.encode(plain(body)).decode()


def _write_lines(batches: Iterator[list[dict[str, Any]]], out: Path) -> int:
    count = 0
    with out.open("xb") as file:
        for rows in batches:
            for row in rows:
                row["body"] = row["body"].hex()
                row["causes"] = msgspec.Raw(row["causes"].encode())
                if row["fields"] is not None:
                    row["fields"] = msgspec.Raw(row["fields"].encode())
                file.write(msgspec.json.encode(row) + b"\n")
            count += len(rows)
    return count


def _write_tables(batches: Iterator[list[dict[str, Any]]], out: Path, form: ExportFormat) -> int:
    count = 0
    with ExitStack() as stack:
        if form is ExportFormat.PARQUET:
            writer = stack.enter_context(pq.ParquetWriter(out, _SCHEMA, compression="zstd"))
        else:
            writer = stack.enter_context(pa.ipc.new_file(str(out), _SCHEMA))
        for rows in batches:
            writer.write_table(pa.Table.from_pylist(rows, schema=_SCHEMA))
            count += len(rows)
    return count
