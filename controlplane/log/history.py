"""Fetching what the log holds already from its writer, one question at a time.

Owns the sockets of a reader that asks: one to the endpoint it was given, where it learns of the
bulk socket, and one to that. Frames come as ranges, or, where the log is sealed, as the files of a
segment, which are copied into a directory of their own and turned into frames here. With one
question open at a time, a reader is never sent more than it has asked for.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec
import zmq

from pagetrail.catalog.errors import BadInputError
from pagetrail.controlplane.log import wire
from pagetrail.controlplane.log.bulk import reachable
from pagetrail.controlplane.log.curve import secure_client
from pagetrail.controlplane.log.download import SealedDownload
from pagetrail.controlplane.log.endpoints import ClientKeys
from pagetrail.controlplane.log.frames import Frame, decode_frame, frame_span
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.stretches import frames_of_sealed


@dataclass(frozen=True, slots=True)
class History:
    """An answer: frames in order (perhaps from before the position), and the writer's head."""

    head: wire.Head | None
    frames: Iterable[Frame]


class HistoryReader:
    """See the module. ``into`` is where copies of sealed segments are kept; None: for as long as
    their frames are read. Belongs to one thread."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        limits: LogLimits,
        keys: ClientKeys | None,
        into: Path | None = None,
    ) -> None:
        self._context = context
        self._endpoint = endpoint
        self._limits = limits
        self._keys = keys
        self._into = into
        self._asker: zmq.Socket[bytes] | None = None
        self._bulk: zmq.Socket[bytes] | None = None
        self._request = 0
        self._asked_ns = -limits.retry_ns
        self._from_seq = 0
        self._download: SealedDownload | None = None
        self._scratch: tempfile.TemporaryDirectory[str] | None = None
        self.busy = False
        """Whether a question is open."""

    def sockets(self) -> list[zmq.Socket[bytes]]:
        """Those on which an answer may come."""
        return [socket for socket in (self._asker, self._bulk) if socket is not None]

    def silent(self, now_ns: int) -> bool:
        """Whether the last question was asked long ago."""
        return now_ns - self._asked_ns >= self._limits.retry_ns

    def ask(self, from_seq: int) -> None:
        """Ask for what follows; over fresh connections when the last question stayed open."""
        if self.busy:
            self._disconnect()
        self._from_seq = from_seq
        self._next_question()

    def receive(self) -> History | None:
        """An answer that has come, or None. What was copied of a segment is not told.

        ``BadInputError`` when the writer refused; ``CorruptionError`` for bytes that were altered.
        """
        for socket in self.sockets():
            try:
                parts = socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                continue
            verb, header, data = (*parts, b"", b"", b"")[:3]
            if wire.request_of(header) == self._request:
                self.busy = False
                return self._take(verb, header, data)
        return None

    def close(self) -> None:
        self._disconnect()
        self._drop_scratch()

    def _take(self, verb: bytes, header: bytes, data: bytes) -> History | None:
        if verb == wire.REFUSED:
            self._download = None
            raise BadInputError(wire.decode(header, wire.Refused).message)
        if verb == wire.MANIFEST:
            announced = wire.decode(header, wire.Manifest).bulk_endpoint
            self._bulk = self._connected(reachable(announced, self._endpoint))
        elif verb == wire.FRAMES:
            head = wire.decode(header, wire.Frames).head
            return History(head, list(split_frames(data)))
        elif verb == wire.SEALED:
            self._begin_download(wire.decode(header, wire.Sealed).directory)
        elif verb == wire.FILE_PART and self._download is not None:
            part = wire.decode(header, wire.FilePart)
            self._download.take(part.offset_bytes, part.size_bytes, data)
        else:
            raise BadInputError(f"{self._endpoint} answered with the verb {verb!r}")
        if self._download is not None and self._download.wanted() is None:
            return self._downloaded(self._download)
        self._next_question()
        return None

    def _next_question(self) -> None:
        self._request += 1
        self.busy = True
        self._asked_ns = time.monotonic_ns()
        limits = self._limits
        ask: msgspec.Struct
        if self._bulk is None:
            verb, ask = wire.SNAPSHOT, wire.Simple(self._request)
        elif self._download is not None and (wanted := self._download.wanted()) is not None:
            verb = wire.GET_FILE
            directory = self._download.directory.name
            ask = wire.GetFile(self._request, directory, *wanted, limits.fetch_bytes)
        else:
            verb, ask = wire.FETCH, wire.Fetch(self._request, self._from_seq, limits.fetch_bytes)
        socket = self._bulk
        if socket is None:
            if self._asker is None:
                self._asker = self._connected(self._endpoint)
            socket = self._asker
        socket.send_multipart([verb, wire.encode(ask)], zmq.NOBLOCK)

    def _begin_download(self, name: str) -> None:
        into = self._into
        if into is None:
            self._drop_scratch()
            self._scratch = tempfile.TemporaryDirectory(prefix="pagetrail-sealed-")
            into = Path(self._scratch.name)
        self._download = SealedDownload(into, name)

    def _downloaded(self, download: SealedDownload) -> History:
        self._download = None
        frames = [f for f in frames_of_sealed(download.directory) if f.next_seq > self._from_seq]
        self._drop_scratch()
        return History(None, frames)

    def _connected(self, endpoint: str) -> zmq.Socket[bytes]:
        socket = self._context.socket(zmq.DEALER)
        if self._keys is not None:
            secure_client(socket, self._keys)
        socket.connect(endpoint)
        return socket

    def _disconnect(self) -> None:
        for socket in self.sockets():
            socket.close(0)
        self._asker = self._bulk = None

    def _drop_scratch(self) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()
            self._scratch = None


def split_frames(data: bytes) -> Iterator[Frame]:
    """Frames that lie one after another, each checked. ``CorruptionError`` as ``decode_frame``."""
    at = 0
    while at < len(data):
        span = frame_span(data, at)
        size_bytes = len(data) - at if span is None else span.size_bytes
        yield decode_frame(data[at : at + size_bytes])
        at += size_bytes
