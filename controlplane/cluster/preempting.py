"""Growth past the reservation: kept prompts go first, then another stream gives way.

Part of the worker machine (worker.py); pure steps over its state. A stream that gives way keeps
its place, its tokens and its sampler; its rows go to host memory or are computed again. When
nobody else may, the stream that asks gives way itself. While a stream waits to grow nobody is
admitted, so that what was given up for it is not taken by another. So of the streams that ask in
one step at least the last goes on, and every growth ends in a new token: nothing is preempted for
ever.
"""

from __future__ import annotations

from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.decision import Outcome
from pagetrail.catalog.kinds.worker import PagesPromised, StreamPreempted, SwapBegun

from ..policy.inputs import PreemptChoice
from ..preempting import PreemptRecorded
from .admitting import evict
from .messages import Parked, SwapOut, WorkerEffect
from .worker_state import Live, StreamState, WorkerState


def grow(state: WorkerState, live: Live, rows: int, now_us: int) -> list[WorkerEffect]:
    """Promise what the next ``rows`` rows of a stream need beyond its promise, if that can be.

    Afterwards the page owner says whether they may be reserved. If not, the stream has given way,
    or waits for room that is on its way.
    """
    state.flush_advanced()
    owner, stream = state.view.owner, live.stream
    need = owner.shortfall(stream, rows)
    if not any(need):
        state.wanting.discard(stream)
    if not any(need) or live.stuck_at == state.reliefs:
        return []
    promise = PagesPromised(stream, need)
    lacking = _lacking(state, need)
    reclaim = tuple(map(min, lacking, state.view.reclaimable_for(stream)))
    if any(reclaim) and evict(state, stream, reclaim, live.admitted):
        lacking = _lacking(state, need)
    effects = _preempt(state, live, lacking, now_us) if any(lacking) else []
    if live.state is not StreamState.RUNNING:
        return effects  # it gives way itself
    if any(_lacking(state, need)):
        live.stuck_at = state.reliefs
        state.wanting.add(stream)
    else:
        state.decider.write([promise])
        state.wanting.discard(stream)
    return effects


def swapped_out(
    state: WorkerState, live: Live, rows: int, elapsed_ns: int, now_us: int
) -> list[WorkerEffect]:
    """Rows of a stream that gives way lie in host memory; 0: they could not be taken there."""
    if live.state is not StreamState.PARKING or live.preempting is None:
        return []  # it was stopped meanwhile
    cause, asker = live.preempting
    state.decider.write([StreamPreempted(live.stream, rows > 0)], causes=[cause])
    state.decider.write(
        [Outcome(KindId.PREEMPT, asker, (live.stream, elapsed_ns, rows))], causes=[cause]
    )
    return [_park(state, live, now_us)]


def _lacking(state: WorkerState, need: tuple[int, ...]) -> tuple[int, ...]:
    available = state.view.owner.available()
    return tuple([max(0, a - b) for a, b in zip(need, available, strict=True)])


def _preempt(
    state: WorkerState, live: Live, need: tuple[int, ...], now_us: int
) -> list[WorkerEffect]:
    running = sorted(state.view.running)
    if running == [live.stream]:
        return []  # alone, it waits for pages that are being stored or read
    if any(state.live[stream].state is StreamState.PARKING for stream in running):
        return []  # room is on its way
    busy = [
        stream
        for stream in running
        if stream != live.stream and state.live[stream].state is not StreamState.RUNNING
    ]
    recorded = PreemptRecorded(need, tuple(busy))
    inputs = state.view.preempt_inputs(live.stream, recorded)
    evaluation, decided = state.decider.evaluate(KindId.PREEMPT, inputs, live.stream, -1, recorded)
    choice: PreemptChoice = evaluation.choice
    if not choice.victims:
        return []
    given = [
        SwapBegun(stream) if swap else StreamPreempted(stream, False)
        for stream, swap in choice.victims
    ]
    cause = state.decider.write([decided, *given])
    effects: list[WorkerEffect] = []
    for stream, swap in choice.victims:
        victim = state.live[stream]
        if swap:
            victim.state = StreamState.PARKING
            victim.preempting = (cause, live.stream)
            effects.append(SwapOut(stream, state.view.owner.rows(stream)))
        else:
            effects.append(_park(state, victim, now_us))
    return effects


def _park(state: WorkerState, live: Live, now_us: int) -> Parked:
    live.state = StreamState.WAITING
    live.verdict = -1
    live.waits_since_us = now_us
    live.preempting = None
    live.stuck_at = -1
    state.wanting.discard(live.stream)
    state.reliefs += 1
    return Parked(live.stream)
