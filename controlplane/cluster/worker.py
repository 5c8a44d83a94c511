"""The worker machine: which request runs, on which pages, from which prefix, and what it leaves.

Theory of operation. An offer is checked (duplicate, epoch, room in the queue) and becomes a
WAITING stream. Admission runs over the queue in order whenever something may have freed capacity:
match the prompt against the kept pages, decide, adopt the match, evict for what is missing,
promise. An admitted stream decides its restore source and is RESTORING until the transfer has been
verified, or RUNNING at once. When its device work is done it is CLOSING: decide what to keep and
what to write down, capture, then finish. Every step that decides is an evaluator; what it decided
and the command that carries it out are one transaction.

A stream that outgrows its promise asks for more: kept prompts go, then another stream gives way
and waits again, with its rows in host memory (PARKING until they are there) or to be computed
again. The steps themselves are in admitting.py, preempting.py and leaving.py.

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
    WAITING    admitted again     RESTORING   SwapIn, or Restore
    RESTORING  restored           RUNNING     Run (from the last verified row)
    RESTORING  cancelled          STOPPING    Stop
    RUNNING    cancelled          STOPPING    Stop
    RUNNING    preempted          WAITING     Parked
    RUNNING    preempted          PARKING     SwapOut
    PARKING    swapped out        WAITING     Parked
    PARKING    cancelled          STOPPING    Stop
    RUNNING    starved            STOPPING    Stop
    RUNNING    done               CLOSING     KeepInRam, Capture, or straight to the end
    CLOSING    kept in RAM        CLOSING     Capture, or straight to the end
    CLOSING    captured           -           Ended
    STOPPING   stopped            -           Ended(CANCELLED, or ERROR when it starved)
"""

from __future__ import annotations

from dataclasses import replace

from pagetrail.catalog.errors import BadInputError, InvariantError
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.decision import Outcome
from pagetrail.catalog.kinds.router import Answer, WorkerObserved
from pagetrail.catalog.kinds.worker import (
    DropReason,
    FinishReason,
    Measured,
    Metric,
    NodeDurable,
    RequestDropped,
    RequestQueued,
    RouteForked,
    StreamFinished,
    WorkerStarted,
)

from ..lookup import Catalog
from ..pages.index import PrefixIndex
from ..policy.inputs import AdmitReason
from ..view import WorkerView
from . import admitting, leaving, preempting
from .deciding import Decider
from .messages import (
    Answered,
    Ended,
    Forked,
    Offer,
    Prompt,
    Stop,
    SwapDrop,
    WorkerEffect,
)
from .worker_state import HostMemory, Live, PublisherState, StreamState, WorkerState

QUEUE_MAX = 65_536
ADMIT_SCAN_MAX = 64


class WorkerMachine:
    """One worker epoch; see the module's theory of operation."""

    def __init__(
        self,
        decider: Decider,
        start: WorkerStarted,
        catalog: Catalog,
        memory: HostMemory | None = None,
    ) -> None:
        """Raises BadInputError when streams may outgrow their promise and nobody decides then."""
        if start.grows and not {KindId.PREEMPT, KindId.RESUME} <= decider.table.keys():
            raise BadInputError(
                "a worker whose streams may outgrow their promise needs evaluators of preempt and "
                "resume decisions; bind them, or reserve the whole output"
            )
        view: WorkerView = decider.view
        self._state = WorkerState(decider, start, catalog, memory, PrefixIndex(view.owner))
        self._observation = 0

    # ---- reads

    @property
    def decider(self) -> Decider:
        """The worker's journal and evaluators."""
        return self._state.decider

    @property
    def start(self) -> WorkerStarted:
        """The epoch's first fact."""
        return self._state.start

    @property
    def catalog(self) -> Catalog:
        """What is stored where, as this worker knows it."""
        return self._state.catalog

    @property
    def view(self) -> WorkerView:
        """The view that decisions read."""
        return self._state.view

    @property
    def prefix(self) -> PrefixIndex:
        """The content index of what is kept."""
        return self._state.prefix

    @property
    def evicted_columns(self) -> int:
        """Kept columns that were given up so far."""
        return self._state.evicted_columns

    def use_memory(self, memory: HostMemory) -> None:
        """Chunks in host memory may be restored from now on."""
        self._state.memory = memory

    def prompt(self, stream: int) -> Prompt:
        """The prompt of a stream that has not ended."""
        return self._state.live[stream].prompt

    def tenant(self, stream: int) -> str:
        """The tenant of a stream that has not ended."""
        return self._state.live[stream].tenant

    def cached_tokens(self, stream: int) -> int:
        """Verified prompt rows that did not have to be computed."""
        return self._state.live[stream].cached_tokens

    def running_attempts(self) -> frozenset[tuple[int, int]]:
        """(number, attempt) of everything that has not ended, for heartbeats."""
        return frozenset(self._state.streams)

    def runs(self, stream: int) -> bool:
        """Whether a stream has not ended."""
        return stream in self._state.live

    def stream_of(self, number: int, attempt: int) -> int | None:
        """The first stream of an attempt; None when it has ended."""
        streams = self._state.streams.get((number, attempt))
        return streams[0] if streams else None

    def attempt_of(self, stream: int) -> tuple[int, int]:
        """(number, attempt) of a stream that has not ended."""
        live = self._state.live[stream]
        return live.number, live.attempt

    def resident_at_start(self, stream: int) -> int:
        """Prompt rows that were on the device when the stream was first admitted."""
        return self._state.live[stream].resident_tokens

    def resident_tokens(self, pages: tuple[bytes, ...]) -> int:
        """Tokens of a prompt that lie on this device, in whole pages."""
        _, columns = self.prefix.match(pages)
        return columns * self.start.page_tokens

    def observe(self) -> WorkerObserved:
        """What a heartbeat says now."""
        self._observation += 1
        view, start = self.view, self.start
        return WorkerObserved(
            worker=start.worker,
            worker_epoch=start.worker_epoch,
            observation=self._observation,
            fingerprint=start.fingerprint,
            online=len(self._state.live) < QUEUE_MAX,
            context_tokens=start.context_tokens,
            verify_rows=start.verify_rows,
            free_pages=min(view.owner.available()),
            reclaimable_pages=min(view.owner.reclaimable()),
            queue_ns=view.queue_ns(),
            costs=view.calibration.values(),
            samples=view.calibration.samples(),
            # The smallest pool that must hold every row; 0 when all groups have windows.
            total_pages=min(
                (pool.pages for pool in start.pools if not pool.window_tokens), default=0
            ),
        )

    # ---- events from the router

    def offered(self, offer: Offer, now_us: int) -> list[WorkerEffect]:
        """An attempt is offered. A duplicate is acknowledged again and changes nothing; of an
        attempt that has ended the result is told again."""
        state, start = self._state, self.start
        key = (offer.number, offer.attempt)
        if key in state.streams:
            return [Answered(offer.number, offer.attempt, Answer.ACCEPTED)]
        if key in state.finished:
            return [Answered(offer.number, offer.attempt, Answer.ACCEPTED), state.finished[key]]
        if (
            offer.worker != start.worker
            or offer.worker_epoch != start.worker_epoch
            or len(state.live) >= QUEUE_MAX
        ):
            return [Answered(offer.number, offer.attempt, Answer.DECLINED)]
        stream = state.number_stream()
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
        state.live[stream] = Live(
            stream,
            offer.number,
            offer.attempt,
            incoming.tenant,
            incoming.prompt,
            StreamState.WAITING,
            now_us,
        )
        state.streams[key] = [stream]
        return [Answered(offer.number, offer.attempt, Answer.ACCEPTED)]

    def router_restarted(self) -> None:
        """A router's new epoch numbers its requests anew: how attempts of the old one ended must
        answer no offer of the new one. Raises InvariantError while one of them still runs.
        """
        if self._state.streams:
            raise InvariantError(
                f"{len(self._state.streams)} attempts of an earlier router still run; they are to "
                "be cancelled, and to have ended, before a new one is heard"
            )
        self._state.finished.clear()

    def cancelled(self, number: int, attempt: int) -> list[WorkerEffect]:
        """An attempt is given up; capacity returns when the device has let go of it."""
        state, key = self._state, (number, attempt)
        if key not in state.streams and key not in state.finished:
            # The offer is still on its way; it must find that it has been given up.
            state.remember(key, Ended(number, attempt, FinishReason.CANCELLED, 0, 0, 0))
        effects: list[WorkerEffect] = []
        for stream in list(state.streams.get(key, ())):
            live = state.live[stream]
            if live.state is StreamState.WAITING:
                effects += self._drop(live, DropReason.CANCELLED, FinishReason.CANCELLED)
            elif live.state not in (StreamState.CLOSING, StreamState.STOPPING):
                effects.append(self._stop(live, FinishReason.CANCELLED))
        return effects

    # ---- admission and growth

    def admit_waiting(self, now_us: int) -> list[WorkerEffect]:
        """Decide over the queue, in order, until nothing more can be admitted.

        Nobody is while a stream waits to grow.
        """
        effects: list[WorkerEffect] = []
        if self._state.wanting:
            return effects
        for stream in self.view.admission_order(ADMIT_SCAN_MAX):
            live = self._state.live[stream]
            effects += admitting.admit(self._state, live, now_us)
            if live.state is StreamState.WAITING and live.verdict == AdmitReason.NO_LANE:
                break  # nor is there one for those behind it
        return effects

    def grow(self, stream: int, rows: int, now_us: int) -> list[WorkerEffect]:
        """A stream is about to write ``rows`` rows and its promise may not cover them.

        Afterwards ``view.owner.shortfall`` says whether it may; when not, it waits for what the
        effects bring, or has given way itself.
        """
        return preempting.grow(self._state, self._state.live[stream], rows, now_us)

    def swapped_out(
        self, stream: int, rows: int, elapsed_ns: int, now_us: int
    ) -> list[WorkerEffect]:
        """The rows of a SwapOut lie in host memory; 0: they could not be taken there."""
        live = self._state.live[stream]
        return preempting.swapped_out(self._state, live, rows, elapsed_ns, now_us)

    def starved(self) -> list[WorkerEffect]:
        """Nothing outside will free a page any more: end with an error what would wait for ever.

        The caller says so after a round that started and computed nothing. While a stream runs
        nothing ends, unless each of them waits to grow; then one does.
        """
        state = self._state
        running = sorted(self.view.running)
        if running:
            stuck = [state.live[stream] for stream in running]
            if all(one.state is StreamState.RUNNING and one.stuck_at >= 0 for one in stuck):
                return [self._stop(stuck[-1], FinishReason.ERROR)]
            return []
        ended: list[WorkerEffect] = []
        for stream in self.view.queue(QUEUE_MAX):
            ended += self._drop(state.live[stream], DropReason.REFUSED, FinishReason.ERROR)
        return ended

    def _drop(self, live: Live, why: DropReason, reason: FinishReason) -> list[WorkerEffect]:
        """A waiting stream leaves."""
        swapped = self.view.swapped_rows(live.stream)
        causes = [live.admitted] if live.admitted is not None and why is DropReason.REFUSED else []
        self.decider.write([RequestDropped(live.stream, why)], causes=causes)
        dropped: list[WorkerEffect] = [SwapDrop(live.stream)] if swapped else []
        return [*dropped, *self._state.forget(live, reason)]

    def _stop(self, live: Live, reason: FinishReason) -> Stop:
        live.state = StreamState.STOPPING
        live.finish = reason
        self._state.wanting.discard(live.stream)
        return Stop(live.stream)

    # ---- events from the device and the tiers

    def restored(self, stream: int, rows: int, tier: int, elapsed_ns: int) -> list[WorkerEffect]:
        """A restore or a SwapIn ended with ``rows`` verified rows added; fewer than asked is no
        fault."""
        live = self._state.live[stream]
        if live.state is not StreamState.RESTORING:
            return []
        return admitting.restored(self._state, live, rows, tier, elapsed_ns)

    def fork(self, stream: int) -> list[WorkerEffect]:
        """All prompt rows but the last are there: the attempt's other samples branch off here."""
        state = self._state
        live = state.live[stream]
        queued = self.view.running[stream]
        state.flush_advanced()
        pages = self.view.fork_pages(queued)
        effects: list[WorkerEffect] = []
        for sample in range(1, queued.samples):
            twin = state.number_stream()
            self.decider.write([RouteForked(twin, stream, queued.prompt_tokens - 1, pages)])
            state.live[twin] = replace(live, stream=twin, sample=sample)
            state.streams[(live.number, live.attempt)].append(twin)
            effects.append(Forked(twin, stream, sample))
        return effects

    def advanced(self, stream: int, rows: int) -> None:
        """Rows of a stream have been written; recorded in one batch before the next decision.

        None, when all of them were there already, are nothing to record.
        """
        if rows:
            advanced = self._state.advanced
            advanced[stream] = advanced.get(stream, 0) + rows

    def first_token(self, stream: int, since_accepted_ns: int) -> None:
        """A stream's first new token left."""
        self._state.live[stream].first_token_ns = since_accepted_ns

    def measured(self, metric: Metric, value: int) -> None:
        """A cost was measured."""
        self.decider.write([Measured(metric, value)])

    # ---- the end

    def done(
        self, stream: int, reason: FinishReason, publisher: PublisherState
    ) -> list[WorkerEffect]:
        """A stream's device work is over: keep, checkpoint, finish."""
        live = self._state.live[stream]
        self._state.flush_advanced()
        live.finish = reason
        live.state = StreamState.CLOSING
        if live.sample == 0 and reason in (FinishReason.STOP, FinishReason.LENGTH):
            copy = leaving.keep(self._state, live)
            return [copy] if copy is not None else self._checkpoint(live, publisher)
        return self.closed(stream)

    def kept_in_ram(
        self, stream: int, rows: int, elapsed_ns: int, publisher: PublisherState
    ) -> list[WorkerEffect]:
        """The chunks of a KeepInRam lie in host memory: ``rows`` rows; 0 when it failed."""
        live = self._state.live[stream]
        leaving.kept_in_ram(self._state, live, rows, elapsed_ns)
        return self._checkpoint(live, publisher)

    def _checkpoint(self, live: Live, publisher: PublisherState) -> list[WorkerEffect]:
        capture = leaving.checkpoint(self._state, live, publisher)
        return [capture] if capture is not None else self.closed(live.stream)

    def captured(self, stream: int, size_bytes: int, elapsed_ns: int) -> list[WorkerEffect]:
        """The chunks that were asked for have left the device."""
        live = self._state.live[stream]
        if live.checkpointing is not None:
            self.decider.write(
                [Outcome(KindId.CHECKPOINT, stream, (elapsed_ns, size_bytes))],
                causes=[live.checkpointing],
            )
        return self.closed(stream)

    def closed(self, stream: int) -> list[WorkerEffect]:
        """Nothing holds the stream any more."""
        live = self._state.live[stream]
        self._state.flush_advanced()
        swapped = self.view.swapped_rows(stream)
        self.decider.write([StreamFinished(stream, live.finish)])
        ended = self._state.forget(live, live.finish)
        self.decider.keyframe_if_due()
        dropped: list[WorkerEffect] = [SwapDrop(stream)] if swapped else []
        return [*dropped, *ended]

    def give_up_storing(self, prompt: Prompt) -> None:
        """Chunks of a prompt could not be stored; what is kept of it may go all the same."""
        given_up = self.durable(prompt, len(prompt.chunks), stored=False)
        if given_up:
            self.decider.write(given_up)

    def durable(self, prompt: Prompt, chunks: int, *, stored: bool = True) -> list[NodeDurable]:
        """See leaving.durable."""
        return leaving.durable(self._state, prompt, chunks, stored=stored)

    def close(self) -> None:
        """Write the last keyframe of a clean stop."""
        self._state.flush_advanced()
        self.decider.keyframe()
