"""Serving what the log already holds: ranges of frames, and the files of sealed segments.

A thread beside the writer's, with a ROUTER socket of its own, so that a reader who is far behind
costs the writer no more than the copying of bytes: nothing is decoded here, and a position in a
sealed segment is answered with the segment's name, whose files the reader then asks for. A reader
that does not take its answers has at most ``ANSWERS_MAX`` of them waiting; further ones are
dropped, and it asks again.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import zmq

from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.controlplane.log import wire
from pagetrail.controlplane.log.archive import ActiveSegment, Archive, SealedRange
from pagetrail.controlplane.log.frames import LogPosition
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.manifests import MANIFEST_NAME, read_manifest
from pagetrail.controlplane.log.wire import Refusal

ANSWERS_MAX = 4
"""Answers, of at most ``fetch_bytes`` or one frame each, that wait for one reader."""

REQUESTS_MAX = 1_024
"""Requests of one reader that wait to be served."""

_REQUEST_BYTES_MAX = 4_096
_SEALED_NAME = re.compile(r"sealed-\d{20}")

Standing = Callable[[], tuple[int, LogPosition, ActiveSegment]]
"""Writer epoch, durable head and active segment, as they are now."""


def bulk_endpoint(bind: str) -> str:
    """Where to listen beside the endpoint for appends: another port or path, the same host."""
    if bind.startswith("ipc://"):
        return f"{bind}.bulk"
    return f"{bind.rpartition(':')[0]}:0"


def reachable(announced: str, endpoint: str) -> str:
    """The address of a bulk socket for a reader that reaches its writer at ``endpoint``.

    The writer may listen on all interfaces and not know under which name it is reached.
    """
    if not announced.startswith("tcp://"):
        return announced
    return f"{endpoint.rpartition(':')[0]}:{announced.rpartition(':')[2]}"


class BulkServer:
    """See the module. The socket is bound already; ``close`` ends the thread and closes it."""

    def __init__(
        self, socket: zmq.Socket[bytes], log: Path, limits: LogLimits, standing: Standing
    ) -> None:
        self._socket = socket
        self._log = log
        self._archive = Archive(log)
        self._limits = limits
        self._standing = standing
        self._wake_reader, self._wake_writer = os.pipe()
        self._thread = threading.Thread(target=self._run, name="fact-bulk", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether readers are served."""
        return self._thread.is_alive()

    def close(self) -> None:
        os.write(self._wake_writer, b"x")
        self._thread.join()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._wake_reader, zmq.POLLIN)
        try:
            while True:
                ready = dict(poller.poll())
                if self._wake_reader in ready:
                    return
                self._answer(self._socket.recv_multipart())
        finally:
            self._socket.close(0)

    def _answer(self, parts: list[bytes]) -> None:
        identity, verb, header = (*parts, b"", b"")[:3]
        try:
            self._send(identity, *self._serve(verb, header))
        except (PagetrailError, OSError) as error:
            wrong = isinstance(error, wire.MalformedError)
            reason = Refusal.BAD_INPUT if wrong else Refusal.BAD_RANGE
            refused = wire.Refused(wire.request_of(header), reason, 0, str(error))
            self._send(identity, wire.REFUSED, wire.encode(refused))

    def _serve(self, verb: bytes, header: bytes) -> list[bytes]:
        if verb == wire.FETCH:
            return self._fetch(wire.decode(header, wire.Fetch))
        if verb == wire.GET_FILE:
            return self._file(wire.decode(header, wire.GetFile))
        raise wire.MalformedError(f"verb {verb!r} is not served on the bulk socket")

    def _fetch(self, fetch: wire.Fetch) -> list[bytes]:
        max_bytes = max(min(fetch.max_bytes, self._limits.fetch_bytes), 1)
        writer_epoch, position, active = self._standing()
        found = self._archive.raw_frames(fetch.from_seq, max_bytes, position.next_seq, active)
        head = wire.Head(writer_epoch, position.next_seq, position.chain)
        if isinstance(found, SealedRange):
            sealed = wire.Sealed(fetch.request, head, found.directory.name)
            return [wire.SEALED, wire.encode(sealed)]
        return [wire.FRAMES, wire.encode(wire.Frames(fetch.request, head)), found]

    def _file(self, ask: wire.GetFile) -> list[bytes]:
        """Part of a file of a sealed segment: its manifest, or one that the manifest names."""
        directory = self._log / ask.directory
        if not _SEALED_NAME.fullmatch(ask.directory) or not directory.is_dir():
            raise BadInputError(f"{ask.directory!r} is no sealed segment that is kept here")
        if ask.name != MANIFEST_NAME and ask.name not in {
            entry.name for entry in read_manifest(directory).files
        }:
            raise BadInputError(f"{ask.name!r} is no file of {ask.directory}")
        descriptor = os.open(directory / ask.name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size_bytes = os.fstat(descriptor).st_size
            max_bytes = max(min(ask.max_bytes, self._limits.fetch_bytes), 1)
            data = os.pread(descriptor, max_bytes, max(ask.offset_bytes, 0))
        finally:
            os.close(descriptor)
        part = wire.FilePart(ask.request, ask.offset_bytes, size_bytes)
        return [wire.FILE_PART, wire.encode(part), data]

    def _send(self, identity: bytes, *parts: bytes) -> None:
        try:
            self._socket.send_multipart([identity, *parts], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # The reader is gone, or takes no answers: it asks again when it is back.
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise


def bulk_socket(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """The socket for a ``BulkServer``, with its bounds, not yet bound."""
    socket = context.socket(zmq.ROUTER)
    socket.set(zmq.ROUTER_MANDATORY, 1)
    socket.set(zmq.MAXMSGSIZE, _REQUEST_BYTES_MAX)
    socket.set(zmq.LINGER, 0)
    socket.set(zmq.SNDHWM, ANSWERS_MAX)
    socket.set(zmq.RCVHWM, REQUESTS_MAX)
    return socket
