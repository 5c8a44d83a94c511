"""The writer's sockets: one loop that receives, commits, publishes and acknowledges.

Owns a ROUTER socket for requests and a PUB socket for the live stream, in one thread; ranges of the
log are served by ``bulk`` in another. Each turn
takes what is queued, commits it as one frame with one fdatasync, publishes the frame, and only
then acknowledges; there is no timer to wait for company. Requests that ask what the log holds are
answered after the commit, so they never speak of what is not durable yet.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import zmq
from zmq.auth.thread import ThreadAuthenticator

from pagetrail.catalog.errors import BadInputError
from pagetrail.controlplane.log import wire
from pagetrail.controlplane.log.archive import ActiveSegment
from pagetrail.controlplane.log.bulk import BulkServer, bulk_endpoint, bulk_socket
from pagetrail.controlplane.log.committer import Committer
from pagetrail.controlplane.log.curve import secure_server
from pagetrail.controlplane.log.endpoints import ServerKeys, check_endpoint
from pagetrail.controlplane.log.errors import LogBehindError, OtherLogError, WriterStoppedError
from pagetrail.controlplane.log.frames import Frame, LogPosition
from pagetrail.controlplane.log.limits import MESSAGE_BYTES_MAX, LogLimits
from pagetrail.controlplane.log.resolver import QUESTIONS_MAX, Question, Resolver
from pagetrail.controlplane.log.sealer import Sealer
from pagetrail.controlplane.log.sequencer import NotTaken
from pagetrail.controlplane.log.wire import Refusal

_QUEUE_MESSAGES = 16_384
"""Messages held in the process and in the socket, each; the byte bound usually comes first."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """An append whose transactions are in the frame being gathered."""

    identity: bytes
    request: int
    client: str
    client_epoch: int
    spans: tuple[wire.AnswerSpan, ...]
    missing: tuple[int, int] | None


class WriterLoop:
    """See the module. ``run`` returns when ``stop`` was asked for; raises what stopped it else."""

    def __init__(
        self,
        committer: Committer,
        first_frame: Frame,
        log: Path,
        log_id: bytes,
        *,
        bind: str,
        publish: str,
        bulk: str | None,
        limits: LogLimits,
        keys: ServerKeys | None = None,
    ) -> None:
        bulk = bulk or bulk_endpoint(bind)
        for endpoint in (bind, publish, bulk):
            check_endpoint(endpoint, keys=keys is not None)
        self._committer = committer
        self._log_id = log_id
        self._limits = limits
        self._queue: deque[list[bytes]] = deque()
        self._queued_bytes = 0
        self._context = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._publisher = self._context.socket(zmq.PUB)
        bulk_router = bulk_socket(self._context)
        self._bulk: BulkServer | None = None
        self._sealer: Sealer | None = None
        self._wake_reader, self._wake_writer = os.pipe()
        self._resolver = Resolver(log)
        self._authenticator: ThreadAuthenticator | None = None
        try:
            if keys is not None:
                self._authenticator = secure_server(
                    self._context, (self._router, self._publisher, bulk_router), keys
                )
            self._router.set(zmq.ROUTER_MANDATORY, 1)
            self._router.set(zmq.MAXMSGSIZE, MESSAGE_BYTES_MAX)
            self._router.set(zmq.LINGER, 1_000)
            self._router.set_hwm(_QUEUE_MESSAGES)
            self._publisher.set(zmq.SNDHWM, limits.live_frames)
            self._publisher.set(zmq.LINGER, 0)
            self._router.bind(bind)
            self._publisher.bind(publish)
            bulk_router.bind(bulk)
        except BaseException:
            bulk_router.close()
            self._close_sockets()
            raise
        self.endpoint = self._router.get_string(zmq.LAST_ENDPOINT)
        self.publish_endpoint = self._publisher.get_string(zmq.LAST_ENDPOINT)
        self.bulk_endpoint = bulk_router.get_string(zmq.LAST_ENDPOINT)
        self._bulk = BulkServer(bulk_router, log, limits, self._standing)
        keep = limits.unsealed_segments
        self._sealer = Sealer(log.parent, keep) if keep else None
        self._active_seq = committer.active.first_seq
        self._publish(first_frame)

    def stop(self) -> None:
        """End ``run`` from another thread or a signal handler. Only before ``run`` returned."""
        os.write(self._wake_writer, b"x")

    @property
    def writer_epoch(self) -> int:
        return self._committer.writer_epoch

    @property
    def head(self) -> int:
        """The next ``seq``."""
        return self._committer.head.next_seq

    def run(self, before_end: Callable[[], None]) -> None:
        """Serve until stopped. What was received before the stop is committed or unanswered.

        ``before_end`` is called once ``stop`` must no longer be called, before sockets close.
        """
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._wake_reader, zmq.POLLIN)
        poller.register(self._resolver.descriptor, zmq.POLLIN)
        heartbeat_ms = max(self._limits.heartbeat_ns // 1_000_000, 1)
        beat_at_ns = time.monotonic_ns()
        try:
            while True:
                ready = dict(poller.poll(0 if self._queue else heartbeat_ms))
                self._receive()
                pending, asks = self._gather()
                frame = self._committer.commit()
                if frame is not None:
                    self._publish(frame)
                    beat_at_ns = time.monotonic_ns()
                    self._note_segment()
                for item in pending:
                    self._acknowledge(item)
                for ask in asks:
                    self._answer(ask)
                for found in self._resolver.found():
                    self._send(found.identity, found.verb, found.header)
                if time.monotonic_ns() - beat_at_ns >= self._limits.heartbeat_ns:
                    self._publisher.send_multipart([wire.TOPIC_HEAD, wire.encode(self._head())])
                    beat_at_ns = time.monotonic_ns()
                    self._check_threads()
                if self._wake_reader in ready:
                    return
        finally:
            before_end()
            self._committer.close()
            self._close_sockets()

    def _receive(self) -> None:
        """Move what the socket holds into the bounded queue; answer busy beyond the bound."""
        for _ in range(_QUEUE_MESSAGES):
            try:
                parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            size_bytes = sum(map(len, parts))
            if self._queue and self._queued_bytes + size_bytes > self._limits.queue_bytes:
                self._answer_busy(parts)
                continue
            self._queue.append(parts)
            self._queued_bytes += size_bytes
            if len(self._queue) >= _QUEUE_MESSAGES:
                return

    def _gather(self) -> tuple[list[_Pending], list[list[bytes]]]:
        """Take queued appends until the frame is full, and the requests between them."""
        pending: list[_Pending] = []
        asks: list[list[bytes]] = []
        while self._queue and self._committer.gathered_bytes < self._limits.frame_bytes:
            parts = self._queue.popleft()
            self._queued_bytes -= sum(map(len, parts))
            if len(parts) == 4 and parts[1] == wire.APPEND:
                identity, _, header, payload = parts
                try:
                    self._append(identity, wire.decode(header, wire.Append), payload, pending)
                except BadInputError as error:
                    self._refuse(identity, header, Refusal.BAD_INPUT, 0, str(error))
            else:
                asks.append(parts)
        return pending, asks

    def _answer(self, parts: list[bytes]) -> None:
        identity, verb, header = (*parts, b"", b"")[:3]
        try:
            self._serve(identity, verb, header)
        except BadInputError as error:
            self._refuse(identity, header, Refusal.BAD_INPUT, 0, str(error))
        except OtherLogError as error:
            self._refuse(identity, header, Refusal.OTHER_LOG, 0, str(error))
        except LogBehindError as error:
            self._refuse(identity, header, Refusal.BEHIND, 0, str(error))
            raise

    def _append(
        self, identity: bytes, header: wire.Append, payload: bytes, pending: list[_Pending]
    ) -> None:
        taken = self._committer.admit(header.client, header.client_epoch, payload)
        if isinstance(taken, NotTaken):
            refused = wire.Refused(header.request, taken.reason, taken.expected, taken.message)
            self._send(identity, wire.REFUSED, wire.encode(refused))
            return
        pending.append(
            _Pending(
                identity,
                header.request,
                header.client,
                header.client_epoch,
                taken.spans,
                taken.missing,
            )
        )

    def _serve(self, identity: bytes, verb: bytes, header: bytes) -> None:
        committer = self._committer
        position = committer.head
        if verb == wire.HELLO:
            hello = wire.decode(header, wire.Hello)
            if hello.protocol_version != wire.PROTOCOL_VERSION:
                raise BadInputError(
                    f"protocol version {hello.protocol_version}; this writer speaks "
                    f"{wire.PROTOCOL_VERSION}"
                )
            self._check_same_log(hello)
            committer.check_witness(hello.acknowledged_head, hello.acknowledged_chain)
            next_client_seq, newest = committer.expected(hello.client, hello.client_epoch)
            welcome = wire.Welcome(
                hello.request,
                wire.PROTOCOL_VERSION,
                committer.writer_epoch,
                position.next_seq,
                position.chain,
                next_client_seq,
                newest,
                self.publish_endpoint,
                self._log_id,
            )
            self._send(identity, wire.WELCOME, wire.encode(welcome))
        elif verb == wire.RESOLVE:
            self._resolve(identity, wire.decode(header, wire.Resolve))
        elif verb == wire.SNAPSHOT:
            request = wire.decode(header, wire.Simple).request
            segments = tuple(committer.segments())
            manifest = wire.Manifest(
                request,
                self._log_id,
                self.bulk_endpoint,
                segments,
                position.next_seq,
                position.chain,
            )
            self._send(identity, wire.MANIFEST, wire.encode(manifest))
        elif verb == wire.STATUS:
            status = wire.StatusIs(
                wire.decode(header, wire.Simple).request,
                committer.writer_epoch,
                position.next_seq,
                position.chain,
                committer.clients,
                committer.registers,
                self._queued_bytes,
                committer.frames,
                self.publish_endpoint,
            )
            self._send(identity, wire.STATUS_IS, wire.encode(status))
        else:
            raise BadInputError(f"verb {verb!r} with this number of parts is unknown")

    def _resolve(self, identity: bytes, ask: wire.Resolve) -> None:
        spans, missing = self._committer.remembered(
            ask.client, ask.client_epoch, ask.first_client_seq, ask.count
        )
        if missing is None:
            resolved = wire.Resolved(ask.request, tuple(spans))
            self._send(identity, wire.RESOLVED, wire.encode(resolved))
            return
        question = Question(identity, ask, missing, tuple(spans), self._committer.head.next_seq)
        if not self._resolver.ask(question):
            message = f"{QUESTIONS_MAX} questions about old transactions wait already; ask later"
            self._refuse(identity, wire.encode(ask), Refusal.BUSY, 0, message)

    def _check_same_log(self, hello: wire.Hello) -> None:
        if hello.log_id not in (b"", self._log_id):
            raise OtherLogError(
                f"client {hello.client} belongs to log {hello.log_id.hex()[:12]}, this is log "
                f"{self._log_id.hex()[:12]}: its spool was filled for another run. Start it with "
                "its own run's directory and endpoint, or give it a new directory"
            )

    def _standing(self) -> tuple[int, LogPosition, ActiveSegment]:
        """What readers may be shown; called from the bulk thread."""
        committer = self._committer
        return committer.writer_epoch, committer.head, committer.active

    def _note_segment(self) -> None:
        """Tell the sealer when the last commit began a segment."""
        first_seq = self._committer.active.first_seq
        if first_seq != self._active_seq:
            self._active_seq = first_seq
            if self._sealer is not None:
                self._sealer.segment_closed()

    def _check_threads(self) -> None:
        if self._bulk is not None and not self._bulk.alive:
            raise WriterStoppedError("the thread that serves readers has ended; see its message")
        if not self._resolver.alive:
            raise WriterStoppedError("the thread that reads the log has ended; see its message")

    def _acknowledge(self, item: _Pending) -> None:
        spans = item.spans
        if item.missing is not None:
            older = self._committer.resolve(item.client, item.client_epoch, *item.missing)
            spans = (*older, *spans)
        head = self._committer.head
        acknowledged = wire.Acknowledged(
            item.request, item.client_epoch, spans, head.next_seq, head.chain
        )
        self._send(item.identity, wire.ACKNOWLEDGED, wire.encode(acknowledged))

    def _answer_busy(self, parts: list[bytes]) -> None:
        message = f"the writer's queue holds {self._queued_bytes} bytes; resend later"
        self._refuse(parts[0], (*parts, b"", b"")[2], Refusal.BUSY, 0, message)

    def _refuse(
        self, identity: bytes, header: bytes, reason: Refusal, expected: int, message: str
    ) -> None:
        refused = wire.Refused(wire.request_of(header), reason, expected, message)
        self._send(identity, wire.REFUSED, wire.encode(refused))

    def _send(self, identity: bytes, verb: bytes, header: bytes, *parts: bytes) -> None:
        try:
            self._router.send_multipart([identity, verb, header, *parts], zmq.NOBLOCK)
        except zmq.ZMQError as error:
            # The client is gone, or reads nothing: it asks again when it is back.
            if error.errno not in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                raise

    def _publish(self, frame: Frame) -> None:
        self._publisher.send_multipart([wire.TOPIC_FRAME, wire.encode(self._head()), frame.raw])

    def _head(self) -> wire.Head:
        head = self._committer.head
        return wire.Head(self._committer.writer_epoch, head.next_seq, head.chain)

    def _close_sockets(self) -> None:
        if self._sealer is not None:
            self._sealer.close()
        if self._bulk is not None:
            self._bulk.close()
        self._resolver.close()
        self._router.close()
        self._publisher.close()
        if self._authenticator is not None:
            self._authenticator.stop()
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        self._context.term()
