"""The worker machine: which request runs, on which pages, from which prefix, and what it leaves.

Theory of operation. An offer is checked (duplicate, epoch, room in the queue) and becomes a
WAITING stream. Admission runs over the queue in order whenever something may have freed capacity:
match the prompt against the kept pages, decide, adopt the match, evict for what is missing,
promise. An admitted stream decides its restore source and is RESTORING until the transfer has been
verified, or RUNNING at once. When its device work is done it is CLOSING: decide what to keep and
what to write down, capture, then finish. Every step that decides is an evaluator; what it decided
and the command that carries it out are one transaction.

Owns the worker's journal, view and prefix index. Does no I/O and reads no clock: events are method
calls with times as arguments, effects are returned. The caller spools ``decider.drain()`` before it
performs any effect.

    state      event              next        effects
    -          offer, refused     -           Answered(DECLINED)
    -          offer              WAITING     Answered(ACCEPTED)
    WAITING    admitted           RESTORING   Restore
    WAITING    admitted           RUNNING     Run
    WAITING    refused            -           Ended(ERROR)
    WAITING    starved            -           Ended(ERROR)
    WAITING    cancelled          -           Ended(CANCELLED)
    RESTORING  restored           RUNNING     Run (from the last verified row)
    RESTORING  cancelled          STOPPING    Stop
    RUNNING    cancelled          STOPPING    Stop
    RUNNING    done               CLOSING     Capture, or straight to the end
    CLOSING    captured           -           Ended
    STOPPING   stopped            -           Ended(CANCELLED)
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Protocol

from pagetrail.catalog.envelope import Cause
from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.content import Tier
from pagetrail.catalog.kinds.decision import Outcome
from pagetrail.catalog.kinds.router import Answer, WorkerObserved
from pagetrail.catalog.kinds.worker import (
    AdoptionUndone,
    DropReason,
    FinishReason,
    Measured,
    Metric,
    NodeDurable,
    NodesEvicted,
    PagesAdopted,
    PagesPromised,
    PromptKept,
    RequestDropped,
    RequestQueued,
    RouteForked,
    RowsAdvanced,
    RowsRestored,
    StreamFinished,
    WorkerStarted,
)

from ..eviction import EVICT_CANDIDATES_MIN, EvictRecorded
from ..lookup import Catalog, look_up
from ..pages.index import PrefixIndex
from ..policy.inputs import (
    AdmitChoice,
    AdmitOutcome,
    AdmitReason,
    CheckpointChoice,
    EvictChoice,
    KeepChoice,
    RestoreChoice,
)
from ..view import (
    AdmitRecorded,
    CheckpointRecorded,
    KeepRecorded,
    RestoreRecorded,
    WorkerView,
)
from .deciding import Decider
from .messages import (
    Answered,
    Capture,
    Ended,
    Forked,
    Offer,
    Prompt,
    Restore,
    Run,
    Stop,
    WorkerEffect,
)

QUEUE_MAX = 65_536
ADMIT_SCAN_MAX = 64
FINISHED_MAX = 4_096  # ended attempts that are remembered


class StreamState(IntEnum):
    """Where a stream stands."""

    WAITING = 0
    RESTORING = 1
    RUNNING = 2
    CLOSING = 3
    STOPPING = 4


@dataclass(slots=True)
class _Live:
    stream: int
    number: int
    attempt: int
    tenant: str
    prompt: Prompt
    state: StreamState
    accepted_us: int
    verdict: int = -1  # the AdmitReason of the standing decision to wait
    cached_tokens: int = 0
    resident_tokens: int = 0
    first_token_ns: int = 0
    admitted: Cause | None = None
    restoring: Cause | None = None
    checkpointing: Cause | None = None
    finish: FinishReason = FinishReason.STOP
    sample: int = 0


@dataclass(frozen=True, slots=True)
class PublisherState:
    """What a checkpoint decision must know of the side that stores and publishes."""

    queued: int  # chunks waiting to be stored
    tier_free_bytes: int  # -1 unbounded


class HostMemory(Protocol):
    """Chunks in the worker's own memory, which no catalog knows of."""

    def leading(self, prompt: tuple[bytes, ...], first: int) -> int:
        """How many of a prompt's chunks from place ``first`` on are there without a gap."""


@dataclass(slots=True)
class WorkerMachine:
    """One worker epoch; see the module's theory of operation."""

    decider: Decider
    start: WorkerStarted
    catalog: Catalog
    memory: HostMemory | None = None
    evicted_columns: int = 0
    prefix: PrefixIndex = field(init=False)
    _live: dict[int, _Live] = field(default_factory=dict)
    _streams: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    _finished: dict[tuple[int, int], Ended] = field(default_factory=dict)
    _advanced: dict[int, int] = field(default_factory=dict)
    _next_stream: int = 1
    _observation: int = 0

    def __post_init__(self) -> None:
        self.prefix = PrefixIndex(self.view.owner)

    # ---- reads

    @property
    def view(self) -> WorkerView:
        """The view that decisions read."""
        view: WorkerView = self.decider.view
        return view

    def prompt(self, stream: int) -> Prompt:
        """The prompt of a stream that has not ended."""
        return self._live[stream].prompt

    def tenant(self, stream: int) -> str:
        """The tenant of a stream that has not ended."""
        return self._live[stream].tenant

    def cached_tokens(self, stream: int) -> int:
        """Verified prompt rows that did not have to be computed."""
        return self._live[stream].cached_tokens

    def running_attempts(self) -> frozenset[tuple[int, int]]:
        """(number, attempt) of everything that has not ended, for heartbeats."""
        return frozenset(self._streams)

    def runs(self, stream: int) -> bool:
        """Whether a stream has not ended."""
        return stream in self._live

    def stream_of(self, number: int, attempt: int) -> int | None:
        """The first stream of an attempt; None when it has ended."""
        streams = self._streams.get((number, attempt))
        return streams[0] if streams else None

    def attempt_of(self, stream: int) -> tuple[int, int]:
        """(number, attempt) of a stream that has not ended."""
        live = self._live[stream]
        return live.number, live.attempt

    def resident_at_start(self, stream: int) -> int:
        """Prompt rows that were on the device when the stream was admitted."""
        return self._live[stream].resident_tokens

    def resident_tokens(self, pages: tuple[bytes, ...]) -> int:
        """Tokens of a prompt that lie on this device, in whole pages."""
        _, columns = self.prefix.match(pages)
        return columns * self.start.page_tokens

    def observe(self) -> WorkerObserved:
        """What a heartbeat says now."""
        self._observation += 1
        view = self.view
        return WorkerObserved(
            worker=self.start.worker,
            worker_epoch=self.start.worker_epoch,
            observation=self._observation,
            fingerprint=self.start.fingerprint,
            online=len(self._live) < QUEUE_MAX,
            context_tokens=self.start.context_tokens,
            verify_rows=self.start.verify_rows,
            free_pages=min(view.owner.available()),
            reclaimable_pages=min(view.owner.reclaimable()),
            queue_ns=view.queue_ns(),
            costs=view.calibration.values(),
            samples=view.calibration.samples(),
            total_pages=self._total_pages(),
        )

    def _total_pages(self) -> int:
        """The smallest pool that must hold every row; 0 when all groups have windows."""
        pools = self.start.pools
        return min((pool.pages for pool in pools if not pool.window_tokens), default=0)

    # ---- events from the router

    def offered(self, offer: Offer, now_us: int) -> list[WorkerEffect]:
        """An attempt is offered. A duplicate is acknowledged again and changes nothing; of an
        attempt that has ended the result is told again."""
        key = (offer.number, offer.attempt)
        if key in self._streams:
            return [Answered(offer.number, offer.attempt, Answer.ACCEPTED)]
        if key in self._finished:
            return [Answered(offer.number, offer.attempt, Answer.ACCEPTED), self._finished[key]]
        if (
            offer.worker != self.start.worker
            or offer.worker_epoch != self.start.worker_epoch
            or len(self._live) >= QUEUE_MAX
        ):
            return [Answered(offer.number, offer.attempt, Answer.DECLINED)]
        stream = self._next_stream
        self._next_stream += 1
        incoming = offer.incoming
        self.decider.write(
            [
                RequestQueued(
                    stream=stream,
                    request=incoming.request,
                    attempt=offer.attempt,
                    tenant=incoming.tenant,
                    priority=incoming.priority,
                    deadline_us=incoming.deadline_us,
                    arrival_us=now_us,
                    prompt_tokens=incoming.prompt.tokens,
                    max_new_tokens=incoming.max_new_tokens,
                    prompt_digest=incoming.prompt.digest,
                    root=incoming.prompt.root,
                    samples=incoming.samples,
                )
            ]
        )
        self._live[stream] = _Live(
            stream,
            offer.number,
            offer.attempt,
            incoming.tenant,
            incoming.prompt,
            StreamState.WAITING,
            now_us,
        )
        self._streams[key] = [stream]
        return [Answered(offer.number, offer.attempt, Answer.ACCEPTED)]

    def router_restarted(self) -> None:
        """A router's new epoch numbers its requests anew: how attempts of the old one ended must
        answer no offer of the new one. Raises InvariantError while one of them still runs.
        """
        if self._streams:
            raise InvariantError(
                f"{len(self._streams)} attempts of an earlier router still run; they are to be "
                "cancelled, and to have ended, before a new one is heard"
            )
        self._finished.clear()

    def cancelled(self, number: int, attempt: int) -> list[WorkerEffect]:
        """An attempt is given up; capacity returns when the device has let go of it."""
        key = (number, attempt)
        if key not in self._streams and key not in self._finished:
            # The offer is still on its way; it must find that it has been given up.
            self._finish(key, Ended(number, attempt, FinishReason.CANCELLED, 0, 0, 0))
        effects: list[WorkerEffect] = []
        for stream in list(self._streams.get(key, ())):
            live = self._live[stream]
            if live.state is StreamState.WAITING:
                self.decider.write([RequestDropped(stream, DropReason.CANCELLED)])
                effects += self._forget(live, FinishReason.CANCELLED)
            elif live.state not in (StreamState.CLOSING, StreamState.STOPPING):
                live.state = StreamState.STOPPING
                effects.append(Stop(stream))
        return effects

    # ---- admission

    def admit_waiting(self, now_us: int) -> list[WorkerEffect]:
        """Decide over the queue, in order, until nothing more can be admitted."""
        effects: list[WorkerEffect] = []
        for stream in self.view.queue(ADMIT_SCAN_MAX):
            live = self._live[stream]
            effects += self._admit(live, now_us)
            if live.state is StreamState.WAITING and live.verdict == AdmitReason.NO_LANE:
                break  # nor is there one for those behind it
        return effects

    def starved(self) -> list[Ended]:
        """Nothing runs and nothing outside will free a page: end what waits with an error.

        The caller says so after an admission that started nothing; waiting on would be for ever.
        Answers nothing while a stream runs.
        """
        if self.view.running:
            return []
        ended: list[Ended] = []
        for stream in self.view.queue(QUEUE_MAX):
            live = self._live[stream]
            self.decider.write(
                [RequestDropped(stream, DropReason.REFUSED)],
                causes=[live.admitted] if live.admitted is not None else [],
            )
            ended += self._forget(live, FinishReason.ERROR)
        return ended

    def _admit(self, live: _Live, now_us: int) -> list[WorkerEffect]:
        self._flush_advanced()
        prompt = live.prompt
        node, columns = self._match(prompt)
        lookup, entries = look_up(self.catalog, self.start.fingerprint, prompt.reusable_chunks)
        recorded = AdmitRecorded(node, columns, lookup)
        inputs = self.view.admit_inputs(live.stream, recorded, self.catalog, entries)
        evaluation, decided = self.decider.evaluate(
            KindId.ADMIT, inputs, live.stream, self.catalog.position, recorded
        )
        choice: AdmitChoice = evaluation.choice
        if choice.outcome == AdmitOutcome.QUEUE:
            if live.verdict != evaluation.reason:
                # Deciding again to wait for the same reason is no news.
                live.verdict = evaluation.reason
                self.decider.write([decided])
            return []
        if choice.outcome == AdmitOutcome.REFUSE:
            self.decider.write([decided, RequestDropped(live.stream, DropReason.REFUSED)])
            return [*self._forget(live, FinishReason.ERROR)]
        adopt = PagesAdopted(live.stream, node, columns, self._adopted_rows(prompt, columns))
        promise = PagesPromised(live.stream, choice.promise)
        if any(choice.reclaim):
            live.admitted = self.decider.write([decided, adopt])
            if not self._evict(live, choice.reclaim, promise):
                self.decider.write([AdoptionUndone(live.stream)])
                return []
        else:
            live.admitted = self.decider.write([decided, adopt, promise])
        waited_ns = (now_us - live.accepted_us) * 1000
        self.decider.write(
            [Outcome(KindId.ADMIT, live.stream, (waited_ns,))], causes=[live.admitted]
        )
        return self._choose_source(live)

    def _match(self, prompt: Prompt) -> tuple[int, int]:
        """The longest resident prefix that leaves the last prompt token to be computed."""
        return self.prefix.match(prompt.reusable_pages, prompt.adoptable)

    def _adopted_rows(self, prompt: Prompt, columns: int) -> int:
        return min(columns * self.start.page_tokens, prompt.tokens)

    def _evict(self, live: _Live, need: tuple[int, ...], promise: PagesPromised) -> bool:
        candidates_min = EVICT_CANDIDATES_MIN
        while True:
            recorded = EvictRecorded(need, candidates_min)
            inputs = self.view.evict_inputs(recorded)
            evaluation, decided = self.decider.evaluate(
                KindId.EVICT, inputs, live.stream, -1, recorded
            )
            choice: EvictChoice = evaluation.choice
            if not any(choice.shortfall) or not inputs.candidates_cut:
                break
            candidates_min *= 4
        causes = [live.admitted] if live.admitted is not None else []
        if any(choice.shortfall):
            self.decider.write([decided], causes=causes)
            return False
        self.decider.write([decided, NodesEvicted(choice.victims), promise], causes=causes)
        self.evicted_columns += sum(columns for _, columns in choice.victims)
        return True

    def _choose_source(self, live: _Live) -> list[WorkerEffect]:
        prompt = live.prompt
        resident = self.view.owner.rows(live.stream)
        live.cached_tokens = live.resident_tokens = resident
        lookup, entries = look_up(self.catalog, self.start.fingerprint, prompt.reusable_chunks)
        first = resident // self.start.chunk_tokens
        in_memory = (
            self.memory.leading(prompt.reusable_chunks, first) if self.memory is not None else 0
        )
        recorded = RestoreRecorded(lookup, in_memory)
        inputs = self.view.restore_inputs(live.stream, recorded, self.catalog, entries)
        evaluation, decided = self.decider.evaluate(
            KindId.RESTORE, inputs, live.stream, self.catalog.position, recorded
        )
        choice: RestoreChoice = evaluation.choice
        live.restoring = self.decider.write([decided])
        if choice.tier in (Tier.DEVICE, -1) or choice.tokens <= resident:
            live.state = StreamState.RUNNING
            return [Run(live.stream, resident)]
        live.state = StreamState.RESTORING
        chunk_tokens = self.start.chunk_tokens
        first, last = resident // chunk_tokens, -(-choice.tokens // chunk_tokens)
        return [
            Restore(
                live.stream,
                choice.tier,
                choice.worker,
                resident,
                choice.tokens,
                prompt.chunks[first:last],
            )
        ]

    # ---- events from the device and the tiers

    def restored(self, stream: int, rows: int, tier: int, elapsed_ns: int) -> list[WorkerEffect]:
        """A restore ended with ``rows`` verified rows added; fewer than asked is no fault."""
        live = self._live[stream]
        if live.state is not StreamState.RESTORING:
            return []
        if rows:
            self.decider.write([RowsRestored(stream, rows, tier)])
        live.cached_tokens += rows
        if live.restoring is not None:
            self.decider.write(
                [Outcome(KindId.RESTORE, stream, (elapsed_ns, rows))], causes=[live.restoring]
            )
        live.state = StreamState.RUNNING
        return [Run(stream, self.view.owner.rows(stream))]

    def fork(self, stream: int) -> list[WorkerEffect]:
        """All prompt rows but the last are there: the attempt's other samples branch off here."""
        live = self._live[stream]
        queued = self.view.running[stream]
        self._flush_advanced()
        pages = self.view.fork_pages(queued)
        effects: list[WorkerEffect] = []
        for sample in range(1, queued.samples):
            twin = self._next_stream
            self._next_stream += 1
            self.decider.write([RouteForked(twin, stream, queued.prompt_tokens - 1, pages)])
            self._live[twin] = replace(live, stream=twin, sample=sample)
            self._streams[(live.number, live.attempt)].append(twin)
            effects.append(Forked(twin, stream, sample))
        return effects

    def advanced(self, stream: int, rows: int) -> None:
        """Rows of a stream have been written; recorded in one batch before the next decision.

        None, when all of them were there already, are nothing to record.
        """
        if rows:
            self._advanced[stream] = self._advanced.get(stream, 0) + rows

    def first_token(self, stream: int, since_accepted_ns: int) -> None:
        """A stream's first new token left."""
        self._live[stream].first_token_ns = since_accepted_ns

    def measured(self, metric: Metric, value: int) -> None:
        """A cost was measured."""
        self.decider.write([Measured(metric, value)])

    def done(
        self, stream: int, reason: FinishReason, publisher: PublisherState
    ) -> list[WorkerEffect]:
        """A stream's device work is over: keep, checkpoint, finish."""
        live = self._live[stream]
        self._flush_advanced()
        live.finish = reason
        live.state = StreamState.CLOSING
        if live.sample == 0 and reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._keep(live)
            capture = self._checkpoint(live, publisher)
            if capture is not None:
                return [capture]
        return self.closed(stream)

    def captured(self, stream: int, size_bytes: int, elapsed_ns: int) -> list[WorkerEffect]:
        """The chunks that were asked for have left the device."""
        live = self._live[stream]
        if live.checkpointing is not None:
            self.decider.write(
                [Outcome(KindId.CHECKPOINT, stream, (elapsed_ns, size_bytes))],
                causes=[live.checkpointing],
            )
        return self.closed(stream)

    def closed(self, stream: int) -> list[WorkerEffect]:
        """Nothing holds the stream any more."""
        live = self._live[stream]
        self._flush_advanced()
        reason = FinishReason.CANCELLED if live.state is StreamState.STOPPING else live.finish
        self.decider.write([StreamFinished(stream, reason)])
        ended = self._forget(live, reason)
        self.decider.keyframe_if_due()
        return [*ended]

    def close(self) -> None:
        """Write the last keyframe of a clean stop."""
        self._flush_advanced()
        self.decider.keyframe()

    # ---- keeping and checkpointing

    def _keep(self, live: _Live) -> None:
        pages = live.prompt.pages
        node, shared = self.prefix.match(pages)
        recorded = KeepRecorded(node, shared, len(pages))
        evaluation, decided = self.decider.evaluate(
            KindId.KEEP, self.view.keep_inputs(recorded), live.stream, -1, recorded
        )
        choice: KeepChoice = evaluation.choice
        if not choice.keep:
            self.decider.write([decided])
            return
        if choice.reclaim_columns:
            self.decider.write([decided])
            if self._reclaim_columns(live, choice.reclaim_columns):
                self._keep(live)  # decided again, now that there is room
            return
        kept = PromptKept(live.stream, node, shared, choice.columns)
        self.decider.write([decided, kept])
        self.prefix.record(live.stream, pages)

    def _reclaim_columns(self, live: _Live, columns: int) -> bool:
        groups = len(self.start.pools)
        return self._evict(live, (columns,) * groups, PagesPromised(live.stream, (0,) * groups))

    def _checkpoint(self, live: _Live, publisher: PublisherState) -> Capture | None:
        prompt = live.prompt
        lookup, entries = look_up(self.catalog, self.start.fingerprint, prompt.chunks)
        recorded = CheckpointRecorded(lookup, publisher.queued, publisher.tier_free_bytes)
        inputs = self.view.checkpoint_inputs(live.stream, recorded, self.catalog, entries)
        evaluation, decided = self.decider.evaluate(
            KindId.CHECKPOINT, inputs, live.stream, self.catalog.position, recorded
        )
        choice: CheckpointChoice = evaluation.choice
        durable = inputs.depth_tokens // self.start.chunk_tokens
        if not choice.capture:
            # Nothing more will be stored of this prompt, so nothing of it need be waited for.
            given_up = self.durable(prompt, len(prompt.chunks), stored=False)
            live.checkpointing = self.decider.write([decided, *given_up])
            return None
        live.checkpointing = self.decider.write([decided, *self.durable(prompt, durable)])
        return Capture(live.stream, tuple(range(durable, len(prompt.chunks))))

    def give_up_storing(self, prompt: Prompt) -> None:
        """Chunks of a prompt could not be stored; what is kept of it may go all the same."""
        given_up = self.durable(prompt, len(prompt.chunks), stored=False)
        if given_up:
            self.decider.write(given_up)

    def durable(self, prompt: Prompt, chunks: int, *, stored: bool = True) -> list[NodeDurable]:
        """The command that marks what stays of a prompt as durable, now that the log shows its
        first ``chunks`` chunks stored; none when nothing new is.

        With the last chunk goes the tail behind it: it is shorter than a chunk, so it is never
        written down by itself, and must not keep its node from being evicted.
        """
        if not self.start.checkpoint_tiers:
            return []
        columns = chunks * self.start.chunk_tokens // self.start.page_tokens
        pages = prompt.pages if chunks == len(prompt.chunks) else prompt.pages[:columns]
        node, resident = self.prefix.match(pages)
        if not resident or self.view.owner.node(node).durable_columns >= resident:
            return []
        return [NodeDurable(node, resident, stored)]

    # ---- bookkeeping

    def _flush_advanced(self) -> None:
        entries = dict(self.view.owner.committed())
        for stream, rows in self._advanced.items():
            entries[stream] = entries.get(stream, 0) + rows
        if entries:
            self._advanced = {}
            self.decider.write([RowsAdvanced(tuple(sorted(entries.items())))])

    def _forget(self, live: _Live, reason: FinishReason) -> list[Ended]:
        """A stream is gone; the attempt ends with its last one."""
        del self._live[live.stream]
        streams = self._streams[(live.number, live.attempt)]
        streams.remove(live.stream)
        if streams:
            return []
        key = (live.number, live.attempt)
        del self._streams[key]
        ended = Ended(*key, reason, live.cached_tokens, live.resident_tokens, live.first_token_ns)
        self._finish(key, ended)
        return [ended]

    def _finish(self, key: tuple[int, int], ended: Ended) -> None:
        """Remember how an attempt ended, as long as its messages may still be on their way."""
        self._finished[key] = ended
        if len(self._finished) > FINISHED_MAX:
            del self._finished[next(iter(self._finished))]
