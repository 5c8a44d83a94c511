"""Faults around closed and sealed segments, full disks, fenced writers, hostile messages."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import zmq
from log_helpers import (
    UnsyncedFiles,
    build_log,
    commit_transactions,
    fact,
    frame_ends,
    segment_paths,
    transaction,
    value_of,
)

from pagetrail.catalog.envelope import CompareAndSet
from pagetrail.catalog.errors import CorruptionError
from pagetrail.controlplane.log import wire
from pagetrail.controlplane.log.client import FactClient
from pagetrail.controlplane.log.clock import LogicalClock
from pagetrail.controlplane.log.committer import open_committer
from pagetrail.controlplane.log.errors import FencedError
from pagetrail.controlplane.log.limits import MESSAGE_BYTES_MAX, LogLimits
from pagetrail.controlplane.log.reader import read_log, verify_log
from pagetrail.controlplane.log.sealing import retain_log, seal_log
from pagetrail.controlplane.log.wire import span_answer
from pagetrail.controlplane.log.writer import EmbeddedWriter

SMALL = LogLimits(segment_bytes=2_000, index_stride_bytes=500)
KEEPER = str(Path(__file__).with_name("log_child_keeper.py"))


def values(directory: Path, from_seq: int = 0) -> list[int]:
    return [
        value_of(f.body) for fr in read_log(directory, from_seq) for f in fr.facts() if f.kind > 15
    ]


def test_a_fenced_writer_that_would_begin_a_segment_takes_nothing_of_the_new_one(
    tmp_path: Path,
) -> None:
    old, _ = open_committer(tmp_path, limits=SMALL, files=UnsyncedFiles())
    number = 0
    while old.active.first_seq == 0:  # its second segment has only just begun
        commit_transactions(old, [transaction(number, [number], payload=bytes(600))])
        number += 1
    # As full as it may be: whatever the old writer commits next begins another segment.
    for _ in range(3):
        commit_transactions(old, [transaction(number, [number], payload=bytes(600))])
        number += 1
    new, _ = open_committer(tmp_path, limits=SMALL, files=UnsyncedFiles(), takeover=True)
    commit_transactions(new, [transaction(number, [number])])
    with pytest.raises(FencedError):
        commit_transactions(old, [transaction(number, [777], payload=bytes(600))])
    commit_transactions(new, [transaction(number + 1, [number + 1])])
    old.close()
    new.close()
    report = verify_log(tmp_path)
    assert report.problem is None
    assert values(tmp_path) == list(range(number + 2))
    committer, _ = open_committer(tmp_path, limits=SMALL, files=UnsyncedFiles())
    assert committer.expected("worker-1", 1) == (number + 2, 1)
    committer.close()
    seal_log(tmp_path, files=UnsyncedFiles())
    assert values(tmp_path) == list(range(number + 2))
    assert len(segment_paths(tmp_path)) == 1


def test_a_start_reads_no_closed_segment_but_the_newest_and_knows_all_the_same(
    tmp_path: Path,
) -> None:
    committer, _ = open_committer(
        tmp_path, limits=SMALL, clock=LogicalClock(), files=UnsyncedFiles()
    )
    for number in range(80):
        register = CompareAndSet(bytes([number % 50]), None, b"v")
        commit_transactions(
            committer, [transaction(number, [number], [register], payload=bytes(200))]
        )
    expected = (committer.expected("worker-1", 1), committer.registers)
    places = [span_answer(s, n) for n in range(80) for s in committer.resolve("worker-1", 1, n, 1)]
    committer.close()
    paths = segment_paths(tmp_path)
    assert len(paths) > 6
    damaged = bytearray(paths[1].read_bytes())
    damaged[frame_ends(bytes(damaged))[2] + 90] ^= 1
    original = paths[1].read_bytes()
    paths[1].write_bytes(damaged)
    committer, _ = open_committer(
        tmp_path, limits=SMALL, clock=LogicalClock(), files=UnsyncedFiles()
    )
    assert (committer.expected("worker-1", 1), committer.registers) == expected
    committer.close()
    # What a start does not read, verify does.
    assert paths[1].name in str(verify_log(tmp_path).problem)
    paths[1].write_bytes(original)
    committer, _ = open_committer(
        tmp_path, limits=SMALL, clock=LogicalClock(), files=UnsyncedFiles()
    )
    again = [span_answer(s, n) for n in range(80) for s in committer.resolve("worker-1", 1, n, 1)]
    assert again == places
    committer.close()


def test_without_its_index_a_damaged_closed_segment_stops_the_start(tmp_path: Path) -> None:
    build_log(tmp_path, 60, limits=SMALL, payload=bytes(200))
    path = segment_paths(tmp_path)[1]
    damaged = bytearray(path.read_bytes())
    damaged[frame_ends(bytes(damaged))[1] + 90] ^= 1
    path.write_bytes(damaged)
    for index in (tmp_path / "log").glob("index-*"):
        index.unlink()
    with pytest.raises(CorruptionError, match=path.name):
        open_committer(tmp_path)


def test_what_retention_removed_is_still_known(tmp_path: Path) -> None:
    committer, _ = open_committer(
        tmp_path, limits=SMALL, clock=LogicalClock(), files=UnsyncedFiles()
    )
    for number in range(60):
        register = CompareAndSet(bytes([number]), None, b"v")
        commit_transactions(
            committer, [transaction(number, [number], [register], payload=bytes(200))]
        )
    committer.close()
    for part in (3, 2):
        seal_log(tmp_path, files=UnsyncedFiles())
        frames = [frame.first_seq for frame in read_log(tmp_path, kept_from(tmp_path))]
        assert retain_log(tmp_path, frames[len(frames) // part], files=UnsyncedFiles()).segments
        committer, _ = open_committer(
            tmp_path, limits=SMALL, clock=LogicalClock(), files=UnsyncedFiles()
        )
        assert committer.expected("worker-1", 1) == (60, 1)
        assert committer.registers == 60
        committer.close()
        assert verify_log(tmp_path).problem is None


def kept_from(directory: Path) -> int:
    report = retain_log(directory, 0, files=UnsyncedFiles())
    return report.first_seq


def limited_seal(directory: Path, size_bytes: int) -> subprocess.CompletedProcess[bytes]:
    """Seal in a process whose files may not grow beyond a size."""
    code = (
        "import sys; from pathlib import Path; "
        "from pagetrail.controlplane.log.sealing import seal_log; seal_log(Path(sys.argv[1]))"
    )

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, size_bytes))

    return subprocess.run(
        [sys.executable, "-c", code, str(directory)], preexec_fn=limit, capture_output=True
    )


def test_a_disk_that_fills_while_sealing_leaves_the_log_as_it_was(tmp_path: Path) -> None:
    generator = random.Random(3)
    build_log(
        tmp_path, 40, limits=LogLimits(segment_bytes=150_000), payload=generator.randbytes(20_000)
    )
    expected = list(read_log(tmp_path))
    for size_bytes in (100, 2_500, 8_000):
        done = limited_seal(tmp_path, size_bytes)
        assert done.returncode != 0, done.stderr
        assert list(read_log(tmp_path)) == expected
        assert verify_log(tmp_path).problem is None
    seal_log(tmp_path)
    assert list(read_log(tmp_path)) == expected


def test_kills_while_sealing_retaining_and_exporting_lose_nothing_that_is_kept(
    tmp_path: Path,
) -> None:
    keep_killed(tmp_path, rounds=3, seed=7)


@pytest.mark.slow
def test_twenty_kills_while_sealing_retaining_and_exporting(tmp_path: Path) -> None:
    keep_killed(tmp_path, rounds=20, seed=8)


def keep_killed(directory: Path, rounds: int, seed: int) -> None:
    """A writer under load, beside it a process that seals, retains, exports and is killed."""
    generator = random.Random(seed)
    stop = threading.Event()
    appended = 0
    limits = LogLimits(segment_bytes=100_000, unsealed_segments=0)  # the other process seals
    with EmbeddedWriter(directory, limits=limits) as writer:
        with FactClient.open(directory, "a", writer.endpoint) as client:

            def load() -> None:
                nonlocal appended
                while not stop.is_set():
                    client.wait(client.append([fact(appended, bytes(2_000))]))
                    appended += 1

            thread = threading.Thread(target=load)
            thread.start()
            try:
                for _ in range(rounds):
                    steps = generator.randrange(2, 9)
                    child = subprocess.Popen(
                        [sys.executable, KEEPER, str(directory)], stdout=subprocess.PIPE
                    )
                    assert child.stdout is not None
                    for _ in range(steps):
                        assert child.stdout.readline(), "the keeper ended by itself"
                    os.kill(child.pid, signal.SIGKILL)
                    child.wait()
                    child.stdout.close()
            finally:
                stop.set()
                thread.join()
        assert writer.failure is None
    report = verify_log(directory)
    assert report.problem is None
    start = kept_from(directory)
    kept = values(directory, start)
    assert kept == list(range(appended - len(kept), appended))
    with EmbeddedWriter(directory) as writer, FactClient.open(directory, "a", writer.endpoint) as c:
        c.append([fact(0)])
        c.flush(30)
    seal_log(directory)
    assert verify_log(directory).problem is None


def test_a_message_beyond_the_bound_ends_its_connection_and_no_one_elses(tmp_path: Path) -> None:
    with EmbeddedWriter(tmp_path) as writer, zmq.Context() as context:
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        socket.connect(writer.endpoint)
        header = wire.encode(wire.Append(1, "huge", 1))
        socket.send_multipart([wire.APPEND, header, bytes(MESSAGE_BYTES_MAX + 1)])
        assert monitor.poll(30_000)
        socket.disable_monitor()
        monitor.close()
        socket.close()
        with FactClient.open(tmp_path, "a", writer.endpoint) as client:
            client.append([fact(1)])
            client.flush(30)
        assert writer.failure is None
    assert values(tmp_path) == [1]


def test_random_bytes_on_the_request_socket_harm_no_one(tmp_path: Path) -> None:
    generator = random.Random(1)
    with EmbeddedWriter(tmp_path) as writer, zmq.Context() as context:
        socket = context.socket(zmq.DEALER)
        socket.linger = 0
        socket.connect(writer.endpoint)
        for _ in range(300):
            parts = [generator.randbytes(generator.randrange(40)) for _ in range(3)]
            parts[0] = generator.choice([b"A", b"H", b"R", b"N", b"S", b"F", b"G", parts[0]])
            socket.send_multipart(parts[: generator.randrange(1, 4)])
            assert socket.poll(10_000)
            assert socket.recv_multipart()[0] == wire.REFUSED
        socket.close()
        with FactClient.open(tmp_path, "a", writer.endpoint) as client:
            client.append([fact(1)])
            client.flush(30)
    assert values(tmp_path) == [1]
