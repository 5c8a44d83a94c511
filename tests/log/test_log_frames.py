"""Frames and segments, byte for byte, against an independent reading of docs/log.md."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path

import msgpack
import pytest
from log_helpers import build_log, crc32c, frame_ends, segment_paths, sha256

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.controlplane.log import frames as log_frames
from pagetrail.controlplane.log.reader import read_log, verify_log


def test_stored_bytes_are_what_the_documented_layout_says(tmp_path: Path) -> None:
    build_log(tmp_path, 5)
    (path,) = segment_paths(tmp_path)
    data = path.read_bytes()
    magic, version, reserved, first_seq, epoch, last_t_us, chain = struct.unpack_from(
        "<4sHHQQq32s", data
    )
    assert (magic, version, reserved, first_seq, epoch) == (b"PTSG", 1, 0, 0, 1)
    assert (last_t_us, chain) == (-1, bytes(32))
    assert struct.unpack_from("<I", data, 64)[0] == crc32c(data[:64])
    previous, seq, t_us = bytes(32), 0, 0
    ends = frame_ends(data)
    for start, end in itertools.pairwise(ends):
        fields = struct.unpack_from("<4sHHIIIIQQq32sI", data, start)
        body = data[start + 84 : end]
        runs = msgpack.unpackb(body)
        transactions = [t for _, _, ts in runs for t in ts]
        facts = sum(len(t[3]) for t in transactions)
        assert fields == (
            b"PTFR",
            1,
            0,
            len(body),
            crc32c(body),
            facts,
            len(transactions),
            1,
            seq,
            t_us,
            previous,
            crc32c(data[start : start + 80]),
        )
        assert msgpack.packb(runs) == body
        previous = sha256(data[start:end])
        seq += facts
        t_us += len(transactions)
    assert verify_log(tmp_path).position == log_frames.LogPosition(seq, previous, t_us - 1)


def test_facts_carry_gapless_seq_and_rising_time(tmp_path: Path) -> None:
    build_log(tmp_path, 9)
    facts = [fact for frame in read_log(tmp_path) for fact in frame.facts()]
    assert [fact.seq for fact in facts] == list(range(len(facts)))
    assert all(fact.tx == fact.seq - fact.index for fact in facts)
    times = {fact.tx: fact.t_us for fact in facts}
    assert list(times.values()) == sorted(set(times.values()))


def test_reading_from_a_position_starts_with_the_frame_that_holds_it(tmp_path: Path) -> None:
    build_log(tmp_path, 9)
    everything = list(read_log(tmp_path))
    last = everything[-1].next_seq
    for seq in range(last):
        frames = list(read_log(tmp_path, seq))
        assert frames[0].first_seq <= seq < frames[0].next_seq
        assert frames == everything[len(everything) - len(frames) :]
    assert list(read_log(tmp_path, last)) == []


def test_reading_where_there_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="holds no log"):
        list(read_log(tmp_path / "nothing"))
    with pytest.raises(BadInputError, match="holds no log"):
        verify_log(tmp_path / "nothing")


def test_a_frame_of_a_newer_format_stops_the_reader_by_name(tmp_path: Path) -> None:
    build_log(tmp_path, 3)
    (path,) = segment_paths(tmp_path)
    data = bytearray(path.read_bytes())
    start = frame_ends(bytes(data))[-2]
    struct.pack_into("<H", data, start + 4, 9)
    struct.pack_into("<I", data, start + 80, crc32c(bytes(data[start : start + 80])))
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="format version 9"):
        list(read_log(tmp_path))


def test_a_body_replaced_with_valid_checksums_breaks_the_chain(tmp_path: Path) -> None:
    build_log(tmp_path, 6, payload=b"honest")
    (path,) = segment_paths(tmp_path)
    data = bytearray(path.read_bytes())
    ends = frame_ends(bytes(data))
    start, end = ends[2], ends[3]
    data[start + 84 : end] = bytes(data[start + 84 : end]).replace(b"honest", b"forged")
    struct.pack_into("<I", data, start + 12, crc32c(bytes(data[start + 84 : end])))
    struct.pack_into("<I", data, start + 80, crc32c(bytes(data[start : start + 80])))
    path.write_bytes(data)
    report = verify_log(tmp_path)
    assert report.problem is not None
    assert f"{path.name} offset {ends[3]}" in report.problem
    assert "chain" in report.problem


def test_verify_names_the_segment_and_the_offset_of_the_first_bad_byte(tmp_path: Path) -> None:
    build_log(tmp_path, 6)
    (path,) = segment_paths(tmp_path)
    data = bytearray(path.read_bytes())
    offset = frame_ends(bytes(data))[3]
    data[offset + 90] ^= 4
    path.write_bytes(data)
    report = verify_log(tmp_path)
    assert report.problem is not None
    assert path.name in report.problem
    assert f"offset {offset}" in report.problem
    assert report.frames == 3
