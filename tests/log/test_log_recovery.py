"""Recovery: the longest valid prefix, torn tails cut, everything else refused and left alone."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from log_helpers import (
    build_log,
    commit_transactions,
    frame_ends,
    segment_paths,
    transaction,
    value_of,
)

from pagetrail.catalog.errors import CorruptionError
from pagetrail.controlplane.log.clock import LogicalClock
from pagetrail.controlplane.log.committer import open_committer
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.reader import read_log, verify_log
from pagetrail.controlplane.log.segments import (
    Ending,
    SegmentScan,
    decode_segment_header,
)

SMALL_SEGMENTS = LogLimits(segment_bytes=600, index_stride_bytes=256)


def scan(data: bytes) -> SegmentScan:
    start = decode_segment_header(data, "segment").start
    scanned = SegmentScan(data, "segment", start, None)
    for _ in scanned:
        pass
    return scanned


def test_truncation_at_every_byte_leaves_exactly_the_longest_valid_prefix(tmp_path: Path) -> None:
    build_log(tmp_path, 12)
    (path,) = segment_paths(tmp_path)
    data = path.read_bytes()
    ends = frame_ends(data)
    for size in range(68, len(data) + 1):
        expected = max(end for end in ends if end <= size)
        end = scan(data[:size]).end
        assert end is not None
        assert end.offset_bytes == expected
        assert end.ending is (Ending.CLEAN if size == expected else Ending.TORN)


def test_a_writer_cuts_the_torn_tail_and_continues_after_the_prefix(tmp_path: Path) -> None:
    original = tmp_path / "original"
    build_log(original, 6)
    (path,) = segment_paths(original)
    data = path.read_bytes()
    ends = frame_ends(data)
    for size in (0, 1, 67, 68, 69, ends[1] + 83, ends[-2] - 1, ends[-2] + 40, len(data) - 1):
        copy = tmp_path / f"cut-{size}"
        shutil.copytree(original, copy)
        segment_paths(copy)[0].write_bytes(data[:size])
        before = [frame.raw for frame in read_log(copy)]
        committer, _ = open_committer(copy, clock=LogicalClock())
        committer.close()
        report = verify_log(copy)
        assert (report.problem, report.torn_bytes) == (None, 0)
        after = [frame.raw for frame in read_log(copy)]
        assert after[:-1] == before
        assert after[-1] != before[-1:]


def flips_are_refused(path: Path, count: int, seed: int) -> None:
    data = path.read_bytes()
    last_frame = frame_ends(data)[-2]
    generator = random.Random(seed)
    for _ in range(count):
        place = generator.randrange(last_frame)
        damaged = bytearray(data)
        damaged[place] ^= 1 << generator.randrange(8)
        with pytest.raises(CorruptionError):
            scan(bytes(damaged))


def test_every_bit_flip_before_the_last_frame_is_refused(tmp_path: Path) -> None:
    build_log(tmp_path, 30)
    flips_are_refused(segment_paths(tmp_path)[0], 2_000, seed=1)


@pytest.mark.slow
def test_twenty_thousand_bit_flips_before_the_last_frame_are_refused(tmp_path: Path) -> None:
    build_log(tmp_path, 60)
    flips_are_refused(segment_paths(tmp_path)[0], 20_000, seed=2)


def test_corruption_is_left_as_it_is_and_no_writer_starts_on_it(tmp_path: Path) -> None:
    build_log(tmp_path, 10)
    (path,) = segment_paths(tmp_path)
    data = bytearray(path.read_bytes())
    data[frame_ends(bytes(data))[4] + 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match=path.name):
        open_committer(tmp_path)
    assert segment_paths(tmp_path) == [path]
    assert path.read_bytes() == data


def test_damage_in_a_segment_that_another_follows_is_never_a_torn_tail(tmp_path: Path) -> None:
    build_log(tmp_path, 20, limits=SMALL_SEGMENTS)
    paths = segment_paths(tmp_path)
    assert len(paths) > 3
    data = paths[1].read_bytes()
    for size in (len(data) - 1, frame_ends(data)[-2] + 10, 68, 10):
        paths[1].write_bytes(data[:size])
        with pytest.raises(CorruptionError, match=paths[1].name):
            open_committer(tmp_path)
    paths[1].unlink()
    with pytest.raises(CorruptionError, match=paths[0].name):
        open_committer(tmp_path)


@pytest.mark.parametrize("zeros_from", [-30, -200, 0])
def test_a_zeroed_sector_at_the_tail_is_a_torn_write(tmp_path: Path, zeros_from: int) -> None:
    build_log(tmp_path, 8, payload=bytes(range(1, 200)))
    (path,) = segment_paths(tmp_path)
    data = path.read_bytes()
    keep = len(data) + zeros_from
    path.write_bytes(data[:keep] + bytes(512 if zeros_from == 0 else -zeros_from))
    prefix = max(end for end in frame_ends(data) if end <= keep)
    committer, _ = open_committer(tmp_path)
    committer.close()
    assert path.read_bytes() == data[:prefix]


def test_segments_roll_and_the_chain_runs_through_them(tmp_path: Path) -> None:
    build_log(tmp_path, 40, limits=SMALL_SEGMENTS)
    assert len(segment_paths(tmp_path)) > 5
    report = verify_log(tmp_path)
    assert (report.problem, report.frames) == (None, 41)
    values = [value_of(f.body) for frame in read_log(tmp_path, 1) for f in frame.facts()]
    assert values == [v for n in range(40) for v in range(n, n + 1 + n % 4)]


def test_every_start_begins_an_epoch_and_continues_seq_time_and_chain(tmp_path: Path) -> None:
    for start in range(4):
        committer, frame = open_committer(tmp_path, clock=LogicalClock())
        assert frame.header.writer_epoch == start + 1
        commit_transactions(committer, [transaction(0)], client=f"client-{start}")
        committer.close()
    report = verify_log(tmp_path)
    assert (report.problem, report.facts) == (None, 8)
    assert report.position.last_t_us == 7


class SteppingClock:
    """A clock that an operator sets back an hour."""

    name = "wall"

    def __init__(self) -> None:
        self._readings = [5_000_000_000, 5_000_000_010, 1_400_000_000, 1_400_000_005, 6_000_000_000]

    def now_us(self) -> int:
        return self._readings.pop(0)


def test_time_in_the_log_rises_when_the_clock_steps_back(tmp_path: Path) -> None:
    committer, _ = open_committer(tmp_path, clock=SteppingClock())
    for number in range(4):
        commit_transactions(committer, [transaction(number)])
    committer.close()
    assert [frame.header.t_us for frame in read_log(tmp_path)] == [
        5_000_000_000,
        5_000_000_010,
        5_000_000_011,
        5_000_000_012,
        6_000_000_000,
    ]


def test_equal_input_on_the_logical_clock_gives_equal_bytes(tmp_path: Path) -> None:
    build_log(tmp_path / "one", 20, limits=SMALL_SEGMENTS)
    build_log(tmp_path / "two", 20, limits=SMALL_SEGMENTS)
    one, two = segment_paths(tmp_path / "one"), segment_paths(tmp_path / "two")
    assert [p.name for p in one] == [p.name for p in two]
    assert [p.read_bytes() for p in one] == [p.read_bytes() for p in two]
