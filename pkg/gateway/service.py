"""The router of a gateway process: requests in, tokens out, workers behind.

Owns the router machine, its log client and every open request, all in one asyncio thread. The HTTP
side submits and reads events; it never sees a machine. What was decided is spooled before an offer
leaves. Before any event that ends an attempt the machine is told the boundary that its client has
reached, so the next attempt goes on from exactly there.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from pathlib import Path

from pagetrail.catalog.errors import PagetrailError
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
    Offer,
    RouterEffect,
    Verdict,
)
from pagetrail.controlplane.cluster.router import RouterMachine
from pagetrail.controlplane.cluster.router_view import RouterView
from pagetrail.controlplane.journal import Journal
from pagetrail.controlplane.log.endpoints import ClientKeys, ServerKeys
from pagetrail.controlplane.log.errors import HeadroomError
from pagetrail.controlplane.log.frames import Frame
from pagetrail.log_client import LogClient
from pagetrail.log_follow import shown_through
from pagetrail.starting import router_started

from .peers import Peers
from .requests import BusyError, Event, Handle, Submission
from .resident import ResidentDigests

CLIENT = "gateway"
KEYFRAME_EVERY = 2_048
HEADROOM_BYTES = 16 * 1024
CATCH_UP_TIMEOUT_S = 120.0
FLUSH_TIMEOUT_S = 10.0
TICK_S = 0.05

_DONE = (FinishReason.STOP, FinishReason.LENGTH)


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
        worker_keys: ServerKeys | None = None,
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
        self._epoch = start.router_epoch
        self._resident = ResidentDigests(start.page_tokens)
        self._decider = Decider(
            Journal(CLIENT, start.router_epoch),
            RouterView(start),
            start.evaluators,
            record_mode(config.record),
            KEYFRAME_EVERY,
        )
        try:
            self._peers = Peers(
                config.gateway.cluster, start, config.gateway.heartbeat_ms, worker_keys
            )
        except PagetrailError:
            self._log.close()
            raise
        self._decider.write([start])
        self._machine = RouterMachine(self._decider, start, self._index, self._resident)
        self._log.spool(self._decider.drain())
        self._shown_seq = 0
        self._handles: dict[int, Handle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.failure: BaseException | None = None
        self.failed = asyncio.Event()

    # ---- life

    @property
    def endpoint(self) -> str:
        """Where workers connect."""
        return self._peers.endpoint

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
        with contextlib.suppress(PagetrailError):  # a log that failed takes no more
            for number in list(self._handles):
                await self._perform(self._machine.cancelled(number))
            self._decider.keyframe()
            self._spool()
            await asyncio.to_thread(self._log.flush, FLUSH_TIMEOUT_S)
        await asyncio.to_thread(self._log.close)
        self._peers.close()

    def _watch(self, task: asyncio.Task[None]) -> None:
        """Keep a task; its failure is the service's, and stops it."""
        self._tasks.add(task)

        def done(ended: asyncio.Task[None]) -> None:
            self._tasks.discard(ended)
            if not ended.cancelled():
                self._fail(ended.exception())

        task.add_done_callback(done)

    def _fail(self, failure: BaseException | None) -> None:
        """The first failure stops the service, and ends what clients wait for."""
        if failure is None or self.failure is not None:
            return
        self.failure = failure
        self.failed.set()
        for handle in self._handles.values():
            self._put(handle, handle.ended(Verdict.FAILED))

    # ---- what it is at

    def state(self) -> dict[str, object]:
        """Workers, open requests and positions, for operators and for who waits for quiet."""
        workers = [
            {
                "worker": peer.hello.worker,
                "epoch": peer.hello.worker_epoch,
                "free_pages": peer.beat.seen.free_pages if peer.beat else None,
                "position": peer.beat.position if peer.beat else None,
                "settled": peer.beat is not None and peer.beat.settled,
            }
            for peer in self._peers.all()
        ]
        return {
            "router_epoch": self._epoch,
            "open_requests": len(self._handles),
            "waiting_requests": self._machine.waiting_requests,
            "position": self._index.position,
            "settled": self._settled(),
            "workers": workers,
        }

    def _settled(self) -> bool:
        """Nothing is open anywhere, and everyone has seen the whole log."""
        beats = [peer.beat for peer in self._peers.all()]
        return (
            not self._handles
            and self._shown_seq == self._decider.journal.next_seq
            and all(
                beat is not None and beat.settled and beat.position == self._index.position
                for beat in beats
            )
        )

    # ---- the HTTP side

    async def submit(self, submission: Submission) -> Handle:
        """Route a request. Raises BusyError when there is no room for it now."""
        if len(self._handles) >= self._config.gateway.requests_max:
            raise BusyError(
                f"{len(self._handles)} requests are open, which is the limit; retry later"
            )
        if self.failure is not None:
            raise BusyError(f"this gateway is stopping: {self.failure}")
        try:
            release = self._log.reserve(HEADROOM_BYTES)
        except HeadroomError as error:
            raise BusyError(str(error)) from error
        worker = self._config.worker
        number, effects = self._machine.received(
            submission.incoming((), worker.page_tokens, worker.chunk_tokens),
            time.time_ns() // 1000,
        )
        sent: list[list[int]] = [[] for _ in range(submission.samples)]
        handle = self._handles[number] = Handle(number, submission, release, sent)
        await self._perform(effects)
        return handle

    async def cancel(self, handle: Handle) -> None:
        """The client went away."""
        if handle.number in self._handles:
            await self._perform(self._machine.cancelled(handle.number))

    # ---- events

    async def _receive(self) -> None:
        while True:
            await self._heard(*await self._peers.receive())

    async def _heard(self, identity: bytes, message: wire.Message) -> None:
        match message:
            case wire.Hello():
                await self._greeted(identity, message)
            case wire.Beat():
                await self._beat(identity, message)
            case wire.Alive():
                await self._peers.alive(identity, message.worker, message.worker_epoch)
            case wire.AnswerWire(router_epoch=self._epoch):
                await self._perform(
                    self._machine.answered(message.number, message.attempt, message.answer)
                )
            case wire.TokensWire(router_epoch=self._epoch):
                self._tokens(message)
            case wire.EndedWire(router_epoch=self._epoch):
                await self._attempt_ended(message)
            case _:
                pass  # what only a gateway says, or of an earlier epoch of this router

    async def _greeted(self, identity: bytes, hello: wire.Hello) -> None:
        if 0 < self._peers.epoch_of(hello.worker) < hello.worker_epoch:
            await self._gone(hello.worker)
        await self._peers.greeted(identity, hello)

    async def _beat(self, identity: bytes, beat: wire.Beat) -> None:
        peer = await self._peers.alive(identity, beat.seen.worker, beat.seen.worker_epoch)
        if peer is None:
            return
        peer.beat = beat
        if not self._resident.beat(beat):
            await self._peers.ask(identity, beat.seen.worker_epoch)
        if self._machine.heartbeat(beat.seen):
            seen, running = beat.seen, frozenset(beat.running)
            await self._perform(self._machine.listed(seen.worker, seen.worker_epoch, running))
            await self._perform(self._machine.retry_waiting())

    def _tokens(self, message: wire.TokensWire) -> None:
        handle = self._handles.get(message.number)
        if handle is None or not self._machine.progressed(
            message.number, message.attempt, message.first + len(message.tokens)
        ):
            return
        new = handle.take(message)
        if new is not None:
            self._put(handle, new)

    async def _attempt_ended(self, message: wire.EndedWire) -> None:
        handle = self._handles.get(message.number)
        if handle is None or handle.attempt != message.attempt:
            return
        handle.cached_tokens = message.cached_tokens
        handle.resident_tokens = message.resident_tokens
        reason = message.reason
        if reason in _DONE and not handle.complete:
            reason = FinishReason.ERROR  # tokens were lost on the way; the next attempt has them
        await self._end_attempt(handle, reason, message.ttft_ns)

    async def _end_attempt(self, handle: Handle, reason: FinishReason, ttft_ns: int) -> None:
        """The current attempt is over. When the client has everything, so is the request."""
        if handle.complete:
            reason = handle.finished[0]
        elif reason not in _DONE:
            self._extend(handle.number, handle.attempt)
        await self._perform(
            self._machine.ended(
                Ended(
                    handle.number,
                    handle.attempt,
                    reason,
                    handle.cached_tokens,
                    handle.resident_tokens,
                    ttft_ns,
                )
            )
        )

    async def _gone(self, worker: str) -> None:
        """A worker's epoch is over: its requests go on elsewhere, from what was sent."""
        epoch = self._peers.epoch_of(worker)
        self._peers.remove(worker)
        self._resident.forget(worker)
        for number in self._machine.assigned_to(worker, epoch):
            handle = self._handles[number]
            if handle.complete:  # only the word that it has ended is missing
                await self._end_attempt(handle, handle.finished[0], 0)
            else:
                self._extend(number, handle.attempt)
        await self._perform(self._machine.expired(worker, epoch))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._fail(self._log.failure)
            for worker in self._peers.silent(self._config.gateway.expiry_ms / 1000):
                await self._gone(worker)

    def _extend(self, number: int, attempt: int) -> None:
        """Tell the machine what the client has, before the attempt that sent it is ended."""
        handle = self._handles.get(number)
        if handle is None or handle.attempt != attempt or not handle.boundary:
            return
        worker = self._config.worker
        self._machine.extended(
            number,
            handle.submission.incoming(handle.boundary, worker.page_tokens, worker.chunk_tokens),
        )

    # ---- effects

    async def _perform(self, effects: list[RouterEffect]) -> None:
        self._spool()
        for effect in effects:
            match effect:
                case Offer():
                    await self._offer(effect)
                case CancelAttempt():
                    await self._peers.send(
                        effect.worker, wire.CancelWire(self._epoch, effect.number, effect.attempt)
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
        if handle is None or offer.attempt < handle.attempt:
            return  # its client has gone since, or a later attempt went out meanwhile
        handle.worker, handle.attempt = offer.worker, offer.attempt
        # A worker that is not heard any more does not answer; the expiry moves the request on.
        await self._peers.send(offer.worker, handle.offer(self._epoch, offer.worker_epoch))

    def _offer_timed_out(self, number: int, attempt: int) -> None:
        if self._loop is not None and number in self._handles:
            self._watch(self._loop.create_task(self._time_out(number, attempt)))

    async def _time_out(self, number: int, attempt: int) -> None:
        await self._perform(self._machine.answered(number, attempt, Answer.TIMED_OUT))

    def _close(self, close: Close) -> None:
        handle = self._handles.pop(close.number)
        handle.release()
        self._put(handle, handle.ended(close.verdict))

    def _put(self, handle: Handle, event: Event) -> None:
        try:
            handle.events.put_nowait(event)
        except asyncio.QueueFull:
            # A client that does not read cannot hold memory for ever; it is treated as gone.
            while not handle.events.empty():
                handle.events.get_nowait()
            handle.events.put_nowait(handle.ended(Verdict.CANCELLED))
            if self._loop is not None:
                self._watch(self._loop.create_task(self.cancel(handle)))

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
                self._loop.call_soon_threadsafe(self._shown, frames)

    def _shown(self, frames: list[Frame]) -> None:
        self._apply(frames)
        for frame in frames:
            self._shown_seq = max(self._shown_seq, shown_through(frame, CLIENT, self._epoch))
