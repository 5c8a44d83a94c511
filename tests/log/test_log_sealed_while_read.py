"""A log reads on while its segments are sealed away; what retention takes meanwhile is named."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from log_helpers import UnsyncedFiles, build_log, segment_paths

from pagetrail.catalog.errors import BadInputError
from pagetrail.controlplane.log import stretches
from pagetrail.controlplane.log.clock import LogicalClock
from pagetrail.controlplane.log.committer import open_committer
from pagetrail.controlplane.log.export import export_log
from pagetrail.controlplane.log.frames import Frame
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.reader import LogWalk, read_log, verify_log
from pagetrail.controlplane.log.sealing import retain_log, seal_log

SMALL_SEGMENTS = LogLimits(segment_bytes=2_000, index_stride_bytes=500)


def walked(directory: Path) -> list[Frame]:
    return [frame for frame, _ in LogWalk(directory).frames()]


def read(directory: Path) -> list[Frame]:
    return list(read_log(directory))


def then_sealed(directory: Path, frames_before: int, reader: Callable[..., object]) -> list[Frame]:
    """The frames that a reader gives when everything is sealed after its first few."""
    found: list[Frame] = []
    source = LogWalk(directory).frames() if reader is walked else read_log(directory)
    for one in source:
        found.append(one[0] if isinstance(one, tuple) else one)
        if len(found) == frames_before:
            assert seal_log(directory, files=UnsyncedFiles()).segments > 1
    return found


@pytest.mark.parametrize("reader", [walked, read])
@pytest.mark.parametrize("frames_before", [1, 12, 30])
def test_a_reader_goes_on_with_the_sealed_form(
    tmp_path: Path, reader: Callable[[Path], list[Frame]], frames_before: int
) -> None:
    build_log(tmp_path, 60, limits=SMALL_SEGMENTS)
    assert len(segment_paths(tmp_path)) > 3
    before = reader(tmp_path)
    assert then_sealed(tmp_path, frames_before, reader) == before
    assert len(segment_paths(tmp_path)) == 1
    assert reader(tmp_path) == before


def test_a_segment_that_is_sealed_while_the_segments_are_listed_is_listed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_log(tmp_path, 60, limits=SMALL_SEGMENTS)
    before = read(tmp_path)
    original = stretches.read_segment_header
    sealed = []

    def read_header(segment: object) -> object:
        if not sealed:
            sealed.append(True)
            seal_log(tmp_path, files=UnsyncedFiles())
        return original(segment)  # type: ignore[arg-type]

    monkeypatch.setattr(stretches, "read_segment_header", read_header)
    assert read(tmp_path) == before
    assert sealed


def test_a_check_and_an_export_beside_a_sealer_see_the_whole_log(tmp_path: Path) -> None:
    build_log(tmp_path / "run", 400, limits=SMALL_SEGMENTS)
    whole = verify_log(tmp_path / "run")
    sealer = threading.Thread(target=seal_log, args=(tmp_path / "run",))
    sealer.start()
    rounds = 0
    while sealer.is_alive() or not rounds:
        report = verify_log(tmp_path / "run")
        assert (report.problem, report.position) == (None, whole.position)
        out = tmp_path / f"{rounds}.jsonl"
        assert export_log(tmp_path / "run", "jsonl", out) == whole.facts
        rounds += 1
    sealer.join()


def test_a_writer_starts_beside_a_sealer(tmp_path: Path) -> None:
    build_log(tmp_path, 200, limits=SMALL_SEGMENTS)
    end = verify_log(tmp_path).position.next_seq
    for index in (tmp_path / "log").glob("index-*"):
        index.unlink()  # so that it has to walk them all
    sealer = threading.Thread(target=seal_log, args=(tmp_path,))
    sealer.start()
    committer, _ = open_committer(tmp_path, clock=LogicalClock(), files=UnsyncedFiles())
    committer.close()
    sealer.join()
    report = verify_log(tmp_path)
    assert (report.problem, report.facts) == (None, end + 1)  # and the start of its epoch


@pytest.mark.parametrize("reader", ["walk", "read"])
def test_what_retention_removes_while_it_is_read_is_named(tmp_path: Path, reader: str) -> None:
    build_log(tmp_path, 60, limits=SMALL_SEGMENTS)
    source = iter(LogWalk(tmp_path).frames() if reader == "walk" else read_log(tmp_path))
    next(source)
    seal_log(tmp_path, files=UnsyncedFiles())
    kept = retain_log(tmp_path, verify_log(tmp_path).position.next_seq, files=UnsyncedFiles())
    assert kept.segments > 1
    with pytest.raises(BadInputError, match="was removed while the log was read"):
        list(source)


def test_what_retention_removes_of_a_sealed_segment_while_it_is_read_is_named(
    tmp_path: Path,
) -> None:
    build_log(tmp_path, 60, limits=SMALL_SEGMENTS)
    seal_log(tmp_path, files=UnsyncedFiles())
    source = read_log(tmp_path)
    next(source)
    retain_log(tmp_path, verify_log(tmp_path).position.next_seq, files=UnsyncedFiles())
    with pytest.raises(BadInputError, match="was removed while the log was read"):
        list(source)
