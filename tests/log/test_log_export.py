"""Exports hold every fact of the log, in three forms that agree with each other."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import msgpack
import pyarrow as pa
import pytest
from log_helpers import UnsyncedFiles, build_log

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.catalog.facts import fact as catalog_fact
from pagetrail.catalog.kinds.content import Copy
from pagetrail.controlplane.log.clock import LogicalClock
from pagetrail.controlplane.log.committer import open_committer
from pagetrail.controlplane.log.export import ExportFormat, export_log
from pagetrail.controlplane.log.reader import read_log
from pagetrail.controlplane.log.transactions import encode_transactions


def build(directory: Path) -> list[tuple[int, bytes]]:
    """A log with facts of unknown and of known kinds; (seq, body) of all."""
    build_log(directory, 20)
    committer, _ = open_committer(directory, clock=LogicalClock(), files=UnsyncedFiles())
    copies = tuple(catalog_fact(Copy(bytes([n]) * 32, "w1", 2, 1, f"k{n}")) for n in range(5))
    committer.admit("b", 1, encode_transactions([Transaction(0, (), (), copies)]))
    committer.commit()
    committer.close()
    return [(f.seq, bytes(f.body)) for frame in read_log(directory) for f in frame.facts()]


def test_the_three_forms_hold_the_same_facts(tmp_path: Path) -> None:
    expected = build(tmp_path)
    for form in ExportFormat:
        assert export_log(tmp_path, form, tmp_path / f"out.{form.value}") == len(expected)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(line["seq"], bytes.fromhex(line["body"])) for line in lines] == expected
    rows = duckdb.sql(f"select seq, body from '{tmp_path}/out.parquet' order by seq").fetchall()
    assert rows == expected
    with pa.memory_map(str(tmp_path / "out.arrow")) as source:
        table = pa.ipc.open_file(source).read_all()
    assert list(zip(table["seq"].to_pylist(), table["body"].to_pylist(), strict=True)) == expected


def test_known_kinds_carry_their_fields_by_name_and_unknown_ones_their_bytes(
    tmp_path: Path,
) -> None:
    build(tmp_path)
    export_log(tmp_path, "jsonl", tmp_path / "out")
    lines = [json.loads(line) for line in (tmp_path / "out").read_text().splitlines()]
    copy = lines[-1]
    assert copy["kind_name"] == "copy"
    assert copy["fields"]["part_id"] == "04" * 32
    assert copy["fields"]["location"] == "k4"
    unknown = next(line for line in lines if line["kind"] == 4_000)
    assert (unknown["kind_name"], unknown["fields"]) == (None, None)
    assert msgpack.unpackb(bytes.fromhex(unknown["body"]))[0] == 0


def test_an_export_from_a_position_starts_exactly_there(tmp_path: Path) -> None:
    expected = build(tmp_path)
    for start in (0, 2, 3, len(expected) - 1, len(expected)):
        out = tmp_path / f"from-{start}"
        assert export_log(tmp_path, "jsonl", out, from_seq=start) == len(expected) - start


def test_an_export_overwrites_nothing_and_leaves_nothing_half_written(tmp_path: Path) -> None:
    build(tmp_path)
    out = tmp_path / "out"
    out.write_text("mine")
    with pytest.raises(BadInputError, match="exists"):
        export_log(tmp_path, "parquet", out)
    with pytest.raises(BadInputError, match="parquet, arrow, jsonl"):
        export_log(tmp_path, "csv", tmp_path / "other")
    assert out.read_text() == "mine"
    path = min((tmp_path / "log").glob("segment-*"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    for form in ExportFormat:
        with pytest.raises(CorruptionError):
            export_log(tmp_path, form, tmp_path / "half")
        assert not (tmp_path / "half").exists()
