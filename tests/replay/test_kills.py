"""A writer or a serving process is killed anywhere; nothing promised is lost, and replay holds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from kill_child import DIARY
from replay_runs import serve_generated, transactions

from pagetrail.replay.verify import verify

CHILD = Path(__file__).with_name("kill_child.py")

SERVING = [
    *[("spooled", call) for call in (1, 4, 17, 40, 71, 95)],
    *[("spool", call) for call in (2, 9, 33, 60, 88)],
    *[("settle", call) for call in (1, 5, 10, 14)],
    *[("settled", call) for call in (1, 3, 7, 10, 12)],
]
WRITER = [
    *[("writer:durable", call) for call in (1, 2, 5, 11, 23, 36, 50)],
    *[("writer:written", call) for call in (1, 3, 8, 17, 29, 44, 58)],
    *[("writer:write", call) for call in (2, 6, 14, 27, 39, 53)],
]
QUICK = [SERVING[2], SERVING[8], SERVING[12], SERVING[17], WRITER[3], WRITER[4], WRITER[9]]


def killed(directory: Path, point: str, call: int) -> int:
    """Serve until the kill; returns how the serving process ended. No writer is left behind."""
    process = subprocess.Popen(
        [sys.executable, str(CHILD), "serve", str(directory), point, str(call)],
        stdout=subprocess.PIPE,
    )
    out, _ = process.communicate(timeout=200)
    for line in out.split():
        with suppress(ProcessLookupError):
            os.kill(int(line), signal.SIGKILL)
    return process.returncode


def promised(directory: Path, what: str) -> dict[tuple[str, int], int]:
    """By client and epoch, how many transactions a diary says were spooled, or acknowledged."""
    found: dict[tuple[str, int], int] = {}
    if not (directory / DIARY).exists():
        return found  # nothing was promised yet
    for line in (directory / DIARY).read_text().splitlines():
        word, client, epoch, next_seq = line.split()
        if word == what:
            found[(client, int(epoch))] = int(next_seq)
    return found


def logged(directory: Path) -> dict[tuple[str, int], int]:
    """By client and epoch, how many transactions the log holds, in order and without gaps."""
    found: dict[tuple[str, int], int] = {}
    for client, epoch, transaction in transactions(directory):
        assert transaction.client_seq == found.get((client, epoch), 0)
        found[(client, epoch)] = transaction.client_seq + 1
    return found


def holds(log: dict[tuple[str, int], int], promises: dict[tuple[str, int], int]) -> None:
    for who, count in promises.items():
        assert log.get(who, 0) >= count, who


def check(directory: Path, point: str, call: int) -> None:
    directory.mkdir(exist_ok=True)
    ended = killed(directory, point, call)
    assert ended == (0 if point.startswith("writer:") else -signal.SIGKILL)
    holds(logged(directory), promised(directory, "acked"))
    spooled = promised(directory, "spooled")
    again = serve_generated(directory, requests=6, workers=2, pages=36, keyframe_every=50)
    assert again.report.requests == 6
    holds(logged(directory), spooled)
    result = verify(directory, processes=1)
    assert result.ok, result.findings
    assert set(result.unattested) == {"~writer"}


@pytest.mark.parametrize(("point", "call"), QUICK)
def test_nothing_promised_is_lost_by_a_kill(tmp_path: Path, point: str, call: int) -> None:
    check(tmp_path / "run", point, call)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "call"), SERVING)
def test_a_serving_process_may_be_killed_anywhere(tmp_path: Path, point: str, call: int) -> None:
    check(tmp_path / "run", point, call)


@pytest.mark.slow
@pytest.mark.parametrize(("point", "call"), WRITER)
def test_a_writer_may_be_killed_anywhere(tmp_path: Path, point: str, call: int) -> None:
    check(tmp_path / "run", point, call)
