"""The router of a gateway process: requests in, tokens out, workers behind.

Owns the router machine, the sockets to the workers and every open request's event queue, all in
one asyncio thread. The HTTP side submits and reads events; it never sees a machine. What was
decided is spooled before an offer leaves.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import zmq
import zmq.asyncio

from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.catalog.index import LiveIndex
from pagetrail.catalog.kinds.router import Answer
from pagetrail.catalog.kinds.worker import FinishReason
from pagetrail.config import Config, log_limits, record_mode
from pagetrail.controlplane.cluster import wire
from pagetrail.controlplane.cluster.deciding import Decider
from pagetrail.controlplane.cluster.messages import (
    ArmOfferTimeout,
    CancelAttempt,
    Close,
    Ended,
    Incoming,
    Offer,
    RouterEffect,
    Verdict,
)
from pagetrail.controlplane.cluster.router import RouterMachine
from pagetrail.controlplane.cluster.router_view import RouterView
from pagetrail.controlplane.journal import Journal
from pagetrail.controlplane.log.endpoints import ClientKeys
from pagetrail.controlplane.log.errors import HeadroomError
from pagetrail.controlplane.log.frames import Frame
from pagetrail.engine.prompts import prompt_of
from pagetrail.engine.streams import Generation, encode_generation
from pagetrail.log_client import LogClient
from pagetrail.starting import router_started

from .resident import ResidentDigests

CLIENT = "gateway"
KEYFRAME_EVERY = 2_048
HEADROOM_BYTES = 16 * 1024
CATCH_UP_TIMEOUT_S = 120.0
EVENTS_MAX = 65_536
TICK_S = 0.05


class BusyError(PagetrailError):
    """No room for another request now; the client should try again later."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as the HTTP side understood it."""

    request: str
    tenant: str
    salt: bytes | None
    priority: int
    tokens: tuple[int, ...]
    generation: Generation
    samples: int


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Tokens of one sample, each exactly once and in order."""

    sample: int
    tokens: tuple[int, ...]
    logprobs: bytes
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """The last event of a request."""

    verdict: Verdict
    worker: str
    attempts: int
    cached_tokens: int
    resident_tokens: int


Event = NewTokens | RequestEnded


@dataclass(slots=True)
class Handle:
    """An open request of the HTTP side."""

    number: int
    submission: Submission
    received_ns: int
    events: asyncio.Queue[Event] = field(default_factory=lambda: asyncio.Queue(EVENTS_MAX))
    sent: list[list[int]] = field(default_factory=list)  # tokens by sample
    finished: set[int] = field(default_factory=set)
    worker: str = ""
    attempt: int = 0
    cached_tokens: int = 0
    resident_tokens: int = 0
    first_token_ns: int = 0

    async def stream(self) -> AsyncIterator[Event]:
        """Events until the request has ended."""
        while True:
            event = await self.events.get()
            yield event
            if isinstance(event, RequestEnded):
                return


@dataclass(slots=True)
class _Peer:
    identity: bytes
    hello: wire.Hello
    heard_s: float


class RouterService:
    """See the module."""

    def __init__(
        self,
        config: Config,
        fingerprint: bytes,
        chunk_bytes: int,
        writer: str,
        publish: str,
        *,
        keys: ClientKeys | None = None,
    ) -> None:
        """Opens the log and catches up; the caller's loop is used from ``start`` on."""
        self._config = config
        self._loop: asyncio.AbstractEventLoop | None = None
        self._index = LiveIndex()
        self._log = LogClient(
            Path(config.run.directory),
            CLIENT,
            writer,
            publish,
            self._apply,
            self._followed,
            limits=log_limits(config),
            keys=keys,
            catch_up_timeout_s=CATCH_UP_TIMEOUT_S,
        )
        start = router_started(
            config,
            epoch=self._log.epoch,
            fingerprint=fingerprint,
            chunk_bytes=chunk_bytes,
            previous=self._log.previous,
        )
        self._resident = ResidentDigests(start.page_tokens)
        self._decider = Decider(
            Journal(CLIENT, start.router_epoch),
            RouterView(start),
            start.evaluators,
            record_mode(config.record),
            KEYFRAME_EVERY,
        )
        self._decider.write([start])
        self._machine = RouterMachine(self._decider, start, self._index, self._resident)
        self._log.spool(self._decider.drain())
        self._peers: dict[str, _Peer] = {}
        self._handles: dict[int, Handle] = {}
        self._headroom: dict[int, object] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 0)
        try:
            self._socket.bind(config.gateway.cluster)
        except zmq.ZMQError as error:
            self._log.close()
            raise BadInputError(
                f"cannot listen for workers on {config.gateway.cluster}: {error}; choose a free "
                "port with gateway.cluster (port 0 takes any)"
            ) from error
        self.endpoint = self._socket.getsockopt_string(zmq.LAST_ENDPOINT)

    # ---- life

    async def start(self) -> None:
        """Begin to hear workers and the log."""
        self._loop = asyncio.get_running_loop()
        self._log.start()
        for loop in (self._receive(), self._tick()):
            self._watch(asyncio.create_task(loop))

    async def close(self) -> None:
        """Cancel what is open, write the last keyframe, close the log."""
        for task in list(self._tasks):
            task.cancel()
        for number in list(self._handles):
            await self._perform(self._machine.cancelled(number))
        self._decider.keyframe()
        self._spool()
        with contextlib.suppress(PagetrailError):
            await asyncio.to_thread(self._log.flush, 10.0)
        self._log.close()
        self._socket.close(0)
        self._context.term()

    def _watch(self, task: asyncio.Task[None]) -> None:
        """Keep a task; its failure is the service's, and stops it."""
        self._tasks.add(task)

        def done(ended: asyncio.Task[None]) -> None:
            self._tasks.discard(ended)
            if not ended.cancelled() and ended.exception() is not None:
                self.failure = ended.exception()
                self.failed.set()

        task.add_done_callback(done)

    @property
    def workers(self) -> list[wire.Hello]:
        """Workers that are heard."""
        return [peer.hello for peer in self._peers.values()]

    @property
    def open_requests(self) -> int:
        """Requests that have not ended."""
        return len(self._handles)

    # ---- the HTTP side

    async def submit(self, submission: Submission) -> Handle:
        """Route a request. Raises BusyError when there is no room for it now."""
        if len(self._handles) >= self._config.gateway.requests_max:
            raise BusyError(
                f"{len(self._handles)} requests are open, which is the limit; retry later"
            )
        if self._log.failure is not None:
            raise BusyError(f"the fact log cannot be followed: {self._log.failure}")
        try:
            release = self._log.reserve(HEADROOM_BYTES)
        except HeadroomError as error:
            raise BusyError(str(error)) from error
        number, effects = self._machine.received(
            self._incoming(submission, submission.tokens, 0), time.time_ns() // 1000
        )
        handle = Handle(number, submission, time.monotonic_ns())
        handle.sent = [[] for _ in range(submission.samples)]
        self._handles[number] = handle
        self._headroom[number] = release
        await self._perform(effects)
        return handle

    async def cancel(self, handle: Handle) -> None:
        """The client went away."""
        if handle.number in self._handles:
            await self._perform(self._machine.cancelled(handle.number))

    # ---- events

    async def _receive(self) -> None:
        while True:
            parts = await self._socket.recv_multipart()
            try:
                message = wire.decode(parts[1:])
            except BadInputError:
                continue  # not from a worker of ours; nothing can be answered
            if message is not None:
                await self._heard(parts[0], message)

    async def _heard(self, identity: bytes, message: wire.Message) -> None:
        match message:
            case wire.Hello():
                await self._greeted(identity, message)
            case wire.Beat():
                await self._beat(identity, message)
            case wire.Alive():
                peer = self._peers.get(message.worker)
                if peer is not None and peer.hello.worker_epoch == message.worker_epoch:
                    peer.heard_s = time.monotonic()
                else:
                    await self._send(identity, wire.Resync(message.worker_epoch))
            case wire.AnswerWire():
                await self._perform(
                    self._machine.answered(message.number, message.attempt, Answer(message.answer))
                )
            case wire.TokensWire():
                self._tokens(message)
            case wire.EndedWire():
                await self._attempt_ended(message)
            case _:
                pass  # what only a gateway says

    async def _greeted(self, identity: bytes, hello: wire.Hello) -> None:
        peer = self._peers.get(hello.worker)
        if peer is not None and peer.hello.worker_epoch > hello.worker_epoch:
            return  # an earlier epoch's late word
        if peer is not None and peer.hello.worker_epoch < hello.worker_epoch:
            await self._gone(hello.worker)
        self._peers[hello.worker] = _Peer(identity, hello, time.monotonic())
        await self._send(identity, wire.Welcome(CLIENT, self._config.gateway.heartbeat_ms))

    async def _beat(self, identity: bytes, beat: wire.Beat) -> None:
        peer = self._peers.get(beat.seen.worker)
        if peer is None or peer.hello.worker_epoch != beat.seen.worker_epoch:
            await self._send(identity, wire.Resync(beat.seen.worker_epoch))
            return
        peer.heard_s = time.monotonic()
        if not self._resident.beat(beat):
            await self._send(identity, wire.Resync(beat.seen.worker_epoch))
        if self._machine.heartbeat(beat.seen):
            await self._perform(self._machine.retry_waiting())

    def _tokens(self, message: wire.TokensWire) -> None:
        handle = self._handles.get(message.number)
        if handle is None or not self._machine.progressed(
            message.number, message.attempt, message.first + len(message.tokens)
        ):
            return
        sent = handle.sent[message.sample]
        # Another attempt repeats what the client has; each token is sent once.
        skip = len(sent) - message.first
        if skip < 0 or skip >= len(message.tokens):
            return
        new = message.tokens[skip:]
        sent.extend(new)
        if not handle.first_token_ns:
            handle.first_token_ns = time.monotonic_ns() - handle.received_ns
        finish = None if message.finish < 0 else FinishReason(message.finish)
        if finish is not None:
            handle.finished.add(message.sample)
        self._put(handle, NewTokens(message.sample, new, message.logprobs, finish))

    async def _attempt_ended(self, message: wire.EndedWire) -> None:
        handle = self._handles.get(message.number)
        if handle is not None:
            handle.cached_tokens = message.cached_tokens
            handle.resident_tokens = message.resident_tokens
            self._extend(handle)
        await self._perform(
            self._machine.ended(
                Ended(
                    message.number,
                    message.attempt,
                    FinishReason(message.reason),
                    message.cached_tokens,
                    message.resident_tokens,
                    message.ttft_ns,
                )
            )
        )

    async def _gone(self, worker: str) -> None:
        """A worker's epoch is over: its requests go on elsewhere, from what was sent."""
        peer = self._peers.pop(worker)
        self._resident.forget(worker)
        epoch = peer.hello.worker_epoch
        for number in self._machine.assigned_to(worker, epoch):
            self._extend(self._handles[number])
        await self._perform(self._machine.expired(worker, epoch))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            silent_s = self._config.gateway.expiry_ms / 1000
            now_s = time.monotonic()
            for worker, peer in list(self._peers.items()):
                if now_s - peer.heard_s > silent_s:
                    await self._gone(worker)

    def _extend(self, handle: Handle) -> None:
        """With one sample the next attempt goes on from what was sent; with several they are
        drawn again, which gives the same tokens, and what was sent is skipped."""
        if handle.submission.samples != 1 or not handle.sent[0]:
            return
        sent = len(handle.sent[0])
        tokens = handle.submission.tokens + tuple(handle.sent[0])
        self._machine.extended(handle.number, self._incoming(handle.submission, tokens, sent))

    # ---- effects

    async def _perform(self, effects: list[RouterEffect]) -> None:
        self._spool()
        for effect in effects:
            match effect:
                case Offer():
                    await self._offer(effect)
                case CancelAttempt():
                    peer = self._peers.get(effect.worker)
                    if peer is not None:
                        await self._send(
                            peer.identity, wire.CancelWire(effect.number, effect.attempt)
                        )
                case ArmOfferTimeout():
                    asyncio.get_running_loop().call_later(
                        self._config.gateway.offer_timeout_ms / 1000,
                        self._offer_timed_out,
                        effect.number,
                        effect.attempt,
                    )
                case Close():
                    self._close(effect)

    async def _offer(self, offer: Offer) -> None:
        handle = self._handles.get(offer.number)
        peer = self._peers.get(offer.worker)
        if handle is None or peer is None:
            return  # the time-out or the expiry moves it on
        handle.worker, handle.attempt = offer.worker, offer.attempt
        submission = handle.submission
        sent = handle.sent[0] if submission.samples == 1 else []
        await self._send(
            peer.identity,
            wire.OfferWire(
                number=offer.number,
                attempt=offer.attempt,
                worker=offer.worker,
                worker_epoch=offer.worker_epoch,
                request=submission.request,
                tenant=submission.tenant,
                salt=submission.salt,
                priority=submission.priority,
                deadline_us=0,
                tokens=submission.tokens + tuple(sent),
                prompt_tokens=len(submission.tokens),
                max_new_tokens=submission.generation.max_tokens - len(sent),
                samples=submission.samples,
                sampling=encode_generation(submission.generation),
            ),
        )

    def _offer_timed_out(self, number: int, attempt: int) -> None:
        if self._loop is not None and number in self._handles:
            effects = self._machine.answered(number, attempt, Answer.TIMED_OUT)
            self._watch(self._loop.create_task(self._perform(effects)))

    def _close(self, close: Close) -> None:
        handle = self._handles.pop(close.number, None)
        release = self._headroom.pop(close.number, None)
        if callable(release):
            release()
        if handle is not None:
            self._put(
                handle,
                RequestEnded(
                    close.verdict,
                    handle.worker,
                    handle.attempt,
                    handle.cached_tokens,
                    handle.resident_tokens,
                ),
            )

    def _put(self, handle: Handle, event: Event) -> None:
        try:
            handle.events.put_nowait(event)
        except asyncio.QueueFull:
            # A client that does not read cannot hold memory for ever; it is treated as gone.
            while not handle.events.empty():
                handle.events.get_nowait()
            handle.events.put_nowait(
                RequestEnded(Verdict.CANCELLED, handle.worker, handle.attempt, 0, 0)
            )
            if self._loop is not None:
                self._watch(self._loop.create_task(self.cancel(handle)))

    async def _send(self, identity: bytes, message: wire.Message) -> None:
        await self._socket.send_multipart([identity, *wire.encode(message)])

    # ---- log

    def _spool(self) -> None:
        self._log.spool(self._decider.drain())

    def _apply(self, frames: list[Frame]) -> None:
        for frame in frames:
            self._index.apply(frame.facts())

    def _followed(self, frames: list[Frame]) -> None:
        """Called from the log's thread; the index belongs to the loop's."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has been closed
                self._loop.call_soon_threadsafe(self._apply, frames)

    def _incoming(self, submission: Submission, tokens: tuple[int, ...], sent: int) -> Incoming:
        return Incoming(
            request=submission.request,
            tenant=submission.tenant,
            priority=submission.priority,
            deadline_us=0,
            prompt=prompt_of(
                tokens,
                submission.salt,
                self._config.worker.page_tokens,
                self._config.worker.chunk_tokens,
            ),
            max_new_tokens=submission.generation.max_tokens - sent,
            samples=submission.samples,
        )
