"""kill -9 at exact points: around every write and sync of writer and client, nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from log_helpers import fact, value_of

from pagetrail.controlplane.log.client import FactClient
from pagetrail.controlplane.log.errors import WriterStoppedError
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.reader import read_log, verify_log
from pagetrail.controlplane.log.writer import LOOPBACK, EmbeddedWriter, await_ready

CHILD = str(Path(__file__).with_name("log_child_killed.py"))
NOWHERE = "tcp://127.0.0.1:9"
QUICK = LogLimits(retry_ns=50_000_000)
POINTS = [(call, when) for call in range(3, 13) for when in ("before", "after")]


def kill_writer(directory: Path, call: int, when: str) -> None:
    """The writer dies at the point, under a client that goes on; another takes its place."""
    directory.mkdir(parents=True)
    command = [sys.executable, CHILD, "writer", str(call), when, str(directory)]
    process = subprocess.Popen([*command, LOOPBACK, LOOPBACK], stdout=subprocess.PIPE)
    try:
        endpoint = await_ready(process).endpoint
    except WriterStoppedError:
        endpoint = NOWHERE
    number = 0
    with FactClient.open(directory, "a", endpoint, limits=QUICK) as client:
        while process.poll() is None and number < 100_000:
            client.append([fact(number)])
            number += 1
    assert process.wait(30) == -9
    if process.stdout is not None:
        process.stdout.close()
    with (
        EmbeddedWriter(directory) as writer,
        FactClient.open(directory, "a", writer.endpoint, limits=QUICK) as client,
    ):
        client.flush(60)
    check(directory, {1: number - 1} if number else {})


def kill_client(directory: Path, call: int, when: str) -> None:
    """The client dies at the point; its next epoch ships what had returned to the caller."""
    with EmbeddedWriter(directory) as writer:
        command = [sys.executable, CHILD, "client", str(call), when, str(directory)]
        done = subprocess.run([*command, "a", writer.endpoint], capture_output=True, timeout=60)
        assert done.returncode == -9, done.stderr.decode()
        returned = {int(e): int(s) for e, s in map(bytes.split, done.stdout.splitlines())}
        with FactClient.open(directory, "a", writer.endpoint, limits=QUICK) as client:
            client.flush(60)
    check(directory, returned)


def check(directory: Path, returned: dict[int, int]) -> None:
    recorded: dict[int, list[int]] = {}
    for frame in read_log(directory):
        for f in frame.facts():
            if f.client == "a":
                assert value_of(f.body) == f.client_seq
                recorded.setdefault(f.client_epoch, []).append(f.client_seq)
    for epoch, seqs in recorded.items():
        assert seqs == list(range(len(seqs)))
        assert len(seqs) > returned.get(epoch, -1)
    assert set(returned) <= set(recorded)
    assert verify_log(directory).problem is None


@pytest.mark.parametrize(("call", "when"), POINTS[4::10])
def test_a_writer_killed_at_a_file_call_loses_and_doubles_nothing(
    tmp_path: Path, call: int, when: str
) -> None:
    kill_writer(tmp_path / "run", call, when)


@pytest.mark.parametrize(("call", "when"), POINTS[7::10])
def test_a_client_killed_at_a_file_call_loses_nothing_that_returned(
    tmp_path: Path, call: int, when: str
) -> None:
    kill_client(tmp_path / "run", call, when)


@pytest.mark.slow
def test_every_kill_point_of_writer_and_client(tmp_path: Path) -> None:
    for call, when in POINTS:
        kill_writer(tmp_path / f"writer-{call}-{when}", call, when)
        kill_client(tmp_path / f"client-{call}-{when}", call, when)
