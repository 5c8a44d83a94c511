"""A writer that has its old segments sealed: beside it, within bounds, and killed at any time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from log_helpers import UnsyncedFiles, build_log, fact, segment_paths

from pagetrail.catalog.errors import BadInputError
from pagetrail.controlplane.log import sealer
from pagetrail.controlplane.log.client import FactClient
from pagetrail.controlplane.log.limits import LogLimits, check_limits
from pagetrail.controlplane.log.reader import read_log, verify_log
from pagetrail.controlplane.log.sealing import seal_log
from pagetrail.controlplane.log.writer import EmbeddedWriter, WriterProcess, start_writer_process

KEPT = 2
LIMITS = LogLimits(segment_bytes=20_000, unsealed_segments=KEPT, retry_ns=50_000_000)
CHILD = str(Path(__file__).with_name("log_child_killed.py"))


def sealed_paths(directory: Path) -> list[Path]:
    return sorted(p for p in (directory / "log").glob("sealed-*") if p.suffix != ".tmp")


def half_sealed(directory: Path) -> list[Path]:
    return list((directory / "log").glob("sealed-*.tmp"))


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"never came: {what}"
        time.sleep(0.01)


def settled(directory: Path) -> bool:
    """Whether everything is sealed but the active segment and those that are kept before it."""
    return len(segment_paths(directory)) == KEPT + 1


def append(client: FactClient, first: int, count: int) -> None:
    """Every 50 transactions are frames of their own, and more than a segment holds."""
    for number in range(first, first + count):
        client.append([fact(number, bytes(400))])
        if number % 50 == 49:
            client.flush(60)
    client.flush(60)


def sealing_processes(writer: WriterProcess) -> list[int]:
    """Children of any thread of the writer's process."""
    found = []
    for task in Path(f"/proc/{writer.process.pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has ended
            found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def test_a_writer_has_old_segments_sealed_and_keeps_the_newest_as_they_are(tmp_path: Path) -> None:
    with (
        EmbeddedWriter(tmp_path, limits=LIMITS) as writer,
        FactClient.open(tmp_path, "a", writer.endpoint, limits=LIMITS) as client,
    ):
        append(client, 0, 400)
        until(lambda: settled(tmp_path), "old segments sealed")
        assert len(sealed_paths(tmp_path)) >= 4
        append(client, 400, 10)
        assert writer.failure is None
    assert [
        f.client_seq for frame in read_log(tmp_path) for f in frame.facts() if f.client == "a"
    ] == [*range(410)]
    assert verify_log(tmp_path).problem is None


def test_what_an_earlier_writer_left_is_sealed_at_the_start(tmp_path: Path) -> None:
    build_log(tmp_path, 200, limits=LogLimits(segment_bytes=3_000))
    expected = [frame.raw for frame in read_log(tmp_path)]
    with EmbeddedWriter(tmp_path, limits=LIMITS):
        until(lambda: settled(tmp_path), "old segments sealed")
    assert [frame.raw for frame in read_log(tmp_path)][: len(expected)] == expected


def test_a_process_that_cannot_be_started_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    build_log(tmp_path, 200, limits=LogLimits(segment_bytes=3_000))

    def refuse(*_arguments: object, **_more: object) -> None:
        raise OSError(11, "no more processes")

    with monkeypatch.context() as patched:
        patched.setattr(sealer.subprocess, "Popen", refuse)
        started = sealer.Sealer(tmp_path, KEPT)
        until(lambda: started.failed == 1, "a refused start")
    assert "no more processes; tried again at the next segment" in capsys.readouterr().err
    started.segment_closed()
    until(lambda: settled(tmp_path), "old segments sealed")
    started.close()
    assert started.failed == 1


def test_a_writer_that_is_told_so_seals_nothing(tmp_path: Path) -> None:
    build_log(tmp_path, 200, limits=LogLimits(segment_bytes=3_000))
    before = segment_paths(tmp_path)
    with start_writer_process(tmp_path, limits=LogLimits(unsealed_segments=0)) as writer:
        assert sealing_processes(writer) == []
    assert segment_paths(tmp_path)[: len(before)] == before
    assert sealed_paths(tmp_path) == []


def test_a_failed_sealing_leaves_the_writer_serving_and_is_tried_again(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    build_log(tmp_path, 200, limits=LogLimits(segment_bytes=3_000))
    with (
        EmbeddedWriter(tmp_path, limits=LIMITS) as writer,
        FactClient.open(tmp_path, "a", writer.endpoint, limits=LIMITS) as client,
    ):
        until(lambda: settled(tmp_path), "old segments sealed")
        lock = tmp_path / "log" / "sealer.lock"
        lock.unlink()
        lock.mkdir()  # no sealer can take it
        append(client, 0, 200)
        until(lambda: "tried again" in capfd.readouterr().err, "the reason")
        assert not settled(tmp_path)
        lock.rmdir()
        append(client, 200, 60)
        until(lambda: settled(tmp_path), "old segments sealed")
    assert verify_log(tmp_path).problem is None


@pytest.mark.parametrize("with_writer", [False, True])
def test_kill_nine_in_mid_seal_loses_nothing_and_sealing_goes_on(
    tmp_path: Path, with_writer: bool
) -> None:
    build_log(tmp_path, 60, limits=LogLimits(segment_bytes=200_000), payload=bytes(20_000))
    expected = [frame.raw for frame in read_log(tmp_path)]
    writer = start_writer_process(tmp_path, limits=LIMITS)
    until(lambda: bool(half_sealed(tmp_path)), "a segment being sealed")
    (sealing,) = sealing_processes(writer)
    if with_writer:
        writer.kill()
        until(lambda: not Path(f"/proc/{sealing}").exists(), "the end of the sealing process")
    else:
        os.kill(sealing, signal.SIGKILL)
        with FactClient.open(tmp_path, "a", writer.endpoint, limits=LIMITS) as client:
            append(client, 0, 5)
        assert writer.terminate() == 0
    assert not settled(tmp_path)
    assert [frame.raw for frame in read_log(tmp_path)][: len(expected)] == expected
    assert verify_log(tmp_path).problem is None
    with EmbeddedWriter(tmp_path, limits=LIMITS):
        until(lambda: settled(tmp_path), "old segments sealed")
    assert half_sealed(tmp_path) == []
    assert [frame.raw for frame in read_log(tmp_path)][: len(expected)] == expected
    assert verify_log(tmp_path).problem is None


@pytest.mark.parametrize("call", range(1, 40, 6))
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_sealing_process_killed_at_a_file_call_leaves_a_whole_log(
    tmp_path: Path, call: int, when: str
) -> None:
    build_log(tmp_path, 200, limits=LogLimits(segment_bytes=3_000))
    expected = [frame.raw for frame in read_log(tmp_path)]
    arguments = ["--directory", str(tmp_path), "--keep", str(KEPT)]
    done = subprocess.run(
        [sys.executable, CHILD, "sealer", str(call), when, *arguments], timeout=60
    )
    assert done.returncode == -signal.SIGKILL
    assert [frame.raw for frame in read_log(tmp_path)] == expected
    seal_log(tmp_path, keep=KEPT, files=UnsyncedFiles())
    assert [frame.raw for frame in read_log(tmp_path)] == expected
    assert settled(tmp_path)


def test_closing_a_writer_ends_the_sealing_process(tmp_path: Path) -> None:
    build_log(tmp_path, 60, limits=LogLimits(segment_bytes=200_000), payload=bytes(20_000))
    writer = start_writer_process(tmp_path, limits=LIMITS)
    until(lambda: bool(sealing_processes(writer)), "a sealing process")
    (sealing,) = sealing_processes(writer)
    assert writer.terminate() == 0
    assert not Path(f"/proc/{sealing}").exists()


def test_bounds_that_cannot_be_kept_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="unsealed_segments is -1"):
        check_limits(LogLimits(unsealed_segments=-1))
    build_log(tmp_path, 3)
    with pytest.raises(BadInputError, match="-1 closed segments"):
        seal_log(tmp_path, keep=-1)
