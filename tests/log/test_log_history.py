"""Readers far behind: ranges, sealed segments as files, resumption, and readers that misbehave."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
import zmq
from log_helpers import UnsyncedFiles, build_log, fact, segment_paths

from pagetrail.catalog.errors import CorruptionError
from pagetrail.controlplane.log import wire
from pagetrail.controlplane.log.archive import ActiveSegment
from pagetrail.controlplane.log.bulk import (
    ANSWERS_MAX,
    BulkServer,
    bulk_endpoint,
    bulk_socket,
    reachable,
)
from pagetrail.controlplane.log.client import FactClient
from pagetrail.controlplane.log.committer import open_committer
from pagetrail.controlplane.log.download import SealedDownload
from pagetrail.controlplane.log.frames import Frame, LogPosition, chain_of
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.manifests import read_manifest
from pagetrail.controlplane.log.reader import read_log
from pagetrail.controlplane.log.sealed import sealed_frames
from pagetrail.controlplane.log.sealing import retain_log, seal_log
from pagetrail.controlplane.log.stream import LogStream
from pagetrail.controlplane.log.wire import Refusal
from pagetrail.controlplane.log.writer import EmbeddedWriter

SMALL = LogLimits(segment_bytes=3_000, index_stride_bytes=500, fetch_bytes=700)
QUICK = LogLimits(retry_ns=50_000_000, heartbeat_ns=20_000_000, fetch_bytes=700)

_T = TypeVar("_T", bound=msgspec.Struct)


class Asker:
    """Speaks the protocol by hand, on both of a writer's request sockets."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], endpoint: str) -> None:
        self._endpoint = endpoint
        self._context = context
        self.main = self._connected(endpoint)
        self.manifest = self.ask(self.main, wire.SNAPSHOT, wire.Simple(1), wire.Manifest)[0]
        self.bulk = self._connected(reachable(self.manifest.bulk_endpoint, endpoint))

    def _connected(self, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        socket.linger = 0
        socket.set(zmq.RCVHWM, 2)  # so that answers nobody takes wait where they come from
        socket.connect(endpoint)
        return socket

    def ask(
        self, socket: zmq.Socket[bytes], verb: bytes, header: msgspec.Struct, form: type[_T]
    ) -> tuple[_T, bytes]:
        socket.send_multipart([verb, wire.encode(header)])
        assert socket.poll(10_000), "no answer"
        _, answer, data = (*socket.recv_multipart(), b"")[:3]
        return wire.decode(answer, form), data

    def file(self, directory: str, name: str, offset: int = 0) -> tuple[wire.FilePart, bytes]:
        ask = wire.GetFile(3, directory, name, offset, 10**9)
        return self.ask(self.bulk, wire.GET_FILE, ask, wire.FilePart)

    def close(self) -> None:
        self.main.close()
        self.bulk.close()


@contextmanager
def asking(endpoint: str) -> Iterator[Asker]:
    with zmq.Context() as context:
        asker = Asker(context, endpoint)
        try:
            yield asker
        finally:
            asker.close()


def collected(stream: LogStream, head: int) -> list[Frame]:
    frames: list[Frame] = []
    while stream.next_seq < head:
        frames += stream.poll(10)
    return frames


def sealed_log(directory: Path) -> list[Frame]:
    """A log with several sealed segments and a tail; returns its frames."""
    build_log(directory, 120, limits=SMALL)
    frames = list(read_log(directory))
    seal_log(directory, files=UnsyncedFiles())
    return frames


def test_a_new_subscriber_gets_sealed_segments_as_files_and_then_the_tail(tmp_path: Path) -> None:
    expected = sealed_log(tmp_path)
    with EmbeddedWriter(tmp_path) as writer:
        with asking(writer.endpoint) as asker:
            assert [entry.sealed != "" for entry in asker.manifest.segments][:2] == [True, True]
        with (
            LogStream(writer.endpoint, writer.publish_endpoint, limits=QUICK) as stream,
            FactClient.open(tmp_path, "a", writer.endpoint) as client,
        ):
            frames = collected(stream, expected[-1].next_seq + 1)
            client.append([fact(1)])
            client.flush(30)
            frames += collected(stream, client.head)
    assert [f.raw for f in frames[: len(expected)]] == [f.raw for f in expected]
    assert [f.raw for f in frames] == [f.raw for f in read_log(tmp_path)]
    for before, after in itertools.pairwise(frames):
        assert after.header.previous_chain == chain_of(before.raw)


def test_a_subscriber_may_start_inside_a_sealed_segment(tmp_path: Path) -> None:
    expected = sealed_log(tmp_path)
    start = expected[9]
    with (
        EmbeddedWriter(tmp_path) as writer,
        LogStream(
            writer.endpoint,
            writer.publish_endpoint,
            from_seq=start.first_seq,
            chain=start.header.previous_chain,
            limits=QUICK,
        ) as stream,
    ):
        frames = collected(stream, expected[-1].next_seq)
    assert frames[0].raw == start.raw


def test_a_segment_sealed_while_a_subscriber_reads_changes_nothing_for_it(tmp_path: Path) -> None:
    build_log(tmp_path, 120, limits=SMALL)
    expected = [frame.raw for frame in read_log(tmp_path)]
    head = 0
    with (
        EmbeddedWriter(tmp_path) as writer,
        LogStream(writer.endpoint, writer.publish_endpoint, limits=QUICK) as stream,
    ):
        frames = stream.poll(10)
        assert len(frames) < len(expected)
        seal_log(tmp_path, files=UnsyncedFiles())
        head = 1 + list(read_log(tmp_path))[-1].first_seq
        frames += collected(stream, head)
    assert [frame.raw for frame in frames[: len(expected)]] == expected


def test_a_copy_that_was_cut_short_goes_on_where_it_ended(tmp_path: Path) -> None:
    expected = sealed_log(tmp_path / "run")
    into = tmp_path / "copy"
    with (
        EmbeddedWriter(tmp_path / "run", limits=SMALL) as writer,
        asking(writer.endpoint) as asker,
    ):
        name = asker.manifest.segments[1].sealed
        asked: list[tuple[str, int]] = []
        while True:
            download = SealedDownload(into, name)  # starts anew for every part
            wanted = download.wanted()
            if wanted is None:
                break
            asked.append(wanted)
            part, data = asker.file(name, *wanted)
            assert len(data) <= SMALL.fetch_bytes
            download.take(part.offset_bytes, part.size_bytes, data)
    assert len(asked) == len(set(asked)) > 4
    assert any(offset for _, offset in asked)
    manifest = read_manifest(into / name)
    held = [f.raw for f in expected if manifest.first_seq <= f.first_seq < manifest.next_seq]
    assert [frame.raw for frame in sealed_frames(into / name)] == held


def test_bytes_that_were_altered_on_the_way_are_refused_and_asked_for_again(
    tmp_path: Path,
) -> None:
    sealed_log(tmp_path / "run")
    source = min((tmp_path / "run" / "log").glob("sealed-*/manifest.json")).parent
    download = SealedDownload(tmp_path / "copy", source.name)
    spoilt = False
    while (wanted := download.wanted()) is not None:
        name, offset = wanted
        data = (source / name).read_bytes()
        if name.startswith("facts") and not spoilt:
            spoilt = True
            with pytest.raises(CorruptionError, match=name):
                download.take(offset, len(data), bytes([data[0] ^ 1]) + data[1:])
            download = SealedDownload(tmp_path / "copy", source.name)
            continue
        download.take(offset, len(data), data[offset:])
    assert spoilt
    assert list(sealed_frames(download.directory)) == list(sealed_frames(source))


@pytest.mark.parametrize(
    ("directory", "name"),
    [
        ("..", "identity"),
        ("sealed-00000000000000000000", "../identity"),
        ("sealed-00000000000000000000", "index"),
        ("sealed-00000000000000000000/..", "identity"),
        ("epochs", "epoch-00000000000000000001"),
        ("sealed-00000000000000000007", "manifest.json"),
    ],
)
def test_only_files_that_a_manifest_names_are_given_out(
    tmp_path: Path, directory: str, name: str
) -> None:
    sealed_log(tmp_path)
    with EmbeddedWriter(tmp_path) as writer, asking(writer.endpoint) as asker:
        ask = wire.GetFile(3, directory, name, 0, 100)
        refused, _ = asker.ask(asker.bulk, wire.GET_FILE, ask, wire.Refused)
        assert refused.reason is Refusal.BAD_RANGE


def test_a_reader_that_takes_no_answers_has_only_a_few_waiting_for_it(tmp_path: Path) -> None:
    build_log(tmp_path, 60, payload=bytes(50_000))
    committer, _ = open_committer(tmp_path, files=UnsyncedFiles())
    asked = 200
    served = threading.Semaphore(0)

    def standing() -> tuple[int, LogPosition, ActiveSegment]:
        served.release()
        return 1, committer.head, committer.active

    with zmq.Context() as context, context.socket(zmq.DEALER) as reader:
        router = bulk_socket(context)
        router.bind("tcp://127.0.0.1:0")
        endpoint = router.get_string(zmq.LAST_ENDPOINT)
        server = BulkServer(router, tmp_path / "log", LogLimits(), standing)
        reader.linger = 0
        reader.set(zmq.RCVHWM, 2)
        reader.connect(endpoint)
        fetch = [wire.FETCH, wire.encode(wire.Fetch(9, 0, 10**9))]
        for _ in range(asked):
            reader.send_multipart(fetch)
        for _ in range(asked):
            assert served.acquire(timeout=30)
        with context.socket(zmq.DEALER) as other:  # served after all of them
            other.linger = 0
            other.connect(endpoint)
            other.send_multipart(fetch)
            assert other.poll(30_000)
            assert len(other.recv_multipart()[2]) > 1_000_000
        answers = 0
        while reader.poll(300):
            reader.recv_multipart()
            answers += 1
        server.close()
    committer.close()
    # What the sockets between them hold comes on top; each answer has 2 MiB.
    assert ANSWERS_MAX <= answers < asked // 4


def test_garbage_on_the_bulk_socket_is_answered_and_harms_no_one(tmp_path: Path) -> None:
    sealed_log(tmp_path)
    with EmbeddedWriter(tmp_path) as writer, asking(writer.endpoint) as asker:
        for parts in (
            [b""],
            [b"F"],
            [b"F", b"\xc1"],
            [b"F", wire.encode(wire.Fetch(1, -5, 10))],
            [b"G", wire.encode(wire.Simple(1))],
            [b"A", b"", b"", b""],
            [wire.FETCH, wire.encode(wire.Simple(3)), bytes(500)],
        ):
            asker.bulk.send_multipart(parts)
            assert asker.bulk.poll(10_000)
            assert asker.bulk.recv_multipart()[0] == wire.REFUSED
        assert asker.file(asker.manifest.segments[0].sealed, "manifest.json")[1]
    with pytest.raises(zmq.ZMQError), zmq.Context() as context:
        context.socket(zmq.DEALER).connect("nonsense")


def test_a_position_that_retention_removed_is_refused_by_name(tmp_path: Path) -> None:
    frames = sealed_log(tmp_path)
    report = retain_log(tmp_path, frames[-1].first_seq, files=UnsyncedFiles())
    assert report.segments > 1
    with EmbeddedWriter(tmp_path) as writer, asking(writer.endpoint) as asker:
        refused, _ = asker.ask(asker.bulk, wire.FETCH, wire.Fetch(2, 0, 100), wire.Refused)
        assert refused.reason is Refusal.BAD_RANGE
        assert str(report.first_seq) in refused.message
        assert asker.manifest.segments[0].first_seq == report.first_seq


def test_the_bulk_socket_listens_beside_the_one_for_appends() -> None:
    assert bulk_endpoint("tcp://127.0.0.1:5555") == "tcp://127.0.0.1:0"
    assert bulk_endpoint("ipc:///run/writer") == "ipc:///run/writer.bulk"
    assert reachable("tcp://0.0.0.0:7", "tcp://writer.example:5555") == "tcp://writer.example:7"
    assert reachable("ipc:///run/writer.bulk", "ipc:///run/writer") == "ipc:///run/writer.bulk"


def test_a_lost_or_damaged_index_only_costs_time(tmp_path: Path) -> None:
    build_log(tmp_path, 120, limits=SMALL)
    expected = [frame.raw for frame in read_log(tmp_path)]
    assert len(segment_paths(tmp_path)) > 4
    first, second, *_ = sorted((tmp_path / "log").glob("index-*"))
    first.unlink()
    second.write_bytes(second.read_bytes()[:40])
    with (
        EmbeddedWriter(tmp_path) as writer,
        LogStream(writer.endpoint, writer.publish_endpoint, limits=QUICK) as stream,
    ):
        head = stream.poll(10)[-1].next_seq
        assert head
    assert [frame.raw for frame in read_log(tmp_path)][:-1] == expected
