"""Writer and clients over real sockets: exactly once, order, bounds, faults, alarms."""

from __future__ import annotations

import errno
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import pytest
import zmq
from log_helpers import build_log, fact, frame_ends, segment_paths, transaction, value_of

from pagetrail.catalog.envelope import Cause, CompareAndSet
from pagetrail.catalog.errors import BadInputError, UnknownKindError
from pagetrail.catalog.facts import decode_body
from pagetrail.controlplane.log import resolver, wire
from pagetrail.controlplane.log.archive import Archive
from pagetrail.controlplane.log.client import Draft, FactClient
from pagetrail.controlplane.log.committer import open_committer
from pagetrail.controlplane.log.errors import (
    ClientRefusedError,
    HeadroomError,
    LogBehindError,
    LogTimeoutError,
    WriterStoppedError,
)
from pagetrail.controlplane.log.files import OsFiles
from pagetrail.controlplane.log.frames import CHAIN_START
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.reader import read_log, verify_log
from pagetrail.controlplane.log.transactions import encode_transactions
from pagetrail.controlplane.log.wire import Refusal
from pagetrail.controlplane.log.writer import EmbeddedWriter

QUICK = LogLimits(retry_ns=50_000_000, heartbeat_ns=20_000_000, hello_ns=50_000_000)


@contextmanager
def dealer(endpoint: str) -> Iterator[zmq.Socket[bytes]]:
    """A bare socket that speaks the protocol by hand."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(endpoint)
        yield socket


def send_append(
    socket: zmq.Socket[bytes], first: int, count: int = 1, client: str = "by-hand", payload: int = 0
) -> None:
    message = [transaction(n, (n,), payload=bytes(payload)) for n in range(first, first + count)]
    header = wire.encode(wire.Append(7, client, 1))
    socket.send_multipart([wire.APPEND, header, encode_transactions(message)])


def receive(socket: zmq.Socket[bytes], timeout_ms: int = 10_000) -> list[bytes]:
    assert socket.poll(timeout_ms), "no answer"
    return socket.recv_multipart()


def acknowledged(socket: zmq.Socket[bytes]) -> wire.Acknowledged:
    verb, header = receive(socket)
    assert verb == wire.ACKNOWLEDGED, (verb, header)
    return wire.decode(header, wire.Acknowledged)


def refused(socket: zmq.Socket[bytes]) -> wire.Refused:
    verb, header = receive(socket)
    assert verb == wire.REFUSED
    return wire.decode(header, wire.Refused)


def values_by_client(directory: Path) -> dict[tuple[str, int], list[int]]:
    found: dict[tuple[str, int], list[int]] = {}
    for frame in read_log(directory):
        for f in frame.facts():
            if not f.client.startswith("~"):
                found.setdefault((f.client, f.client_epoch), []).append(value_of(f.body))
    return found


def append_for_ever(client: FactClient) -> None:
    while True:
        client.append([fact(3)])
        client.flush(30)


def test_what_a_client_appends_is_in_the_log_in_order_and_once(tmp_path: Path) -> None:
    with EmbeddedWriter(tmp_path) as writer:
        with FactClient.open(tmp_path, "a", writer.endpoint) as client:
            for number in range(300):
                client.append([fact(number)])
            client.append_many([Draft(facts=(fact(n),)) for n in range(300, 900)])
            client.flush(30)
            assert client.acked_through == 899
            assert client.head == 901
        assert not list((tmp_path / "spool" / "a").glob("*.ptspool"))
    assert values_by_client(tmp_path) == {("a", 1): list(range(900))}
    assert verify_log(tmp_path).problem is None


def test_wait_says_where_a_transaction_lies_however_old(tmp_path: Path) -> None:
    limits = LogLimits(answers=10, message_bytes=200)
    with (
        EmbeddedWriter(tmp_path, limits=limits) as writer,
        FactClient.open(tmp_path, "a", writer.endpoint, limits=limits) as client,
    ):
        positions = [client.append([fact(n), fact(n)]) for n in range(200)]
        client.flush(30)
        for number in (0, 1, 57, 150, 199):
            answer = client.wait(positions[number])
            assert (answer.tx, answer.seq, answer.refused) == (
                1 + 2 * number,
                2 + 2 * number,
                False,
            )
        with pytest.raises(BadInputError, match="not appended"):
            client.wait(Cause("a", 1, 200))


@contextmanager
def held_look_ups(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Semaphore, Event]]:
    """Look-ups in the log wait for the event; each that has begun releases the semaphore."""
    begun, go = Semaphore(0), Event()
    look_up = Archive.answers

    def held(archive: Archive, *arguments: Any) -> list[wire.AnswerSpan]:
        begun.release()
        assert go.wait(60)
        return look_up(archive, *arguments)

    monkeypatch.setattr(Archive, "answers", held)
    try:
        yield begun, go
    finally:
        go.set()


def test_a_look_up_of_an_old_transaction_holds_up_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = LogLimits(answers=10, message_bytes=200)
    with (
        EmbeddedWriter(tmp_path, limits=limits) as writer,
        FactClient.open(tmp_path, "a", writer.endpoint, limits=limits) as old,
        FactClient.open(tmp_path, "b", writer.endpoint, limits=limits) as busy,
        ThreadPoolExecutor(1) as pool,
        held_look_ups(monkeypatch) as (begun, go),
    ):
        positions = [old.append([fact(n)]) for n in range(50)]
        old.flush(30)
        answer = pool.submit(old.wait, positions[3])
        assert begun.acquire(timeout=30)
        for number in range(20):
            busy.wait(busy.append([fact(number)]), 30)
        old.wait(old.append([fact(50)]), 30)
        assert not answer.done()
        go.set()
        assert answer.result(30).tx == 4


def test_a_question_for_which_there_is_no_room_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resolver, "QUESTIONS_MAX", 1)
    limits = LogLimits(answers=10, message_bytes=200)
    with (
        EmbeddedWriter(tmp_path, limits=limits) as writer,
        FactClient.open(tmp_path, "a", writer.endpoint, limits=limits) as client,
        ThreadPoolExecutor(2) as pool,
        held_look_ups(monkeypatch) as (begun, go),
    ):
        positions = [client.append([fact(n)]) for n in range(50)]
        client.flush(30)
        answers = [pool.submit(client.wait, positions[n]) for n in (3, 7)]
        assert begun.acquire(timeout=30)
        assert not begun.acquire(timeout=0.3)
        go.set()
        assert [answer.result(30).tx for answer in answers] == [4, 8]


def test_an_old_transaction_in_a_damaged_segment_is_refused_and_the_writer_serves_on(
    tmp_path: Path,
) -> None:
    limits = LogLimits(answers=10, message_bytes=200)
    with EmbeddedWriter(tmp_path, limits=limits) as writer:
        with FactClient.open(tmp_path, "a", writer.endpoint, limits=limits) as client:
            position = [client.append([fact(n)]) for n in range(50)][3]
            client.flush(30)
            (segment,) = segment_paths(tmp_path)
            with segment.open("r+b") as file:
                file.seek(frame_ends(segment.read_bytes())[1] + 90)
                file.write(b"\xff\xff")
            with pytest.raises(ClientRefusedError, match="checksum"):
                client.wait(position, 30)
        with FactClient.open(tmp_path, "b", writer.endpoint, limits=limits) as client:
            client.wait(client.append([fact(1)]), 30)


def test_causes_and_registers_travel_with_the_transaction(tmp_path: Path) -> None:
    with (
        EmbeddedWriter(tmp_path) as writer,
        FactClient.open(tmp_path, "a", writer.endpoint) as client,
    ):
        cause = client.append([fact(0)])
        won = client.append(
            [fact(1)], causes=[cause], compare_and_set=[CompareAndSet(b"r", None, b"1")]
        )
        lost = client.append(
            [fact(2), fact(3)], causes=[won], compare_and_set=[CompareAndSet(b"r", None, b"2")]
        )
        assert not client.wait(won).refused
        answer = client.wait(lost)
        assert answer.refused
        assert answer.seq == answer.tx
        facts = [f for frame in read_log(tmp_path, 1) for f in frame.facts()]
        assert [f.causes for f in facts] == [(), (cause,), (won,)]


def test_a_lost_acknowledgement_and_a_resend_leave_one_copy_in_one_place(tmp_path: Path) -> None:
    with EmbeddedWriter(tmp_path) as writer, dealer(writer.endpoint) as socket:
        send_append(socket, 0, 3)
        first = acknowledged(socket)
        for _ in range(3):
            send_append(socket, 0, 3)
            assert acknowledged(socket).spans == first.spans
    with EmbeddedWriter(tmp_path) as writer, dealer(writer.endpoint) as socket:
        send_append(socket, 0, 3)
        assert acknowledged(socket).spans == first.spans
        send_append(socket, 2, 2)
        spans = acknowledged(socket).spans
        assert [(s.first_client_seq, s.first_seq) for s in spans] == [(2, 3), (3, 5)]
    assert values_by_client(tmp_path) == {("by-hand", 1): [0, 1, 2, 3]}


def test_gaps_and_nonsense_are_answered_with_what_was_expected(tmp_path: Path) -> None:
    with EmbeddedWriter(tmp_path) as writer, dealer(writer.endpoint) as socket:
        send_append(socket, 5)
        answer = refused(socket)
        assert (answer.request, answer.reason, answer.expected) == (7, Refusal.GAP, 0)
        for parts in (
            [b"?"],
            [b"?", b""],
            [wire.APPEND, b"\xc1", b""],
            [wire.APPEND, wire.encode(wire.Append(9, "x", 1)), b"\x90"],
            [wire.APPEND, wire.encode(wire.Append(9, "~writer", 1)), b"\x91\x94\x00\x90\x90\x90"],
            [wire.HELLO, wire.encode(wire.Hello(9, 99, "x", 1, 0, CHAIN_START, b""))],
            [wire.FETCH],
        ):
            socket.send_multipart(parts)
            assert refused(socket).reason is Refusal.BAD_INPUT
        send_append(socket, 0)
        assert acknowledged(socket).head == 2


def test_a_full_queue_answers_busy_and_the_client_gets_everything_through(tmp_path: Path) -> None:
    limits = LogLimits(queue_bytes=40_000, frame_bytes=1_000)
    with EmbeddedWriter(tmp_path, limits=limits) as writer:
        with dealer(writer.endpoint) as socket:
            for number in range(200):
                send_append(socket, number, payload=5_000)
            answers = [receive(socket) for _ in range(200)]
            reasons = [
                wire.decode(header, wire.Refused).reason
                for verb, header in answers
                if verb == wire.REFUSED
            ]
            assert Refusal.BUSY in reasons
        own = LogLimits(message_bytes=2_000, window_bytes=1_000_000)
        with FactClient.open(tmp_path, "a", writer.endpoint, limits=own) as client:
            for number in range(300):
                client.append([fact(number, bytes(3_000))])
            client.flush(60)
    assert values_by_client(tmp_path)[("a", 1)] == list(range(300))


def test_the_spool_of_an_earlier_epoch_goes_first(tmp_path: Path) -> None:
    nowhere = "tcp://127.0.0.1:9"
    for epoch in range(3):
        with FactClient.open(tmp_path, "a", nowhere) as client:
            for number in range(50):
                client.append([fact(100 * epoch + number)])
    with (
        EmbeddedWriter(tmp_path) as writer,
        FactClient.open(tmp_path, "a", writer.endpoint) as client,
    ):
        client.append([fact(900)])
        client.flush(30)
    order = [
        (f.client_epoch, value_of(f.body)) for frame in read_log(tmp_path, 1) for f in frame.facts()
    ]
    assert order == [(e + 1, 100 * e + n) for e in range(3) for n in range(50)] + [(4, 900)]


def test_a_client_whose_name_is_used_elsewhere_is_told_so(tmp_path: Path) -> None:
    with EmbeddedWriter(tmp_path) as writer:
        for _ in range(2):
            with FactClient.open(tmp_path / "here", "a", writer.endpoint) as client:
                client.append([fact(1)])
                client.flush(30)
        with FactClient.open(tmp_path / "there", "a", writer.endpoint) as client:
            client.append([fact(1)])
            with pytest.raises(ClientRefusedError, match="name of its own"):
                client.flush(30)
            with pytest.raises(ClientRefusedError):
                client.append([fact(1)])


def test_flush_without_a_writer_times_out_and_keeps_the_facts(tmp_path: Path) -> None:
    with FactClient.open(tmp_path, "a", "tcp://127.0.0.1:9") as client:
        client.append([fact(1)])
        with pytest.raises(LogTimeoutError, match="nothing is lost"):
            client.flush(0.05)
    with (
        EmbeddedWriter(tmp_path) as writer,
        FactClient.open(tmp_path, "a", writer.endpoint) as client,
    ):
        client.flush(30)
    assert values_by_client(tmp_path) == {("a", 1): [1]}


def test_while_the_writer_is_away_headroom_runs_short_with_a_reason_and_order_is_kept(
    tmp_path: Path,
) -> None:
    limits = LogLimits(
        spool_bytes=200_000, spool_file_bytes=20_000, retry_ns=50_000_000, message_bytes=5_000
    )
    writer = EmbeddedWriter(tmp_path)
    endpoint = writer.endpoint
    client = FactClient.open(tmp_path, "a", endpoint, limits=limits)
    admitted = number = 0

    def serve_requests() -> None:
        nonlocal admitted, number
        for _ in range(10_000):
            headroom = client.reserve(1_000)
            admitted += 1
            for _ in range(5):
                client.append([fact(number, bytes(100))], headroom=headroom)
                number += 1
            headroom.release()

    writer.close()
    with pytest.raises(HeadroomError, match="writer is away or slow, retry later"):
        serve_requests()
    assert 200 < admitted < 300
    assert client.spool_used_bytes <= limits.spool_bytes
    client.close()
    client = FactClient.open(tmp_path, "a", endpoint, limits=limits)
    with pytest.raises(HeadroomError):
        client.reserve(1_000)
    with EmbeddedWriter(tmp_path, bind=endpoint):
        client.flush(60)
        client.reserve(1_000).release()
        client.append([fact(number)])
        client.flush(60)
    client.close()
    assert values_by_client(tmp_path) == {("a", 1): list(range(number)), ("a", 2): [number]}


def test_a_client_outlives_many_writers_on_one_endpoint(tmp_path: Path) -> None:
    writer = EmbeddedWriter(tmp_path)
    endpoint = writer.endpoint
    with FactClient.open(tmp_path, "a", endpoint, limits=QUICK) as client:
        for turn in range(5):
            for number in range(100):
                client.append([fact(100 * turn + number)])
            writer.close()
            client.append([fact(10_000 + turn)])
            writer = EmbeddedWriter(tmp_path, bind=endpoint)
        client.flush(30)
    writer.close()
    expected = [v for t in range(5) for v in [*range(100 * t, 100 * t + 100), 10_000 + t]]
    assert values_by_client(tmp_path) == {("a", 1): expected}
    assert verify_log(tmp_path).problem is None


def test_a_log_that_lost_acknowledged_facts_is_refused_with_an_alarm(tmp_path: Path) -> None:
    with EmbeddedWriter(tmp_path) as writer:
        endpoint = writer.endpoint
        client = FactClient.open(tmp_path, "a", endpoint, limits=QUICK)
        client.append([fact(1)])
        client.flush(30)
    shutil.copytree(tmp_path / "log", tmp_path / "old")
    with EmbeddedWriter(tmp_path, bind=endpoint):
        client.append([fact(2)])
        client.flush(30)
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "old").rename(tmp_path / "log")
    with EmbeddedWriter(tmp_path, bind=endpoint) as writer:
        assert writer.join(30)
        assert isinstance(writer.failure, LogBehindError)
        with pytest.raises(LogBehindError, match="lost"):
            append_for_ever(client)
    client.close()


def test_a_log_with_another_history_behind_the_same_length_is_refused(tmp_path: Path) -> None:
    with EmbeddedWriter(tmp_path) as writer:
        endpoint = writer.endpoint
        client = FactClient.open(tmp_path, "a", endpoint, limits=QUICK)
        client.append([fact(1)])
        client.flush(30)
    identity = (tmp_path / "log" / "identity").read_bytes()
    shutil.rmtree(tmp_path / "log")
    build_log(tmp_path, 20)
    (tmp_path / "log" / "identity").write_bytes(identity)
    with EmbeddedWriter(tmp_path, bind=endpoint) as writer:
        assert writer.join(30)
        assert isinstance(writer.failure, LogBehindError)
        assert "another chain value" in str(writer.failure)
    client.close()


def test_a_client_of_another_log_is_refused_by_name_and_the_writer_goes_on(tmp_path: Path) -> None:
    with EmbeddedWriter(tmp_path / "one") as writer:
        for _ in range(2):
            with FactClient.open(tmp_path / "one", "a", writer.endpoint) as client:
                client.append_many([Draft(facts=(fact(n),)) for n in range(50)])
                client.flush(30)
        own = (tmp_path / "one" / "log" / "identity").read_bytes().hex()[:12]
    with (
        EmbeddedWriter(tmp_path / "two") as writer,
        FactClient.open(tmp_path / "one", "a", writer.endpoint) as lost,
        FactClient.open(tmp_path / "two", "b", writer.endpoint) as client,
    ):
        with pytest.raises(ClientRefusedError, match=f"belongs to log {own}"):
            append_for_ever(lost)
        client.append([fact(2)])
        client.flush(30)
        assert writer.failure is None


class FailingDisk(OsFiles):
    """Its k-th write or fdatasync of a segment fails."""

    def __init__(self, fail_at: int, number: int) -> None:
        self.left = fail_at
        self._number = number

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise OSError(self._number, "injected")

    def write(self, descriptor: int, data: bytes) -> int:
        if self.left == 1:
            super().write(descriptor, data[: len(data) // 3])
        self._count()
        return super().write(descriptor, data)

    def fdatasync(self, descriptor: int) -> None:
        self._count()
        super().fdatasync(descriptor)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failing_disk_stops_the_writer_for_good_and_loses_nothing(
    tmp_path: Path, number: int
) -> None:
    for fail_at in range(1, 16):
        directory = tmp_path / str(fail_at)
        client = None
        endpoint = None
        try:
            writer = EmbeddedWriter(directory, files=FailingDisk(fail_at, number))
        except (OSError, WriterStoppedError):
            pass
        else:
            endpoint = writer.endpoint
            client = FactClient.open(directory, "a", endpoint, limits=QUICK)
            client.append([fact(0)])
            for value in range(1, 30):
                client.append([fact(value)])
                if writer.failure is None:
                    time.sleep(0)
            if not writer.join(0.2):
                client.flush(30)
            writer.close()
            assert writer.failure is None or isinstance(writer.failure, WriterStoppedError)
        with EmbeddedWriter(directory, bind=endpoint or "tcp://127.0.0.1:0"):
            if client is not None:
                client.flush(30)
                client.close()
        assert verify_log(directory).problem is None
        expected = {("a", 1): list(range(30))} if client is not None else {}
        assert values_by_client(directory) == expected


def test_a_stopped_committer_takes_and_acknowledges_nothing_more(tmp_path: Path) -> None:
    disk = FailingDisk(10**6, errno.EIO)
    committer, _ = open_committer(tmp_path, files=disk)
    disk.left = 2
    committer.admit("a", 1, encode_transactions([transaction(0)]))
    with pytest.raises(WriterStoppedError, match="durable"):
        committer.commit()
    for _ in range(2):
        with pytest.raises(WriterStoppedError, match="for good"):
            committer.commit()
        with pytest.raises(WriterStoppedError, match="for good"):
            committer.admit("a", 1, encode_transactions([transaction(1)]))
    committer.close()


def test_kinds_of_a_newer_version_are_kept_as_bytes_and_named_when_decoded(tmp_path: Path) -> None:
    with (
        EmbeddedWriter(tmp_path) as writer,
        FactClient.open(tmp_path, "a", writer.endpoint) as client,
    ):
        client.append([fact(1)])
        client.flush(30)
    (kept,) = [f for frame in read_log(tmp_path, 1) for f in frame.facts()]
    assert bytes(kept.body) == bytes(fact(1).body)
    with pytest.raises(UnknownKindError, match="4000"):
        decode_body(kept.kind, kept.schema_v, kept.body)
