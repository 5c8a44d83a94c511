"""The engine thread of a worker: one loop that owns the machine, the pages and the model.

Every round it takes what other threads queued (offers, log frames, transfers), lets the machine
decide, spools what was decided, carries the effects out, and runs one planned step of the model.
So all decisions of a worker have one order, and nothing that follows from a decision happens, and
no token leaves, before the decision is in the spool. It waits for no disk and no network: those
are other threads' work, and a full queue there is an answer here.

Attempts belong to one epoch of the router. When a router greets with a newer one, nobody listens to
the older attempts any more: they are cancelled, and offers and cancels of older epochs are ignored.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.index import LiveIndex
from pagetrail.catalog.kinds.router import Answer
from pagetrail.controlplane import scheduler
from pagetrail.controlplane.cluster import wire
from pagetrail.controlplane.cluster.messages import (
    Answered,
    Capture,
    Ended,
    Forked,
    KeepInRam,
    Parked,
    Restore,
    Run,
    Stop,
    SwapDrop,
    SwapIn,
    SwapOut,
    WorkerEffect,
)
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.log.errors import HeadroomError
from pagetrail.controlplane.log.frames import Frame
from pagetrail.log_follow import shown_of, shown_through
from pagetrail.tiers.threads import ChunkArrived, ChunkStored

from .clock import Clock
from .heartbeats import Heartbeats
from .model import EngineModel
from .offers import offer_value
from .steps import Produced, Steps
from .streams import (
    ActiveStream,
    decode_generation,
    encode_logprobs,
)
from .swaps import Swaps
from .transfers import Transfers

INBOX_MAX = 65_536
IDLE_WAIT_S = 0.02
HEADROOM_BYTES = 64 * 1024
STORE_WAIT_NS = 20_000_000_000  # for captured chunks, at a clean stop

Item = wire.Message | list[Frame] | ChunkArrived | ChunkStored


class Spool(Protocol):
    """The worker's client of the log."""

    def spool(self, transactions: list[Transaction]) -> None:
        """Take over transactions that the journal has numbered."""

    def reserve(self, size_bytes: int) -> Callable[[], None]:
        """Room for one request's facts; the answer releases it. HeadroomError when short."""


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Bounds of the loop. ``measure`` False keeps the configured costs (deterministic runs)."""

    budgets: scheduler.Budgets
    heartbeat_ns: int
    measure: bool


class Runtime:
    """See the module. ``send`` hands a message to the gateway link and must only queue.

    ``look`` is told the chunk digests that are about to be looked up; it must not wait.
    """

    def __init__(
        self,
        machine: WorkerMachine,
        model: EngineModel,
        index: LiveIndex,
        spool: Spool,
        transfers: Transfers,
        clock: Clock,
        send: Callable[[wire.Message], None],
        options: RuntimeOptions,
        inbox: queue.Queue[Item],
        look: Callable[[Sequence[bytes]], None] | None = None,
    ) -> None:
        self._machine = machine
        self._model = model
        self._index = index
        self._spool = spool
        self._transfers = transfers
        self._clock = clock
        self._send = send
        self._options = options
        self._inbox = inbox
        self._look = look
        self._streams: dict[int, ActiveStream] = {}
        self._steps = Steps(
            self._streams,
            machine,
            model,
            clock,
            options.budgets,
            self._grow,
            measure=options.measure,
        )
        self._swaps = Swaps(machine, model, clock)
        self._offers: dict[tuple[int, int], wire.OfferWire] = {}
        self._headroom: dict[tuple[int, int], Callable[[], None]] = {}
        self._router_epoch = 0
        self._beats = Heartbeats(machine, options.heartbeat_ns)
        self._shown_seq = 0  # this epoch's transactions before it have come back from the log

    # ---- the loop

    def run(self, stopping: threading.Event) -> None:
        """Serve until told to stop; then end what runs, publish what was captured, and write the
        last keyframe."""
        while not stopping.is_set():
            self.turn(idle_wait_s=IDLE_WAIT_S)
        self._cancel_all()
        until_ns = time.monotonic_ns() + STORE_WAIT_NS
        while self._transfers.staged_chunks and time.monotonic_ns() < until_ns:
            self._take(IDLE_WAIT_S)
        self._take(0.0)
        self._cancel_all()  # offers that came meanwhile
        self._machine.close()
        self._drain()

    def turn(self, idle_wait_s: float) -> bool:
        """One round; False when there was nothing to do."""
        busy = self._take(idle_wait_s if not self._has_work() else 0.0)
        self._act(self._machine.admit_waiting(self._clock.now_us()))
        stepped = self._step()
        if not stepped:
            self._end_starved()
        self._drain()
        self._beat_if_due()
        return busy or stepped

    def _has_work(self) -> bool:
        return any(stream.ready for stream in self._streams.values())

    def _end_starved(self) -> None:
        """What waits with nothing computed, stored or published would wait for ever."""
        if self._offers and self._nothing_under_way():
            self._act(self._machine.starved())

    def _nothing_under_way(self) -> bool:
        # In this order: a chunk that leaves the staging is in the inbox before it is counted out.
        return (
            not self._transfers.staged_chunks
            and self._inbox.empty()
            and not self._transfers.publisher.pending
        )

    def _take(self, wait_s: float) -> bool:
        took = False
        while True:
            try:
                item = self._inbox.get(timeout=wait_s) if wait_s else self._inbox.get_nowait()
            except queue.Empty:
                return took
            took, wait_s = True, 0.0
            self._handle(item)

    def _handle(self, item: Item) -> None:
        match item:
            case list():
                for frame in item:
                    self._follow(frame)
            case wire.OfferWire():
                self._offered(item)
            case wire.CancelWire():
                if item.router_epoch == self._router_epoch:
                    self._act(self._machine.cancelled(item.number, item.attempt))
            case wire.Welcome():
                self._welcomed(item.router_epoch)
            case wire.Resync():
                self._beats.begin_anew()
            case ChunkArrived():
                self._act(self._transfers.arrived(item))
            case ChunkStored():
                self._transfers.stored(item)
                self._drain()
            case _:
                pass  # what only a worker says

    def _welcomed(self, router_epoch: int) -> None:
        """A router greets; a newer epoch of it knows nothing of what runs here."""
        if router_epoch > self._router_epoch:
            self._cancel_all()  # their ends are told under the old epoch
            self._machine.router_restarted()
            self._router_epoch = router_epoch

    def _cancel_all(self) -> None:
        for number, attempt in list(self._offers):
            self._act(self._machine.cancelled(number, attempt))

    def _drain(self) -> None:
        written = self._machine.decider.drain()
        if written:
            self._spool.spool(written)

    def _act(self, effects: list[WorkerEffect]) -> None:
        self._drain()
        for effect in effects:
            self._perform(effect)

    # ---- the log

    def _follow(self, frame: Frame) -> None:
        self._index.apply(frame.facts())
        start = self._machine.start
        self._shown_seq = max(
            self._shown_seq, shown_through(frame, start.worker, start.worker_epoch)
        )
        for shown in shown_of(frame, start.worker, start.worker_epoch):
            if shown.refused:
                self._transfers.publisher.refused(shown.client_seq, shown.actual)
            else:
                self._transfers.publisher.shown(shown.client_seq)
        self._drain()

    # ---- offers

    def _offered(self, offer: wire.OfferWire) -> None:
        if offer.router_epoch != self._router_epoch:
            return  # a router that is gone; the greeting of a new one comes before its offers
        key = (offer.number, offer.attempt)
        if key not in self._offers:
            try:
                self._headroom[key] = self._spool.reserve(HEADROOM_BYTES)
            except HeadroomError:
                self._send(wire.AnswerWire(offer.router_epoch, *key, Answer.DECLINED))
                return
            self._offers[key] = offer
        value = offer_value(
            offer, self._machine.start.page_tokens, self._machine.start.chunk_tokens
        )
        if self._look is not None:
            self._look(value.incoming.prompt.reusable_chunks)
        effects = self._machine.offered(value, self._clock.now_us())
        declined = any(
            isinstance(effect, Answered) and effect.answer is not Answer.ACCEPTED
            for effect in effects
        )
        if declined:
            self._release(key)
        self._act(effects)

    def _release(self, key: tuple[int, int]) -> None:
        self._offers.pop(key, None)
        release = self._headroom.pop(key, None)
        if release is not None:
            release()

    # ---- effects

    def _perform(self, effect: WorkerEffect) -> None:
        match effect:
            case Answered():
                self._send(
                    wire.AnswerWire(
                        self._router_epoch, effect.number, effect.attempt, effect.answer
                    )
                )
            case Ended():
                self._ended(effect)
            case Restore():
                self._begin(effect.stream)
                self._act(self._transfers.restore(effect))
            case Run():
                self._begin(effect.stream)
                self._streams[effect.stream].run_from(effect.rows)
            case Forked():
                source = self._streams[effect.source]
                self._streams[effect.stream] = source.twin(
                    effect.stream, effect.sample, self._model.tokenizer
                )
            case Capture():
                self._act(self._transfers.capture(effect))
            case KeepInRam():
                self._act(self._transfers.keep_in_ram(effect))
            case SwapOut():
                self._streams[effect.stream].ready = False
                self._act(self._swaps.out(effect))
            case Parked():
                self._streams[effect.stream].ready = False
            case SwapIn():
                self._act(self._swaps.back(effect))
            case SwapDrop():
                self._swaps.drop(effect.stream)
            case Stop():
                self._stop(effect.stream)

    def _begin(self, stream: int) -> None:
        if stream in self._streams:
            return
        key = self._machine.attempt_of(stream)
        offer = self._offers[key]
        self._streams[stream] = ActiveStream.begin(
            stream,
            offer,
            decode_generation(offer.sampling),
            self._model.tokenizer,
            arrival_us=self._clock.now_us(),
            accepted_ns=self._clock.now_ns(),
        )

    def _ended(self, ended: Ended) -> None:
        key = (ended.number, ended.attempt)
        for stream, active in list(self._streams.items()):
            if (active.number, active.attempt) == key:  # it waited, having given way
                del self._streams[stream]
        self._release(key)
        self._send(
            wire.EndedWire(
                router_epoch=self._router_epoch,
                number=ended.number,
                attempt=ended.attempt,
                reason=ended.reason,
                cached_tokens=ended.cached_tokens,
                resident_tokens=ended.resident_tokens,
                ttft_ns=ended.ttft_ns,
                message="",
            )
        )

    def _stop(self, stream: int) -> None:
        """The CPU device has nothing in flight between steps, so a stop is done at once."""
        self._transfers.abandon(stream)
        self._streams.pop(stream, None)
        self._act(self._machine.closed(stream))

    # ---- steps

    def _grow(self, stream: int, rows: int) -> None:
        """A stream needs more pages than it was promised; others may give way for it."""
        self._act(self._machine.grow(stream, rows, self._clock.now_us()))

    def _step(self) -> bool:
        for active in self._steps.to_fork():
            active.forked = True
            self._act(self._machine.fork(active.stream))
        ran, produced = self._steps.step()
        self._drain()
        for one in produced:
            self._send_token(one)
        for one in produced:
            self._finish_if_done(one.active)
        return ran

    def _send_token(self, one: Produced) -> None:
        active = one.active
        self._send(
            wire.TokensWire(
                router_epoch=self._router_epoch,
                number=active.number,
                attempt=active.attempt,
                sample=active.sample,
                first=one.first,
                tokens=(one.token,),
                logprobs=encode_logprobs(one.logprobs),
                prompt_logprobs=encode_logprobs(one.prompt_logprobs),
                finish=active.finish,
            )
        )

    def _finish_if_done(self, active: ActiveStream) -> None:
        if active.finish is None:
            return
        del self._streams[active.stream]
        state = self._transfers.publisher_state()
        self._act(self._machine.done(active.stream, active.finish, state))

    # ---- heartbeats

    def _beat_if_due(self) -> None:
        """Paced by the machine's own clock: a heartbeat is no decision and no fact."""
        if self._beats.due(time.monotonic_ns()):
            self._send(self._beats.beat(self._index.position, self._settled()))

    def _settled(self) -> bool:
        written = self._machine.decider.journal.next_seq
        return not self._offers and self._nothing_under_way() and self._shown_seq == written
