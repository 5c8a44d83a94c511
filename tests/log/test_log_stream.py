"""The live stream: contiguous whatever the publisher drops, whoever restarts."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from log_helpers import build_log, fact

from pagetrail.catalog.errors import BadInputError
from pagetrail.controlplane.log.client import FactClient
from pagetrail.controlplane.log.cursor import StreamCursor
from pagetrail.controlplane.log.errors import LogBehindError
from pagetrail.controlplane.log.frames import CHAIN_START, Frame
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.reader import read_log
from pagetrail.controlplane.log.stream import LogStream
from pagetrail.controlplane.log.wire import Head
from pagetrail.controlplane.log.writer import EmbeddedWriter

QUICK = LogLimits(retry_ns=50_000_000, heartbeat_ns=20_000_000, hello_ns=50_000_000)


def follow(stream: LogStream, until: int) -> list[Frame]:
    frames: list[Frame] = []
    for _ in range(10_000):
        if stream.next_seq >= until:
            return frames
        frames += stream.poll(5)
    raise AssertionError(f"stuck at {stream.next_seq} of {until}")


def test_a_subscriber_gets_history_and_then_what_is_written(tmp_path: Path) -> None:
    with (
        EmbeddedWriter(tmp_path) as writer,
        FactClient.open(tmp_path, "a", writer.endpoint) as client,
    ):
        for number in range(100):
            client.append([fact(number)])
        client.flush(30)
        with LogStream(writer.endpoint, writer.publish_endpoint) as stream:
            frames = follow(stream, 101)
            client.append([fact(100)])
            frames += follow(stream, 102)
            assert stream.poll(0) == []
            assert stream.head == 102
    assert frames == list(read_log(tmp_path))


def test_a_slow_subscriber_that_lost_the_tail_catches_up(tmp_path: Path) -> None:
    limits = LogLimits(live_frames=2, heartbeat_ns=20_000_000, fetch_bytes=20_000)
    with (
        EmbeddedWriter(tmp_path, limits=limits) as writer,
        FactClient.open(tmp_path, "a", writer.endpoint) as client,
        LogStream(writer.endpoint, writer.publish_endpoint, limits=limits) as stream,
    ):
        frames = follow(stream, 1)
        for number in range(300):
            client.append([fact(number, bytes(20_000))])
            client.flush(30)
        frames += follow(stream, client.head)
    assert frames == list(read_log(tmp_path))


def test_a_subscriber_starts_at_any_position_and_proves_continuity(tmp_path: Path) -> None:
    build_log(tmp_path, 30)
    everything = list(read_log(tmp_path))
    with EmbeddedWriter(tmp_path) as writer:
        end = everything[-1].next_seq + 1
        for start in (0, 1, 7, everything[-1].first_seq, end - 1, end):
            with LogStream(writer.endpoint, writer.publish_endpoint, from_seq=start) as stream:
                assert follow(stream, end) == list(read_log(tmp_path, start))
        middle = everything[10]
        with LogStream(
            writer.endpoint, writer.publish_endpoint, from_seq=middle.next_seq, chain=middle.chain
        ) as stream:
            assert follow(stream, end) == list(read_log(tmp_path, middle.next_seq))
        with (
            LogStream(
                writer.endpoint, writer.publish_endpoint, from_seq=middle.next_seq, chain=bytes(32)
            ) as stream,
            pytest.raises(LogBehindError, match="replaced"),
        ):
            follow(stream, end)


def test_a_subscriber_outlives_a_writers_restart(tmp_path: Path) -> None:
    writer = EmbeddedWriter(tmp_path, limits=QUICK)
    endpoint, publish = writer.endpoint, writer.publish_endpoint
    with (
        FactClient.open(tmp_path, "a", endpoint, limits=QUICK) as client,
        LogStream(endpoint, publish, limits=QUICK) as stream,
    ):
        frames = []
        for turn in range(3):
            for number in range(20):
                client.append([fact(number)])
            client.flush(30)
            frames += follow(stream, client.head)
            writer.close()
            writer = EmbeddedWriter(tmp_path, bind=endpoint, publish=publish, limits=QUICK)
            client.append([fact(turn)])
        client.flush(30)
        frames += follow(stream, client.head)
    writer.close()
    assert frames == list(read_log(tmp_path))


def test_a_writer_that_comes_back_behind_the_subscriber_raises_the_alarm(tmp_path: Path) -> None:
    build_log(tmp_path, 3)
    shutil.copytree(tmp_path, tmp_path / "old")
    with EmbeddedWriter(tmp_path, limits=QUICK) as writer:
        endpoint, publish = writer.endpoint, writer.publish_endpoint
        stream = LogStream(endpoint, publish, limits=QUICK)
        with FactClient.open(tmp_path, "a", endpoint) as client:
            for number in range(20):
                client.append([fact(number)])
            client.flush(30)
            follow(stream, client.head)
    with (
        EmbeddedWriter(tmp_path / "old", bind=endpoint, publish=publish, limits=QUICK),
        pytest.raises(LogBehindError, match="lost"),
    ):
        follow(stream, 10_000)
    stream.close()


def test_a_position_beyond_the_log_is_behind_and_one_no_longer_kept_is_refused(
    tmp_path: Path,
) -> None:
    build_log(tmp_path, 3)
    with EmbeddedWriter(tmp_path, limits=QUICK) as writer:
        with (
            LogStream(writer.endpoint, writer.publish_endpoint, from_seq=10_000) as stream,
            pytest.raises(LogBehindError),
        ):
            stream.poll(10)
        with (
            LogStream(writer.endpoint, writer.publish_endpoint, from_seq=-1) as stream,
            pytest.raises(BadInputError),
        ):
            stream.poll(10)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_the_cursor_never_skips_whatever_is_dropped_doubled_or_late(data: st.DataObject) -> None:
    frames = _FRAMES
    cursor = StreamCursor(0, CHAIN_START)
    taken = []
    for _ in range(data.draw(st.integers(0, 60))):
        frame = frames[data.draw(st.integers(0, len(frames) - 1))]
        if cursor.take(frame):
            taken.append(frame)
    cursor.hear(Head(1, frames[-1].next_seq, frames[-1].chain))
    assert cursor.behind == (cursor.next_seq < frames[-1].next_seq)
    for frame in frames:
        if frame.first_seq >= cursor.next_seq and cursor.take(frame):
            taken.append(frame)
    assert taken == frames
    assert not cursor.behind


def _frames() -> list[Frame]:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        build_log(Path(directory), 12)
        return list(read_log(directory))


_FRAMES = _frames()
