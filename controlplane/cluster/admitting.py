"""How a waiting stream starts: match, decide, adopt, evict, promise, choose where rows come from.

Part of the worker machine (worker.py); pure steps over its state. A stream that was preempted
starts by the same steps, and goes on where it stood.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from pagetrail.catalog.envelope import Cause
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.content import Tier
from pagetrail.catalog.kinds.decision import Outcome
from pagetrail.catalog.kinds.worker import (
    AdoptionUndone,
    DropReason,
    FinishReason,
    NodesEvicted,
    PagesAdopted,
    PagesPromised,
    RequestDropped,
    RowsRestored,
    SwapReleased,
)

from ..eviction import EVICT_CANDIDATES_MIN, EvictRecorded
from ..lookup import look_up
from ..policy.inputs import AdmitChoice, AdmitOutcome, EvictChoice, RestoreChoice
from ..view import AdmitRecorded, RestoreRecorded
from .messages import Restore, Run, SwapDrop, SwapIn, WorkerEffect
from .worker_state import Live, StreamState, WorkerState


def admit(state: WorkerState, live: Live, now_us: int) -> list[WorkerEffect]:
    """Decide over one waiting stream, and start it when it may."""
    if live.stuck_at == state.reliefs:
        return []  # nothing has come free since what it needs could not be evicted
    state.flush_advanced()
    view, start, prompt = state.view, state.start, live.prompt
    # The longest resident prefix that leaves the last prompt token to be computed.
    node, columns = state.prefix.match(prompt.reusable_pages, prompt.adoptable)
    lookup, entries = look_up(state.catalog, start.fingerprint, prompt.reusable_chunks)
    recorded = AdmitRecorded(node, columns, lookup)
    inputs = view.admit_inputs(live.stream, recorded, state.catalog, entries)
    evaluation, decided = state.decider.evaluate(
        KindId.ADMIT, inputs, live.stream, state.catalog.position, recorded
    )
    choice: AdmitChoice = evaluation.choice
    if choice.outcome == AdmitOutcome.QUEUE:
        if live.verdict != evaluation.reason:
            # Deciding again to wait for the same reason is no news.
            live.verdict = evaluation.reason
            state.decider.write([decided])
        return []
    if choice.outcome == AdmitOutcome.REFUSE:
        state.decider.write([decided, RequestDropped(live.stream, DropReason.REFUSED)])
        return [*state.forget(live, FinishReason.ERROR)]
    rows = min(columns * start.page_tokens, prompt.tokens)
    adopt = PagesAdopted(live.stream, node, columns, rows, view.accounts.of(live.tenant))
    promise = PagesPromised(live.stream, choice.promise)
    if any(choice.reclaim):
        live.admitted = state.decider.write([decided, adopt])
        if not evict(state, live.stream, choice.reclaim, live.admitted, [promise]):
            state.decider.write([AdoptionUndone(live.stream)])
            live.stuck_at = state.reliefs
            return []
    else:
        live.admitted = state.decider.write([decided, adopt, promise])
    live.stuck_at = -1
    waited_ns = (now_us - live.waits_since_us) * 1000
    state.decider.write([Outcome(KindId.ADMIT, live.stream, (waited_ns,))], causes=[live.admitted])
    return _choose_source(state, live)


def evict(
    state: WorkerState,
    stream: int,
    need: tuple[int, ...],
    cause: Cause | None,
    then: Sequence[msgspec.Struct] = (),
) -> bool:
    """Have kept columns given up for a stream: ``need`` pages, ``then`` what they are for.

    One decision for each account that is asked. False when the need was not reached; what was
    evicted by then stays so.
    """
    causes = [] if cause is None else [cause]
    passed: tuple[int, ...] = ()
    candidates_min = EVICT_CANDIDATES_MIN
    while any(need):
        giver = state.view.giver(stream, need, passed)
        if giver is None:
            break
        recorded = EvictRecorded(need, candidates_min, passed)
        inputs = state.view.evict_inputs(stream, recorded)
        evaluation, decided = state.decider.evaluate(KindId.EVICT, inputs, stream, -1, recorded)
        choice: EvictChoice = evaluation.choice
        if any(choice.shortfall):
            if inputs.entries_cut:
                candidates_min *= 4
                continue
            state.decider.write([decided], causes=causes)
            passed = (*passed, giver)
            continue
        need = tuple([max(0, a - b) for a, b in zip(need, choice.freed, strict=True)])
        done = () if any(need) else then
        state.decider.write([decided, NodesEvicted(choice.victims), *done], causes=causes)
        state.evicted_columns += sum(columns for _, columns in choice.victims)
    return not any(need)


def _choose_source(state: WorkerState, live: Live) -> list[WorkerEffect]:
    prompt, start, view = live.prompt, state.start, state.view
    stream, resumes = live.stream, live.ran
    resident = view.owner.rows(stream)
    if not resumes:
        live.cached_tokens = live.resident_tokens = resident
    live.ran = True
    lookup, entries = look_up(state.catalog, start.fingerprint, prompt.reusable_chunks)
    first = resident // start.chunk_tokens
    in_memory = 0
    if state.memory is not None:
        in_memory = state.memory.leading(prompt.reusable_chunks, first)
    recorded = RestoreRecorded(lookup, in_memory)
    inputs = view.restore_inputs(stream, recorded, state.catalog, entries)
    kind = KindId.RESUME if resumes else KindId.RESTORE
    evaluation, decided = state.decider.evaluate(
        kind, inputs, stream, state.catalog.position, recorded
    )
    choice: RestoreChoice = evaluation.choice
    swapped = view.swapped_rows(stream)
    if choice.tier == Tier.RAM and swapped:
        live.restoring = state.decider.write([decided])
        live.state = StreamState.RESTORING
        return [SwapIn(stream, resident, choice.tokens)]
    released = [SwapReleased(stream)] if swapped else []
    live.restoring = state.decider.write([decided, *released])
    effects: list[WorkerEffect] = [SwapDrop(stream)] if swapped else []
    if choice.tier in (Tier.DEVICE, -1) or choice.tokens <= resident:
        live.state = StreamState.RUNNING
        return [*effects, Run(stream, resident)]
    live.state = StreamState.RESTORING
    chunk_tokens = start.chunk_tokens
    first, last = resident // chunk_tokens, -(-choice.tokens // chunk_tokens)
    chunks = prompt.chunks[first:last]
    restore = Restore(stream, choice.tier, choice.worker, resident, choice.tokens, chunks)
    return [*effects, restore]


def restored(
    state: WorkerState, live: Live, rows: int, tier: int, elapsed_ns: int
) -> list[WorkerEffect]:
    """A restore, or the way back from a swap, has added ``rows`` verified rows."""
    stream = live.stream
    written: list[msgspec.Struct] = [RowsRestored(stream, rows, tier)] if rows else []
    if state.view.swapped_rows(stream):
        written.append(SwapReleased(stream))
    if written:
        state.decider.write(written)
    resumed = stream in state.view.preempted
    if not resumed:
        live.cached_tokens += rows
    if live.restoring is not None:
        kind = KindId.RESUME if resumed else KindId.RESTORE
        state.decider.write([Outcome(kind, stream, (elapsed_ns, rows))], causes=[live.restoring])
    live.state = StreamState.RUNNING
    return [Run(stream, state.view.owner.rows(stream))]
