"""A worker's socket to the gateway, in a thread of its own.

Says hello first, and again whenever a gateway asks who this is. Says on its own that the process is
alive, because a step of the engine may take longer than a gateway's patience. While no gateway is
connected, signs of life and heartbeats are dropped (the next ones say more) and the words about
attempts wait, in order, up to ``LINK_QUEUE_MAX``.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import zmq

from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.controlplane.cluster import wire
from pagetrail.controlplane.log.curve import secure_client
from pagetrail.controlplane.log.endpoints import ClientKeys, check_endpoint

LINK_QUEUE_MAX = 1 << 18
POLL_MS = 50


class GatewayLink:
    """See the module. ``received`` is called from the link's thread and must only queue."""

    def __init__(
        self,
        endpoint: str,
        hello: wire.Hello,
        received: Callable[[wire.Message], None],
        keys: ClientKeys | None,
        heartbeat_ns: int,
    ) -> None:
        check_endpoint(endpoint, keys=keys is not None)
        self._hello = hello
        self._heartbeat_ns = heartbeat_ns
        self._received = received
        self.failure: Exception | None = None
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.setsockopt(zmq.IDENTITY, f"{hello.worker}/{hello.worker_epoch}".encode())
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.IMMEDIATE, 1)  # queue for a gateway that is there, or not
        if keys is not None:
            secure_client(self._socket, keys)
        self._socket.connect(endpoint)
        # Other threads hand over what is to be sent; a socket belongs to one thread.
        self._out: queue.Queue[wire.Message] = queue.Queue(LINK_QUEUE_MAX)
        self._blocked: wire.Message | None = None  # taken from ``_out``, not sent yet
        self._wake_in = self._context.socket(zmq.PAIR)
        self._wake_out = self._context.socket(zmq.PAIR)
        self._wake_in.bind("inproc://wake")
        self._wake_out.connect("inproc://wake")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gateway-link", daemon=True)

    def start(self) -> None:
        """Say hello and begin to carry messages."""
        self._thread.start()

    def send(self, message: wire.Message) -> None:
        """Queue a message; called by the engine thread only."""
        try:
            self._out.put_nowait(message)
        except queue.Full as error:
            raise PagetrailError(
                f"the gateway has not taken {LINK_QUEUE_MAX} messages; is it there? Restart it, "
                "then this worker"
            ) from error
        with suppress(zmq.Again):  # else enough wake-ups are waiting
            self._wake_out.send(b"", zmq.NOBLOCK)

    def close(self) -> None:
        """Send what is queued, when a gateway is there, and end."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for socket in (self._socket, self._wake_in, self._wake_out):
            socket.close(0)
        self._context.term()

    # ---- the thread

    def _run(self) -> None:
        try:
            poller = zmq.Poller()
            poller.register(self._socket, zmq.POLLIN)
            poller.register(self._wake_in, zmq.POLLIN)
            alive = wire.Alive(self._hello.worker, self._hello.worker_epoch)
            greeted = False
            beat_ns = 0
            while True:
                ready = dict(poller.poll(POLL_MS))
                greeted = greeted or self._try(self._hello)
                if greeted and time.monotonic_ns() - beat_ns >= self._heartbeat_ns:
                    beat_ns = time.monotonic_ns()
                    self._try(alive)
                if self._wake_in in ready:
                    self._wake_in.recv()
                flushed = self._flush()
                if self._socket in ready:
                    self._take()
                if self._stopping.is_set() and (self._out.empty() or not flushed):
                    return
        except Exception as error:  # whoever polls ``failure`` ends the process
            self.failure = error

    def _try(self, message: wire.Message) -> bool:
        """Send unless no gateway is connected."""
        try:
            self._socket.send_multipart(wire.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def _flush(self) -> bool:
        """Send what is queued; False when no gateway takes it."""
        while True:
            message, self._blocked = self._blocked, None
            if message is None:
                try:
                    message = self._out.get_nowait()
                except queue.Empty:
                    return True
            if not self._try(message) and not isinstance(message, wire.Beat):
                self._blocked = message
                return False

    def _take(self) -> None:
        message = wire.decode(self._socket.recv_multipart())
        match message:
            case None:
                return
            case wire.Rejected():
                raise BadInputError(message.message)
            case wire.Resync():
                self._try(self._hello)
        self._received(message)
