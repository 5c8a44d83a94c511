"""Following the log live: contiguous frames from any position, with nothing dropped.

The publisher alone is never trusted: it drops frames for a slow subscriber without telling either
side. Every live message, heartbeats included, carries the writer's head; whenever the stream stands
behind it, the missing range is fetched. What is sealed already comes as files, one segment at a
time, whose frames are rebuilt on this side. ``StreamCursor`` (cursor.py) decides what may be taken,
``HistoryReader`` (history.py) fetches; ``LogStream`` owns the live socket.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType

import zmq

from pagetrail.catalog.errors import CorruptionError
from pagetrail.controlplane.log import wire
from pagetrail.controlplane.log.cursor import StreamCursor
from pagetrail.controlplane.log.curve import secure_client
from pagetrail.controlplane.log.endpoints import ClientKeys, check_endpoint
from pagetrail.controlplane.log.frames import Frame, decode_frame
from pagetrail.controlplane.log.history import HistoryReader
from pagetrail.controlplane.log.limits import LogLimits, check_limits


class LogStream:
    """Frames of a served log from ``from_seq`` on; the first holds ``from_seq``.

    ``chain`` is the chain value at ``from_seq`` when the reader knows it; the stream then proves
    that it continues what the reader has. Belongs to one thread.
    """

    def __init__(
        self,
        endpoint: str,
        publish_endpoint: str,
        *,
        from_seq: int = 0,
        chain: bytes | None = None,
        limits: LogLimits | None = None,
        keys: ClientKeys | None = None,
    ) -> None:
        for address in (endpoint, publish_endpoint):
            check_endpoint(address, keys=keys is not None)
        self._limits = check_limits(limits or LogLimits())
        self._cursor = StreamCursor(from_seq, chain)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._doubtful = False
        self._live = self._context.socket(zmq.SUB)
        self._live.set(zmq.RCVHWM, self._limits.live_frames)
        self._live.set(zmq.SUBSCRIBE, b"")
        if keys is not None:
            secure_client(self._live, keys)
        self._live.connect(publish_endpoint)
        self._history = HistoryReader(self._context, endpoint, self._limits, keys)
        self._history.ask(from_seq)

    @property
    def next_seq(self) -> int:
        """The ``seq`` after the last frame returned."""
        return self._cursor.next_seq

    @property
    def head(self) -> int:
        """The log's next ``seq``, as far as heard."""
        return self._cursor.head

    def poll(self, timeout_s: float) -> list[Frame]:
        """Frames that follow the last one returned; empty when none came within the time.

        ``LogBehindError`` when the served log lost or replaced what this reader holds;
        ``BadInputError`` when the position is not kept any more.
        """
        deadline_ns = time.monotonic_ns() + int(timeout_s * 1e9)
        while True:
            frames = self._take_history() + self._take_live()
            if frames:
                return frames
            now_ns = time.monotonic_ns()
            behind = self._cursor.behind and not self._history.busy
            if behind or (self._history.silent(now_ns) and (self._history.busy or self._doubtful)):
                self._doubtful = False
                self._history.ask(self._cursor.next_seq)
            left_ns = deadline_ns - now_ns
            if left_ns <= 0:
                return []
            self._wait(min(left_ns, self._limits.retry_ns))

    def __iter__(self) -> Iterator[Frame]:
        """Frames for ever; waits while there are none."""
        while True:
            yield from self.poll(self._limits.retry_ns / 1e9)

    def close(self) -> None:
        self._live.close(0)
        self._history.close()
        self._context.term()

    def __enter__(self) -> LogStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _wait(self, timeout_ns: int) -> None:
        poller = zmq.Poller()
        poller.register(self._live, zmq.POLLIN)
        for socket in self._history.sockets():
            poller.register(socket, zmq.POLLIN)
        poller.poll(max(timeout_ns // 1_000_000, 1))

    def _take_history(self) -> list[Frame]:
        answer = self._history.receive()
        if answer is None:
            return []
        if answer.head is not None:
            self._cursor.hear(answer.head)
        return [frame for frame in answer.frames if self._cursor.take(frame)]

    def _take_live(self) -> list[Frame]:
        frames = []
        for _ in range(self._limits.live_frames):
            try:
                parts = self._live.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            if len(parts) < 2 or parts[0] not in (wire.TOPIC_FRAME, wire.TOPIC_HEAD):
                raise CorruptionError(f"a live message starts with {parts[:1]!r}")
            frame = decode_frame(parts[2]) if parts[0] == wire.TOPIC_FRAME else None
            if frame is not None and self._cursor.take(frame):
                frames.append(frame)
            self._hear_live(wire.decode(parts[1], wire.Head))
        return frames

    def _hear_live(self, head: wire.Head) -> None:
        """A live message may be older than what was fetched: a low head is only a reason to ask."""
        if head.head >= self._cursor.next_seq:
            self._cursor.hear(head)
        else:
            self._doubtful = True
