"""The sealed form: the same frames byte for byte, small, readable by any tool; retention."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import tempfile
from pathlib import Path

import duckdb
import msgspec
import pytest
import zmq
from hypothesis import given, settings
from hypothesis import strategies as st
from log_helpers import (
    FaultyFiles,
    UnsyncedFiles,
    build_log,
    commit_transactions,
    fact,
    segment_paths,
    transaction,
)

from pagetrail.catalog.envelope import Cause, CompareAndSet, Transaction, WireFact
from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.catalog.facts import KindId, decision_fact
from pagetrail.catalog.facts import fact as catalog_fact
from pagetrail.catalog.kinds.content import Copy
from pagetrail.catalog.kinds.decision import Decision
from pagetrail.controlplane.log import wire
from pagetrail.controlplane.log.clock import LogicalClock
from pagetrail.controlplane.log.committer import open_committer
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.reader import read_log, verify_log
from pagetrail.controlplane.log.sealing import retain_log, seal_log
from pagetrail.controlplane.log.stream import LogStream
from pagetrail.controlplane.log.transactions import encode_transactions
from pagetrail.controlplane.log.wire import span_answer
from pagetrail.controlplane.log.writer import EmbeddedWriter

SMALL_SEGMENTS = LogLimits(segment_bytes=2_000, index_stride_bytes=500)


def digest(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def some_facts(generator: random.Random) -> tuple[WireFact, ...]:
    """Facts of known, unknown, odd and malformed bodies."""
    number = generator.randrange(1 << 30)
    copy = Copy(digest(number % 7), f"worker-{number % 3}", 2, number % 3, f"key/{number}")
    decision = Decision(
        number,
        1,
        number - 1,
        digest(number),
        msgspec.Raw(msgspec.msgpack.encode((number, (1, 2)))),
        msgspec.Raw(b"\x05"),
        3,
        0,
        digest(number + 1),
        msgspec.Raw(b"\xc0"),
    )
    odd = (
        b"\xc0",
        b"\x92\x01\x02",
        b"\x95" + b"\xc0" * 5,
        b"\x95\xcc\x01" + b"\xc0" * 4,
        msgspec.msgpack.encode([2**64 - 1, "", 2, 3, ""]),
    )
    choices = (
        catalog_fact(copy),
        decision_fact(KindId.EVICT, decision),
        fact(number, b"unknown kind"),
        WireFact(0, KindId.COPY, 7, msgspec.Raw(generator.choice(odd))),
    )
    return tuple(generator.choices(choices, k=generator.randint(1, 3)))


def build_mixed_log(directory: Path, frames: int, seed: int, limits: LogLimits) -> None:
    generator = random.Random(seed)
    committer, _ = open_committer(
        directory, clock=LogicalClock(), limits=limits, files=UnsyncedFiles()
    )
    numbers = {"a": 0, "b": 0}
    for _ in range(frames):
        for client in generator.sample(["a", "b"], k=generator.randint(1, 2)):
            message = []
            for _ in range(generator.randint(1, 4)):
                number = numbers[client]
                causes = generator.choice(
                    [(), (Cause(client, 1, max(number - 1, 0)),), (Cause("a", 1, 0),) * 2]
                )
                register = generator.choice([None, None, b"r", b"s"])
                changes = () if register is None else (CompareAndSet(register, None, b"v"),)
                message.append(Transaction(number, causes, changes, some_facts(generator)))
                numbers[client] += 1
            committer.admit(client, 1, encode_transactions(message))
        committer.commit()
    committer.close()


def tree(directory: Path) -> list[str]:
    return sorted(os.listdir(directory / "log"))


@given(st.integers(0, 10**6))
@settings(max_examples=8, deadline=None)
def test_any_log_comes_back_from_its_sealed_form_byte_for_byte(seed: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        build_mixed_log(directory, 25, seed, SMALL_SEGMENTS)
        before = list(read_log(directory))
        position = verify_log(directory).position
        report = seal_log(directory, files=UnsyncedFiles())
        assert report.segments > 1
        assert len(segment_paths(directory)) == 1
        assert list(read_log(directory)) == before
        after = verify_log(directory)
        assert (after.problem, after.position) == (None, position)
        assert seal_log(directory).segments == 0


def test_a_writer_continues_after_sealed_segments_without_reading_them(tmp_path: Path) -> None:
    build_mixed_log(tmp_path, 25, 3, SMALL_SEGMENTS)
    committer, _ = open_committer(tmp_path, clock=LogicalClock())
    expected = {c: committer.expected(c, 1) for c in "ab"}
    registers = committer.registers
    spans = committer.resolve("a", 1, 0, 3)
    committer.close()
    seal_log(tmp_path)
    for sealed in (tmp_path / "log").glob("sealed-*"):
        for path in sealed.glob("*.parquet"):
            path.rename(path.with_suffix(".away"))
    committer, _ = open_committer(tmp_path, clock=LogicalClock())
    assert {c: committer.expected(c, 1) for c in "ab"} == expected
    assert committer.registers == registers
    for path in (tmp_path / "log").glob("sealed-*/*.away"):
        path.rename(path.with_suffix(".parquet"))
    again = committer.resolve("a", 1, 0, 3)
    assert [span_answer(again[n], n) for n in range(3)] == [
        span_answer(spans[0], n) for n in range(3)
    ]
    committer.close()


def test_without_their_indexes_a_writer_reads_the_sealed_segments(tmp_path: Path) -> None:
    build_mixed_log(tmp_path, 25, 4, SMALL_SEGMENTS)
    committer, _ = open_committer(tmp_path, clock=LogicalClock())
    expected, registers = committer.expected("a", 1), committer.registers
    committer.close()
    seal_log(tmp_path)
    first, second, *others = (tmp_path / "log").glob("sealed-*/index")
    first.write_bytes(first.read_bytes()[:-1])
    second.write_bytes(bytes(100))
    for path in others:
        path.unlink()
    committer, _ = open_committer(tmp_path, clock=LogicalClock())
    assert (committer.expected("a", 1), committer.registers) == (expected, registers)
    committer.close()
    assert "index is damaged" in str(verify_log(tmp_path).problem)
    for path in (first, second):
        path.unlink()
    seal_log(tmp_path)
    assert verify_log(tmp_path).problem is None


def test_every_changed_file_of_a_sealed_segment_is_named(tmp_path: Path) -> None:
    build_mixed_log(tmp_path, 25, 5, SMALL_SEGMENTS)
    seal_log(tmp_path)
    sealed = min((tmp_path / "log").glob("sealed-*"))
    for path in sorted(sealed.iterdir()):
        data = path.read_bytes()
        changed = bytearray(data)
        changed[len(changed) // 2] ^= 1
        path.write_bytes(changed)
        problem = verify_log(tmp_path).problem
        assert problem is not None, path
        assert sealed.name in problem
        path.write_bytes(data)
    assert verify_log(tmp_path).problem is None


def test_a_crash_of_the_sealer_at_any_point_leaves_a_whole_log(tmp_path: Path) -> None:
    for fail_at in range(1, 25):
        directory = tmp_path / str(fail_at)
        build_mixed_log(directory, 6, 6, SMALL_SEGMENTS)
        before = list(read_log(directory))
        with contextlib.suppress(OSError):
            seal_log(directory, files=FaultyFiles(fail_at))
        assert list(read_log(directory)) == before
        committer, _ = open_committer(directory, clock=LogicalClock())
        committer.close()
        seal_log(directory)
        assert list(read_log(directory))[: len(before)] == before
        assert verify_log(directory).problem is None
        assert not [name for name in tree(directory) if name.endswith(".tmp")]


def ask_snapshot(endpoint: str) -> wire.Manifest:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(endpoint)
        socket.send_multipart([wire.SNAPSHOT, wire.encode(wire.Simple(1))])
        assert socket.poll(10_000)
        verb, header = socket.recv_multipart()
    assert verb == wire.MANIFEST
    return wire.decode(header, wire.Manifest)


def test_sealing_beside_a_live_writer_disturbs_neither_it_nor_its_readers(tmp_path: Path) -> None:
    build_log(tmp_path, 200, limits=SMALL_SEGMENTS)
    with EmbeddedWriter(tmp_path, limits=SMALL_SEGMENTS) as writer:
        sealed = seal_log(tmp_path).segments
        assert sealed > 3
        manifest = ask_snapshot(writer.endpoint)
        assert sum(entry.sealed != "" for entry in manifest.segments) == sealed
        for entry in manifest.segments:
            assert not entry.sealed or (tmp_path / "log" / entry.sealed).is_dir()
        ends = [entry.next_seq for entry in manifest.segments]
        assert ends == [*(e.first_seq for e in manifest.segments[1:]), manifest.head]
        with LogStream(writer.endpoint, writer.publish_endpoint) as stream:
            end = verify_log(tmp_path).position.next_seq
            frames = []
            while stream.next_seq < end:
                frames += stream.poll(10)
    assert frames == list(read_log(tmp_path))


def test_sealed_tables_answer_plain_sql(tmp_path: Path) -> None:
    committer, _ = open_committer(
        tmp_path, clock=LogicalClock(), limits=LogLimits(segment_bytes=1_000), files=UnsyncedFiles()
    )
    for number in range(60):
        copy = Copy(digest(number), f"w{number % 4}", 2, 1, f"k{number}")
        message = [Transaction(number, (), (), (catalog_fact(copy),))]
        committer.admit("a", 1, encode_transactions(message))
        committer.commit()
    committer.close()
    seal_log(tmp_path)
    pattern = str(tmp_path / "log" / "sealed-*" / "facts-*-copy.parquet")
    rows = duckdb.sql(
        f"select worker, count(*), min(seq) from '{pattern}' where state = 1 group by 1 order by 1"
    ).fetchall()
    assert [row[0] for row in rows] == ["w0", "w1", "w2", "w3"]
    assert [row[2] for row in rows] == [1, 2, 3, 4]


def test_a_small_decision_with_two_digests_takes_less_than_a_hundred_bytes(tmp_path: Path) -> None:
    committer, _ = open_committer(
        tmp_path, limits=LogLimits(segment_bytes=900_000), files=UnsyncedFiles()
    )
    count = 10_000
    for first in range(0, count, 10):
        message = []
        for number in range(first, first + 10):
            decision = Decision(
                number // 3,
                1,
                number * 2,
                digest(number),
                msgspec.Raw(msgspec.msgpack.encode((number * 1_000, number % 5))),
                msgspec.Raw(msgspec.msgpack.encode((number % 64, number % 3))),
                number % 4,
                0,
                digest(-number - 1),
                msgspec.Raw(b"\xc0"),
            )
            causes = (Cause("a", 1, max(number - 2, 0)),)
            message.append(
                Transaction(number, causes, (), (decision_fact(KindId.EVICT, decision),))
            )
        committer.admit("a", 1, encode_transactions(message))
        committer.commit()
    committer.close()
    report = seal_log(tmp_path)
    assert report.facts > count // 2
    assert report.sealed_bytes / report.facts < 100


def test_retention_removes_whole_sealed_segments_and_says_so(tmp_path: Path) -> None:
    build_log(tmp_path, 120, limits=SMALL_SEGMENTS)
    seal_log(tmp_path)
    everything = list(read_log(tmp_path))
    cut = everything[60].first_seq
    report = retain_log(tmp_path, cut)
    assert report.segments > 1
    assert 0 < report.first_seq <= cut
    assert list(read_log(tmp_path, report.first_seq)) == [
        f for f in everything if f.first_seq >= report.first_seq
    ]
    with pytest.raises(BadInputError, match="starts at seq"):
        list(read_log(tmp_path, 0))
    assert verify_log(tmp_path).problem is None
    with (
        EmbeddedWriter(tmp_path) as writer,
        LogStream(writer.endpoint, writer.publish_endpoint, from_seq=3) as stream,
        pytest.raises(BadInputError, match="before the first"),
    ):
        stream.poll(10)
    committer, _ = open_committer(tmp_path, clock=LogicalClock())
    assert committer.expected("worker-1", 1) == (120, 1)
    commit_transactions(committer, [transaction(120)])
    committer.close()
    first = min((tmp_path / "log").glob("sealed-*"))
    manifest = first / "manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"start_chain": "', b'"start_chain": "00'))
    with pytest.raises((CorruptionError, ValueError)):
        list(read_log(tmp_path, report.first_seq))
