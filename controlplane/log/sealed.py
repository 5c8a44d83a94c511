"""The sealed form of a segment: Parquet per kind, from which its frames come back byte for byte.

A sealed segment is a directory ``sealed-<first seq>``: one table per kind (``columns``), a table of
frames (where transactions were grouped, and when), and a manifest that names every file with its
SHA-256 and the chain values at both ends. Nothing here decides when to seal; see ``sealing``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pagetrail.catalog.envelope import CompareAndSet, Fact, Transaction, WireFact
from pagetrail.catalog.errors import CorruptionError
from pagetrail.catalog.facts import KINDS
from pagetrail.controlplane.log.columns import (
    StoredFact,
    body_columns,
    kind_table,
    read_facts,
    write_parquet,
)
from pagetrail.controlplane.log.files import Files
from pagetrail.controlplane.log.frames import (
    FLAG_REGISTERS,
    Frame,
    LogPosition,
    encode_frame,
    encode_runs,
    facts_of,
    position_after,
    transactions_of,
)
from pagetrail.controlplane.log.manifests import (
    SEALED_VERSION,
    BodyColumn,
    SealedFile,
    SealedManifest,
    read_manifest,
    write_manifest,
)
from pagetrail.controlplane.log.transactions import encode_transactions

_FRAMES_NAME = "frames.parquet"
_FRAMES = pa.schema(
    [
        ("first_seq", pa.int64()),
        ("facts", pa.int64()),
        ("writer_epoch", pa.int64()),
        ("t_us", pa.int64()),
        # transactions of each run, as msgpack: nearly always one run, and then its length
        ("runs", pa.binary()),
        # chain value after the frame: a position is checked without rebuilding what lies before
        ("chain", pa.binary(32)),
    ]
)


@dataclass(slots=True)
class _Kind:
    facts: list[Fact] = field(default_factory=list)
    registers: list[tuple[CompareAndSet, ...]] = field(default_factory=list)


def write_sealed(
    directory: Path,
    start: LogPosition,
    writer_epoch: int,
    frames: list[Frame],
    active_bytes: int,
    files: Files,
) -> SealedManifest:
    """Write the sealed form of frames into an empty directory, durably."""
    kinds: dict[int, _Kind] = {}
    grouping: list[tuple[int, int, int, int, bytes, bytes]] = []
    for frame in frames:
        runs = frame.runs()
        changes = {
            tx: transaction.compare_and_set
            for _, transaction, tx, _ in transactions_of(frame.header, runs)
            if transaction.compare_and_set
        }
        for fact in facts_of(frame.header, runs):
            kind = kinds.setdefault(fact.kind, _Kind())
            kind.facts.append(fact)
            kind.registers.append(changes.get(fact.tx, ()))
        lengths = msgspec.msgpack.encode([len(run.transactions) for run in runs])
        header = frame.header
        grouping.append(
            (
                header.first_seq,
                header.fact_count,
                header.writer_epoch,
                header.t_us,
                lengths,
                frame.chain,
            )
        )
    cells = zip(*grouping, strict=True)
    columns = [pa.array(c, f.type) for c, f in zip(cells, _FRAMES, strict=True)]
    grouped = pa.Table.from_arrays(columns, schema=_FRAMES)
    written = [_write_table(directory / _FRAMES_NAME, 0, (), grouped, files)]
    for kind_id, kind in sorted(kinds.items()):
        body = body_columns(kind_id)
        table = kind_table(kind.facts, kind.registers, body)
        written.append(_write_table(directory / _table_name(kind_id), kind_id, body, table, files))
    end = position_after(frames[-1])
    manifest = SealedManifest(
        version=SEALED_VERSION,
        writer_epoch=writer_epoch,
        first_seq=start.next_seq,
        next_seq=end.next_seq,
        start_chain=start.chain.hex(),
        start_t_us=start.last_t_us,
        end_chain=end.chain.hex(),
        end_t_us=end.last_t_us,
        frames=len(frames),
        active_bytes=active_bytes,
        files=tuple(written),
    )
    write_manifest(directory, manifest, files)
    return manifest


def sealed_frames(directory: Path, manifest: SealedManifest | None = None) -> Iterator[Frame]:
    """The frames of a sealed segment, rebuilt. ``CorruptionError`` names the file that differs.

    ``manifest`` is read from the directory unless it is given.
    """
    manifest = manifest or read_manifest(directory)
    frames: bytes | None = None
    facts: dict[int, tuple[int, StoredFact]] = {}
    for entry in manifest.files:
        path = directory / entry.name
        data = read_checked(path, entry)
        if entry.kind == 0:
            frames = data
            continue
        for stored in read_facts(path, data, entry.body):
            facts[stored.seq] = (entry.kind, stored)
    if frames is None or len(facts) != manifest.next_seq - manifest.first_seq:
        raise CorruptionError(
            f"{directory.name}: holds {len(facts)} facts, its manifest says "
            f"{manifest.next_seq - manifest.first_seq}"
        )
    position = manifest.start
    for row in pq.read_table(pa.BufferReader(frames)).to_pylist():
        frame = _rebuild(row, facts, position)
        position = position_after(frame)
        if frame.chain != row["chain"]:
            raise CorruptionError(
                f"{directory.name}: the frame at seq {frame.first_seq} does not come back with the "
                "chain value it was sealed with"
            )
        yield frame
    if position != manifest.end:
        raise CorruptionError(
            f"{directory.name}: its frames end at seq {position.next_seq} with chain "
            f"{position.chain.hex()[:16]}.., the manifest says {manifest.next_seq} with "
            f"{manifest.end_chain[:16]}.."
        )


def sealed_chain(directory: Path, manifest: SealedManifest, position: int) -> bytes | None:
    """The chain value where ``position`` is the next seq; None when no frame ends there."""
    for entry in manifest.files:
        if entry.kind == 0:
            table = pq.read_table(
                pa.BufferReader(read_checked(directory / entry.name, entry)),
                columns=["first_seq", "facts", "chain"],
            )
            ends = pc.add(table.column("first_seq"), table.column("facts"))
            place = pc.index(ends, position).as_py()
            return None if place < 0 else bytes(table.column("chain")[place].as_py())
    raise CorruptionError(f"{directory.name}: its manifest names no table of frames")


def _rebuild(
    row: dict[str, object], facts: dict[int, tuple[int, StoredFact]], position: LogPosition
) -> Frame:
    grouping = msgspec.convert(row, type=_FrameRow)
    seq = grouping.first_seq
    end = seq + grouping.facts
    runs = []
    transaction_count = flags = 0
    for length in msgspec.msgpack.decode(grouping.runs, type=list[int]):
        transactions = []
        head = facts[seq][1]
        for _ in range(length):
            first = facts[seq][1]
            wire: list[WireFact] = []
            while seq < end and facts[seq][1].tx == first.seq:
                kind, stored = facts.pop(seq)
                wire.append(WireFact(stored.op, kind, stored.schema_v, msgspec.Raw(stored.body)))
                seq += 1
            if first.compare_and_set:
                flags |= FLAG_REGISTERS
            transactions.append(
                Transaction(first.client_seq, first.causes, first.compare_and_set, tuple(wire))
            )
        transaction_count += length
        runs.append((head.client, head.client_epoch, encode_transactions(transactions)))
    return encode_frame(
        encode_runs(runs),
        flags=flags,
        fact_count=grouping.facts,
        transaction_count=transaction_count,
        writer_epoch=grouping.writer_epoch,
        first_seq=grouping.first_seq,
        t_us=grouping.t_us,
        previous_chain=position.chain,
    )


class _FrameRow(msgspec.Struct, frozen=True):
    first_seq: int
    facts: int
    writer_epoch: int
    t_us: int
    runs: bytes


def _table_name(kind_id: int) -> str:
    kind = KINDS.get(kind_id)
    name = "unknown" if kind is None else kind.name
    return f"facts-{kind_id:04d}-{name}.parquet"


def _write_table(
    path: Path, kind: int, body: tuple[BodyColumn, ...], table: pa.Table, files: Files
) -> SealedFile:
    """Write a table, durably, and describe it."""
    write_parquet(table, path)
    data = path.read_bytes()
    descriptor = files.open_append(path)
    try:
        files.fdatasync(descriptor)
    finally:
        files.close(descriptor)
    digest = hashlib.sha256(data).hexdigest()
    return SealedFile(path.name, kind, body, table.num_rows, len(data), digest)


def read_checked(path: Path, entry: SealedFile) -> bytes:
    """A sealed file's bytes. ``CorruptionError`` when they are not those the manifest names."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise CorruptionError(f"{path.parent.name}/{path.name}: {error}") from error
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise CorruptionError(
            f"{path.parent.name}/{path.name}: its SHA-256 is not the one in the manifest; restore "
            "the file"
        )
    return data
