"""The gateway's socket to its workers, and which of them are heard.

Owns the ROUTER socket and one entry for each worker that has said hello to this epoch of the
router. A worker that is not known is asked who it is; one that cannot serve this gateway's model is
told so and stops. Decides nothing about requests.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import zmq
import zmq.asyncio
from zmq.auth.thread import ThreadAuthenticator

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.router import RouterStarted
from pagetrail.controlplane.cluster import wire
from pagetrail.controlplane.log.curve import secure_server
from pagetrail.controlplane.log.endpoints import ServerKeys, check_endpoint

SEND_QUEUE_MAX = 65_536  # messages queued for one worker; beyond it they are lost, as on a bad line


@dataclass(slots=True)
class Peer:
    """A worker epoch that is heard."""

    identity: bytes
    hello: wire.Hello
    heard_s: float
    beat: wire.Beat | None = None  # the newest


class Peers:
    """See the module. Belongs to one event loop."""

    def __init__(
        self,
        endpoint: str,
        start: RouterStarted,
        heartbeat_ms: int,
        keys: ServerKeys | None,
    ) -> None:
        """Raises BadInputError when the endpoint cannot be bound, or may not be without keys."""
        check_endpoint(endpoint, keys=keys is not None)
        self._start = start
        self._heartbeat_ms = heartbeat_ms
        self._peers: dict[str, Peer] = {}
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a worker that connects anew is itself
        self._socket.setsockopt(zmq.SNDHWM, SEND_QUEUE_MAX)
        self._authenticator: ThreadAuthenticator | None = None
        try:
            if keys is not None:
                shared: zmq.Context[zmq.Socket[bytes]]
                shared = zmq.Context.shadow(self._context.underlying)
                socket: zmq.Socket[bytes] = zmq.Socket.shadow(self._socket.underlying)
                self._authenticator = secure_server(shared, [socket], keys)
            self._socket.bind(endpoint)
        except zmq.ZMQError as error:
            self.close()
            raise BadInputError(
                f"cannot listen for workers on {endpoint}: {error}; choose a free port with "
                "gateway.cluster (port 0 takes any)"
            ) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    def close(self) -> None:
        """Close the socket; workers see it go."""
        self._socket.close(0)
        if self._authenticator is not None:
            self._authenticator.stop()
        self._context.term()

    def all(self) -> list[Peer]:
        """Workers that are heard, by name."""
        return [self._peers[worker] for worker in sorted(self._peers)]

    def epoch_of(self, worker: str) -> int:
        """The worker's epoch that is heard; 0 when none is."""
        peer = self._peers.get(worker)
        return peer.hello.worker_epoch if peer is not None else 0

    async def receive(self) -> tuple[bytes, wire.Message]:
        """The next message of ours, with its sender. What cannot be read is passed over: nothing
        can be answered to it, and whoever sent it will be found silent."""
        while True:
            identity, *parts = await self._socket.recv_multipart()
            try:
                message = wire.decode(parts)
            except BadInputError:
                continue
            if message is not None:
                return identity, message

    async def send(self, worker: str, message: wire.Message) -> bool:
        """Send to a worker; False when it is not heard any more."""
        peer = self._peers.get(worker)
        if peer is None:
            return False
        await self._send(peer.identity, message)
        return True

    async def greeted(self, identity: bytes, hello: wire.Hello) -> bool:
        """A worker says hello. False: it is not served (too old an epoch, or another model)."""
        if hello.worker_epoch < self.epoch_of(hello.worker):
            return False
        reason = self._unfit(hello)
        if reason:
            await self._send(identity, wire.Rejected(reason))
            return False
        self._peers[hello.worker] = Peer(identity, hello, time.monotonic())
        await self._send(
            identity,
            wire.Welcome(self._start.router, self._start.router_epoch, self._heartbeat_ms),
        )
        return True

    async def alive(self, identity: bytes, worker: str, worker_epoch: int) -> Peer | None:
        """A sign of life. None, and a question who that is, when it is from nobody known."""
        peer = self._peers.get(worker)
        if peer is None or peer.hello.worker_epoch != worker_epoch:
            await self.ask(identity, worker_epoch)
            return None
        peer.heard_s = time.monotonic()
        return peer

    async def ask(self, identity: bytes, worker_epoch: int) -> None:
        """Ask a worker who it is and for everything that it keeps."""
        await self._send(identity, wire.Resync(worker_epoch))

    def silent(self, silence_s: float) -> list[str]:
        """Workers that were last heard longer ago than that."""
        now_s = time.monotonic()
        return [peer.hello.worker for peer in self.all() if now_s - peer.heard_s > silence_s]

    def remove(self, worker: str) -> None:
        """Forget a worker."""
        del self._peers[worker]

    def _unfit(self, hello: wire.Hello) -> str:
        start = self._start
        ours = (start.fingerprint, start.page_tokens, start.chunk_tokens)
        if (hello.fingerprint, hello.page_tokens, hello.chunk_tokens) == ours:
            return ""
        return (
            f"worker {hello.worker} has model state {hello.fingerprint.hex()[:16]} in pages of "
            f"{hello.page_tokens} and chunks of {hello.chunk_tokens} tokens, the gateway "
            f"{start.fingerprint.hex()[:16]} in {start.page_tokens} and {start.chunk_tokens}; "
            "start both with the same model, worker.page_tokens and worker.chunk_tokens"
        )

    async def _send(self, identity: bytes, message: wire.Message) -> None:
        await self._socket.send_multipart([identity, *wire.encode(message)])
