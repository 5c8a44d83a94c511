"""The thread behind a client: ships the spool in order, takes acknowledgements, syncs the spool.

Theory of operation. One *lane* at a time: first the epochs that earlier processes left in the
spool, oldest first, then the client's own. A lane begins with a hello, whose answer says which
transaction the log wants next; from there batches are read back from the spool and sent, at most a
window ahead of the acknowledgements. While something is in flight a small batch waits for company.
On busy, on a gap, or after silence, sending starts again from the first unacknowledged
transaction; the writer recognises what it has. Every message carries the number of that start, so
answers to an earlier one are told apart.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from typing import Protocol

import zmq

from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.controlplane.log import wire
from pagetrail.controlplane.log.curve import secure_client
from pagetrail.controlplane.log.endpoints import ClientKeys
from pagetrail.controlplane.log.errors import (
    ClientRefusedError,
    ClientStoppedError,
    LogBehindError,
)
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.spool import Spool, SpoolReader
from pagetrail.controlplane.log.wire import Refusal

_BUSY_PAUSE_NS = 20_000_000
_RECONNECT_MS = 3_600_000
"""Later than any hello: reconnecting is the shipper's. (Off, -1, can hang after a failed CURVE.)"""
_RECEIVE_MESSAGES = 1_024
"""Answers taken in one turn before shipping goes on."""


class Listener(Protocol):
    """What the shipper tells its client, from its own thread."""

    def acknowledged(
        self,
        client_epoch: int,
        next_client_seq: int,
        spans: tuple[wire.AnswerSpan, ...],
        head: int,
        chain: bytes,
    ) -> None:
        """Everything of ``client_epoch`` before ``next_client_seq`` is in the log."""

    def welcomed(self, log_id: bytes) -> None:
        """The spool is for this log from now on."""

    def resolved(self, spans: tuple[wire.AnswerSpan, ...]) -> None:
        """Where older transactions of the own epoch lie."""

    def stopped(self, error: PagetrailError) -> None:
        """The shipper ended on this error."""

    def questions(self) -> list[int]:
        """``client_seq`` of own transactions whose place someone waits for."""


class Shipper:
    """See the module. ``start`` once; ``stop`` ends it after a last sync of the spool."""

    def __init__(
        self,
        client: str,
        endpoint: str,
        spool: Spool,
        listener: Listener,
        limits: LogLimits,
        keys: ClientKeys | None,
    ) -> None:
        self._client = client
        self._endpoint = endpoint
        self._spool = spool
        self._listener = listener
        self._limits = limits
        self._keys = keys
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket: zmq.Socket[bytes] | None = None
        self._wake_reader, self._wake_writer = os.pipe()
        os.set_blocking(self._wake_reader, False)
        self._stopping = False
        self._lanes = deque(spool.epochs())
        self._lane_end = spool.end_of(self._lanes[0])
        self._reader: SpoolReader | None = None
        self._request = 0
        self._welcomed = False
        self._acknowledged = spool.start_of(self._lanes[0])
        self._flight: deque[tuple[int, int]] = deque()
        self._flight_bytes = 0
        self._heard_ns = 0
        self._pause_until_ns = 0
        self._unsynced_since_ns = 0
        self._asked: set[int] = set()
        self.waits_for_appends = False
        """Set while an append must call ``wake`` to be shipped at once."""
        self._thread = threading.Thread(target=self._run, name=f"ship-{client}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        """Make the thread look again; from any thread."""
        self.waits_for_appends = False
        os.write(self._wake_writer, b"x")

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stopping = True
        self.wake()
        self._thread.join()
        os.close(self._wake_reader)
        os.close(self._wake_writer)

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._turn()
            self._spool.sync()
        except OSError as error:
            self._listener.stopped(ClientStoppedError(f"the spool failed: {error}"))
        except PagetrailError as error:
            self._listener.stopped(error)
        except BaseException as error:
            self._listener.stopped(ClientStoppedError(f"the shipper failed: {error!r}"))
            raise
        finally:
            if self._reader is not None:
                self._reader.close()
            if self._socket is not None:
                self._socket.close(0)
            self._context.term()

    def _turn(self) -> None:
        now_ns = time.monotonic_ns()
        busy = self._flight or not self._welcomed
        patience_ns = self._limits.retry_ns if busy else self._limits.hello_ns
        if now_ns - self._heard_ns >= patience_ns:
            self._hello(now_ns)
        elif self._welcomed:
            self._ask()
            if now_ns >= self._pause_until_ns:
                self._ship(now_ns)
        self._sync_if_due(now_ns)
        self._wait(now_ns)
        self._receive()

    def _wait(self, now_ns: int) -> None:
        """Sleep until an answer, a wake or the next thing that is due."""
        due_ns = [now_ns + min(self._limits.retry_ns, self._limits.hello_ns)]
        if self._unsynced_since_ns:
            due_ns.append(self._unsynced_since_ns + self._limits.spool_sync_after_ns)
        if now_ns < self._pause_until_ns:
            due_ns.append(self._pause_until_ns)
        timeout_ms = max((min(due_ns) - now_ns + 999_999) // 1_000_000, 0)
        poller = zmq.Poller()
        poller.register(self._wake_reader, zmq.POLLIN)
        if self._socket is not None:
            poller.register(self._socket, zmq.POLLIN)
        idle = self._welcomed and not self._flight and now_ns >= self._pause_until_ns
        # An append wakes an idle shipper, to be sent, and one without a running clock for the
        # sync, to start it.
        self.waits_for_appends = idle or not self._unsynced_since_ns
        if (idle and self._more_to_ship()) or (not self._unsynced_since_ns and self._to_sync()):
            self.waits_for_appends = False
            return
        ready = dict(poller.poll(timeout_ms))
        self.waits_for_appends = False
        if self._wake_reader in ready:
            os.read(self._wake_reader, 4_096)

    def _more_to_ship(self) -> bool:
        return self._reader is not None and (
            self._reader.next_client_seq < self._spool.end_of(self._lanes[0])
        )

    def _hello(self, now_ns: int) -> None:
        """Connect afresh, so that nothing queued for the old connection is delivered late.

        The socket never reconnects by itself: every connection begins with a hello, so a writer
        that is behind is found out before it is given anything.
        """
        if self._socket is not None:
            self._socket.close(0)
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.set_hwm(0)
        self._socket.set(zmq.RECONNECT_IVL, _RECONNECT_MS)
        if self._keys is not None:
            secure_client(self._socket, self._keys)
        self._socket.connect(self._endpoint)
        self._welcomed = False
        self._asked.clear()
        self._request += 1
        self._heard_ns = now_ns
        state = self._spool.state
        hello = wire.Hello(
            self._request,
            wire.PROTOCOL_VERSION,
            self._client,
            self._lanes[0],
            state.head,
            state.chain,
            state.log_id,
        )
        self._send(wire.HELLO, wire.encode(hello))

    def _send(self, *parts: bytes) -> bool:
        """Hand a message to the connection; False when it is gone, and a hello is due."""
        try:
            if self._socket is not None:
                self._socket.send_multipart(parts, zmq.NOBLOCK)
        except zmq.Again:
            self._welcomed = False
        return self._welcomed

    def _rewind(self) -> None:
        """Send again from the first unacknowledged transaction."""
        if self._reader is not None:
            self._reader.close()
        self._reader = self._spool.reader(self._lanes[0], self._acknowledged)
        self._flight.clear()
        self._flight_bytes = 0
        self._request += 1

    def _ship(self, now_ns: int) -> None:
        limits = self._limits
        while self._reader is not None:
            in_flight = self._reader.next_client_seq - self._acknowledged
            waiting = self._spool.end_of(self._lanes[0]) - self._reader.next_client_seq
            room = limits.window_transactions - in_flight
            if waiting <= 0 or room <= 0 or self._flight_bytes >= limits.window_bytes:
                break
            if self._flight and not self._worth_a_message():
                break
            batch = self._reader.read(limits.message_bytes, room)
            if batch is None:
                break
            header = wire.Append(self._request, self._client, self._lanes[0])
            if not self._flight:
                self._heard_ns = now_ns
            if not self._send(wire.APPEND, wire.encode(header), batch.payload):
                break
            self._flight.append((batch.next_client_seq, len(batch.payload)))
            self._flight_bytes += len(batch.payload)

    def _worth_a_message(self) -> bool:
        """Whether a full message waits; less than that waits for an answer to what is sent."""
        return self._reader is not None and self._reader.waiting_bytes() >= (
            self._limits.message_bytes
        )

    def _ask(self) -> None:
        if self._lanes[0] != self._spool.client_epoch:
            return
        for client_seq in self._listener.questions():
            if client_seq not in self._asked:
                self._asked.add(client_seq)
                ask = wire.Resolve(self._request, self._client, self._lanes[0], client_seq, 1)
                self._send(wire.RESOLVE, wire.encode(ask))

    def _receive(self) -> None:
        for _ in range(_RECEIVE_MESSAGES):
            if self._socket is None:
                return
            try:
                parts = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._heard_ns = time.monotonic_ns()
            verb, header = (*parts, b"", b"")[:2]
            if verb == wire.ACKNOWLEDGED:
                self._on_acknowledged(wire.decode(header, wire.Acknowledged))
            elif verb == wire.WELCOME:
                self._on_welcome(wire.decode(header, wire.Welcome))
            elif verb == wire.RESOLVED:
                self._listener.resolved(wire.decode(header, wire.Resolved).spans)
            elif verb == wire.REFUSED:
                self._on_refused(wire.decode(header, wire.Refused))
            else:
                raise BadInputError(
                    f"{self._endpoint} answered with the unknown verb {verb!r}; is it a writer "
                    "of this version?"
                )

    def _on_welcome(self, welcome: wire.Welcome) -> None:
        if welcome.request != self._request:
            return
        epoch = self._lanes[0]
        wanted = welcome.next_client_seq
        if wanted < self._acknowledged or (
            wanted < self._spool.start_of(epoch) and self._spool.start_of(epoch) < self._end()
        ):
            raise LogBehindError(
                f"the log at {self._endpoint} wants transaction {wanted} of client {self._client} "
                f"epoch {epoch}, which it had acknowledged: facts were lost. Restore the log"
            )
        if welcome.newest_client_epoch > self._spool.client_epoch:
            raise ClientRefusedError(
                f"the log knows epoch {welcome.newest_client_epoch} of client {self._client}, "
                f"this one is {self._spool.client_epoch}: another process or another spool uses "
                "the name; give this client a name of its own"
            )
        if epoch == self._spool.client_epoch and wanted > self._end():
            raise ClientRefusedError(
                f"the log holds {wanted} transactions of client {self._client} epoch {epoch}, "
                f"this process appended {self._end()}: another process uses the same name"
            )
        known = self._spool.state.log_id
        if known and known != welcome.log_id:
            raise ClientRefusedError(
                f"client {self._client} belongs to log {known.hex()[:12]}, {self._endpoint} serves "
                f"log {welcome.log_id.hex()[:12]}; start it with its own run's endpoint"
            )
        if not known:
            self._listener.welcomed(welcome.log_id)
        self._welcomed = True
        self._advance(wanted, (), welcome.head, welcome.chain)
        if self._welcomed:
            self._rewind()

    def _on_acknowledged(self, answer: wire.Acknowledged) -> None:
        if answer.client_epoch != self._lanes[0] or not answer.spans:
            return
        last = answer.spans[-1]
        self._advance(last.first_client_seq + last.count, answer.spans, answer.head, answer.chain)

    def _advance(
        self, next_client_seq: int, spans: tuple[wire.AnswerSpan, ...], head: int, chain: bytes
    ) -> None:
        """Everything before ``next_client_seq`` is acknowledged; a lane's end starts the next."""
        epoch = self._lanes[0]
        self._acknowledged = max(self._acknowledged, next_client_seq)
        while self._flight and self._flight[0][0] <= self._acknowledged:
            self._flight_bytes -= self._flight.popleft()[1]
        self._listener.acknowledged(epoch, self._acknowledged, spans, head, chain)
        if not self._more_to_acknowledge():
            self._unsynced_since_ns = 0
        if epoch != self._spool.client_epoch and self._acknowledged >= self._lane_end:
            self._lanes.popleft()
            self._lane_end = self._spool.end_of(self._lanes[0])
            self._acknowledged = self._spool.start_of(self._lanes[0])
            self._flight.clear()
            self._flight_bytes = 0
            if self._reader is not None:
                self._reader.close()
                self._reader = None
            self._hello(time.monotonic_ns())

    def _end(self) -> int:
        """The ``client_seq`` after the last one of this lane."""
        if self._lanes[0] == self._spool.client_epoch:
            return self._spool.next_client_seq
        return self._lane_end

    def _more_to_acknowledge(self) -> bool:
        return len(self._lanes) > 1 or self._acknowledged < self._end()

    def _on_refused(self, refused: wire.Refused) -> None:
        if refused.request != self._request:
            return
        if refused.reason is Refusal.BEHIND:
            raise LogBehindError(refused.message)
        if refused.reason is Refusal.GAP and refused.expected < self._acknowledged:
            raise LogBehindError(
                f"{refused.message}; but {self._acknowledged} was acknowledged before: the log "
                "lost facts. Restore it"
            )
        if refused.reason in (Refusal.BUSY, Refusal.GAP):
            self._pause_until_ns = time.monotonic_ns() + _BUSY_PAUSE_NS
            self._asked.clear()  # it may be a question that was refused
            self._rewind()
            return
        raise ClientRefusedError(
            f"{self._endpoint} refused client {self._client}: {refused.message}"
        )

    def _to_sync(self) -> bool:
        return self._more_to_acknowledge() and self._spool.unsynced()

    def _sync_if_due(self, now_ns: int) -> None:
        """Sync what has stayed unacknowledged for long; an acknowledgement makes it needless."""
        if not self._unsynced_since_ns:
            if self._to_sync():
                self._unsynced_since_ns = now_ns
        elif now_ns - self._unsynced_since_ns >= self._limits.spool_sync_after_ns:
            self._spool.sync()
            self._unsynced_since_ns = 0
