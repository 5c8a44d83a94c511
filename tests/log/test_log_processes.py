"""Writers and clients as processes: killed, stopped, taken over, fenced, encrypted."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import pytest
import zmq
from log_helpers import UnsyncedFiles, build_log, fact, value_of

from pagetrail.catalog.errors import BadInputError
from pagetrail.controlplane.log import wire
from pagetrail.controlplane.log.client import FactClient
from pagetrail.controlplane.log.curve import secure_client
from pagetrail.controlplane.log.endpoints import ClientKeys, ServerKeys
from pagetrail.controlplane.log.errors import LogTimeoutError, WriterStoppedError
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.reader import read_log, verify_log
from pagetrail.controlplane.log.sealing import seal_log
from pagetrail.controlplane.log.stream import LogStream
from pagetrail.controlplane.log.writer import EmbeddedWriter, open_writer, start_writer_process

QUICK = LogLimits(retry_ns=50_000_000)


def test_a_writer_process_says_where_it_serves_and_ends_on_sigterm(tmp_path: Path) -> None:
    writer = start_writer_process(tmp_path, clock="logical")
    with FactClient.open(tmp_path, "a", writer.endpoint) as client:
        client.append([fact(1)])
        client.flush(30)
    assert writer.terminate() == 0
    times = [frame.header.t_us for frame in read_log(tmp_path)]
    assert times == [0, 1]


def test_of_two_writers_on_one_directory_one_serves(tmp_path: Path) -> None:
    with start_writer_process(tmp_path) as writer:
        with pytest.raises(WriterStoppedError, match="ended with code 1"):
            start_writer_process(tmp_path)
        with pytest.raises(BadInputError, match="a writer is running"):
            EmbeddedWriter(tmp_path)
        with FactClient.open(tmp_path, "a", writer.endpoint) as client:
            client.append([fact(1)])
            client.flush(30)


def test_a_stopped_writer_that_was_taken_over_acknowledges_nothing_more(tmp_path: Path) -> None:
    old = start_writer_process(tmp_path)
    with FactClient.open(tmp_path, "early", old.endpoint) as client:
        client.append([fact(1)])
        client.flush(30)
    os.kill(old.process.pid, signal.SIGSTOP)
    with start_writer_process(tmp_path, takeover=True) as new:
        assert new.writer_epoch == old.writer_epoch + 1
        with FactClient.open(tmp_path, "b", new.endpoint) as client:
            client.append([fact(2)])
            client.flush(30)
        with FactClient.open(tmp_path / "elsewhere", "late", old.endpoint) as client:
            client.append([fact(3)])
            os.kill(old.process.pid, signal.SIGCONT)
            assert old.process.wait(30) == 1
            with pytest.raises(LogTimeoutError):
                client.flush(0.2)
        with FactClient.open(tmp_path / "elsewhere", "late", new.endpoint) as client:
            client.flush(30)
        with pytest.raises(BadInputError, match="a writer is running"):
            EmbeddedWriter(tmp_path)
    old.kill()
    report = verify_log(tmp_path)
    assert report.problem is None
    assert report.fenced_bytes > 0
    values = [value_of(f.body) for fr in read_log(tmp_path) for f in fr.facts() if f.kind > 15]
    assert values == [1, 2, 3]
    # The next writer, too, leaves what the fenced one wrote out of the log.
    with EmbeddedWriter(tmp_path):
        pass
    assert verify_log(tmp_path).problem is None


def kill_rounds(directory: Path, rounds: int, seed: int) -> None:
    """Kill writer or client at random; nothing spooled is lost or doubled, order holds."""
    generator = random.Random(seed)
    writer = start_writer_process(directory)
    endpoint, publish = writer.endpoint, writer.publish_endpoint
    output = (directory / "appended").open("wb")
    child_script = str(Path(__file__).with_name("log_child_client.py"))

    def start_child() -> subprocess.Popen[bytes]:
        command = [sys.executable, child_script, str(directory), "worker", endpoint]
        return subprocess.Popen(command, stdout=output)

    child = start_child()
    try:
        for _ in range(rounds):
            generator_wait(child, generator.uniform(0.0, 0.15))
            if generator.random() < 0.5:
                writer.kill()
                writer = start_writer_process(directory, bind=endpoint, publish=publish)
            else:
                child.kill()
                child.wait()
                child = start_child()
    finally:
        child.kill()
        child.wait()
        output.close()
    with FactClient.open(directory, "worker", endpoint, limits=QUICK) as client:
        client.flush(120)
    assert writer.terminate() == 0
    check_nothing_lost(directory)


def generator_wait(child: subprocess.Popen[bytes], seconds: float) -> None:
    """Let the processes run for a while; the moment of the kill is what is random here."""
    try:
        child.wait(seconds)
    except subprocess.TimeoutExpired:
        return
    raise AssertionError(f"the client ended by itself with code {child.returncode}")


def check_nothing_lost(directory: Path) -> None:
    returned: dict[int, int] = {}
    for line in (directory / "appended").read_bytes().splitlines():
        epoch, client_seq = map(int, line.split())
        returned[epoch] = client_seq
    recorded: dict[int, list[int]] = {}
    for frame in read_log(directory):
        for f in frame.facts():
            if f.client == "worker":
                assert value_of(f.body) == f.client_seq
                recorded.setdefault(f.client_epoch, []).append(f.client_seq)
    assert list(recorded) == sorted(recorded)
    for epoch, seqs in recorded.items():
        assert seqs == list(range(len(seqs)))
        assert len(seqs) > returned.get(epoch, -1)
    assert set(returned) <= set(recorded)
    report = verify_log(directory)
    assert (report.problem, report.torn_bytes) == (None, 0)


def test_kill_nine_of_writer_and_client_loses_and_doubles_nothing(tmp_path: Path) -> None:
    kill_rounds(tmp_path, 8, seed=5)


@pytest.mark.slow
def test_twenty_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    kill_rounds(tmp_path, 20, seed=6)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(1_200)
def test_two_hundred_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    kill_rounds(tmp_path, 200, seed=6)


def curve_keys() -> tuple[ServerKeys, ClientKeys, ClientKeys]:
    server, known, stranger = (zmq.curve_keypair() for _ in range(3))
    public = server[0].decode()
    return (
        ServerKeys(public=public, secret=server[1].decode(), clients=(known[0].decode(),)),
        ClientKeys(public=known[0].decode(), secret=known[1].decode(), server=public),
        ClientKeys(public=stranger[0].decode(), secret=stranger[1].decode(), server=public),
    )


def test_between_hosts_only_known_keys_get_in(tmp_path: Path) -> None:
    server, known, stranger = curve_keys()
    with EmbeddedWriter(
        tmp_path, bind="tcp://0.0.0.0:0", publish="tcp://0.0.0.0:0", keys=server
    ) as writer:
        endpoint = writer.endpoint.replace("0.0.0.0", "127.0.0.1")
        publish = writer.publish_endpoint.replace("0.0.0.0", "127.0.0.1")
        with (
            FactClient.open(tmp_path, "known", endpoint, keys=known) as client,
            LogStream(endpoint, publish, keys=known) as stream,
        ):
            client.append([fact(1)])
            client.flush(30)
            while stream.next_seq < 2:
                stream.poll(5)
        for keys in (stranger, None):
            with FactClient.open(tmp_path, "stranger", endpoint, keys=keys) as client:
                client.append([fact(2)])
                with pytest.raises(LogTimeoutError):
                    client.flush(0.3)
    values = [value_of(f.body) for fr in read_log(tmp_path) for f in fr.facts() if f.kind > 15]
    assert values == [1]


def test_sealed_files_and_ranges_too_are_only_for_known_keys(tmp_path: Path) -> None:
    """What the bulk socket serves: a reader with a known key gets all of it, others nothing."""
    server, known, stranger = curve_keys()
    build_log(tmp_path, 120, limits=LogLimits(segment_bytes=3_000))
    expected = [frame.raw for frame in read_log(tmp_path)]
    seal_log(tmp_path, keep=2, files=UnsyncedFiles())
    limits = LogLimits(retry_ns=50_000_000, fetch_bytes=700)
    loop = open_writer(
        tmp_path,
        bind="tcp://0.0.0.0:0",
        publish="tcp://0.0.0.0:0",
        bulk="tcp://0.0.0.0:0",
        limits=limits,
        keys=server,
    )
    ended = threading.Thread(target=loop.run, args=(lambda: None,))
    ended.start()
    try:
        endpoint, publish, bulk = (
            address.replace("0.0.0.0", "127.0.0.1")
            for address in (loop.endpoint, loop.publish_endpoint, loop.bulk_endpoint)
        )
        frames: list[bytes] = []
        with LogStream(endpoint, publish, limits=limits, keys=known) as stream:
            while len(frames) < len(expected):
                frames += [frame.raw for frame in stream.poll(10)]
        assert frames[: len(expected)] == expected
        segment = min((tmp_path / "log").glob("sealed-*")).name
        asks = [
            [wire.FETCH, wire.encode(wire.Fetch(1, 0, 100))],
            [wire.GET_FILE, wire.encode(wire.GetFile(2, segment, "manifest.json", 0, 100))],
        ]
        assert [bulk_answers(bulk, ask, known) for ask in asks] == [1, 1]
        for keys in (stranger, None):
            assert [bulk_answers(bulk, ask, keys) for ask in asks] == [0, 0]
    finally:
        loop.stop()
        ended.join()


def bulk_answers(endpoint: str, ask: list[bytes], keys: ClientKeys | None) -> int:
    """How many answers come to a question within a moment, or at all for a known key."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        if keys is not None:
            secure_client(socket, keys)
        socket.connect(endpoint)
        socket.send_multipart(ask)
        return int(socket.poll(2_000) != 0)


def test_a_writer_process_takes_keys_from_a_file(tmp_path: Path) -> None:
    server, known, _ = curve_keys()
    path = tmp_path / "keys.json"
    path.write_bytes(msgspec.json.encode(server))
    with (
        start_writer_process(tmp_path, arguments=["--keys", str(path)]) as writer,
        FactClient.open(tmp_path, "known", writer.endpoint, keys=known) as client,
    ):
        client.append([fact(1)])
        client.flush(30)


def test_plain_sockets_beyond_this_machine_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInputError, match="CURVE"):
        EmbeddedWriter(tmp_path, bind="tcp://0.0.0.0:0")
    with pytest.raises(BadInputError, match="CURVE"):
        EmbeddedWriter(tmp_path, publish="tcp://*:0")
    with EmbeddedWriter(tmp_path):
        pass
