"""What a finished stream leaves: kept columns, chunks in host memory, chunks to be stored.

Part of the worker machine (worker.py); pure steps over its state.
"""

from __future__ import annotations

from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.decision import Outcome
from pagetrail.catalog.kinds.worker import NodeDurable, PromptKept, RamKeepBegun, RamKeepEnded

from ..lookup import look_up
from ..policy.inputs import CheckpointChoice, KeepChoice, KeepOrRamChoice
from ..view import CheckpointRecorded, KeepRecorded
from .admitting import evict
from .messages import Capture, KeepInRam, Prompt
from .worker_state import Live, PublisherState, WorkerState


def keep(state: WorkerState, live: Live, *, reclaim_failed: bool = False) -> KeepInRam | None:
    """Keep a finished prompt, on the device if it fits there; what is to be copied, if anything."""
    prompt, start = live.prompt, state.start
    node, shared = state.prefix.match(prompt.pages)
    ram_columns = 0
    if start.ram_bytes_max:
        ram_columns = -(-len(prompt.chunks) * start.chunk_tokens // start.page_tokens)
    recorded = KeepRecorded(node, shared, len(prompt.pages), reclaim_failed, ram_columns)
    evaluation, decided = state.decider.evaluate(
        KindId.KEEP, state.view.keep_inputs(recorded), live.stream, -1, recorded
    )
    choice: KeepChoice = evaluation.choice
    if isinstance(choice, KeepOrRamChoice) and choice.ram_columns:
        live.lease = state.next_lease
        state.next_lease += 1
        begun = RamKeepBegun(live.lease, live.stream, choice.ram_columns)
        live.keeping = state.decider.write([decided, begun])
        return KeepInRam(live.stream, tuple(range(len(prompt.chunks))))
    if not choice.keep:
        state.decider.write([decided])
        return None
    if choice.reclaim_columns:
        cause = state.decider.write([decided])
        need = (choice.reclaim_columns,) * len(start.pools)
        if evict(state, live.stream, need, cause):
            return keep(state, live)  # decided again, now that there is room
        if isinstance(choice, KeepOrRamChoice):
            return keep(state, live, reclaim_failed=True)
        return None
    kept = PromptKept(live.stream, node, shared, choice.columns)
    state.decider.write([decided, kept])
    state.prefix.record(live.stream, prompt.pages)
    return None


def kept_in_ram(state: WorkerState, live: Live, rows: int, elapsed_ns: int) -> None:
    """The copy to host memory is over; ``rows`` rows lie there."""
    state.decider.write([RamKeepEnded(live.lease, rows)])
    live.lease = 0
    if live.keeping is not None:
        outcome = Outcome(KindId.KEEP, live.stream, (elapsed_ns, rows))
        state.decider.write([outcome], causes=[live.keeping])


def checkpoint(state: WorkerState, live: Live, publisher: PublisherState) -> Capture | None:
    """Decide what of a finished prompt is stored; what is to be captured, if anything."""
    prompt = live.prompt
    lookup, entries = look_up(state.catalog, state.start.fingerprint, prompt.chunks)
    recorded = CheckpointRecorded(lookup, publisher.queued, publisher.tier_free_bytes)
    inputs = state.view.checkpoint_inputs(live.stream, recorded, state.catalog, entries)
    evaluation, decided = state.decider.evaluate(
        KindId.CHECKPOINT, inputs, live.stream, state.catalog.position, recorded
    )
    choice: CheckpointChoice = evaluation.choice
    stored = inputs.depth_tokens // state.start.chunk_tokens
    if not choice.capture:
        # Nothing more will be stored of this prompt, so nothing of it need be waited for.
        given_up = durable(state, prompt, len(prompt.chunks), stored=False)
        live.checkpointing = state.decider.write([decided, *given_up])
        return None
    live.checkpointing = state.decider.write([decided, *durable(state, prompt, stored)])
    return Capture(live.stream, tuple(range(stored, len(prompt.chunks))))


def durable(
    state: WorkerState, prompt: Prompt, chunks: int, *, stored: bool = True
) -> list[NodeDurable]:
    """The command that marks what stays of a prompt as durable, now that the log shows its
    first ``chunks`` chunks stored; none when nothing new is.

    With the last chunk goes the tail behind it: it is shorter than a chunk, so it is never
    written down by itself, and must not keep its node from being evicted.
    """
    if not state.start.checkpoint_tiers:
        return []
    columns = chunks * state.start.chunk_tokens // state.start.page_tokens
    pages = prompt.pages if chunks == len(prompt.chunks) else prompt.pages[:columns]
    node, resident = state.prefix.match(pages)
    if not resident or state.view.owner.node(node).durable_columns >= resident:
        return []
    state.reliefs += 1
    return [NodeDurable(node, resident, stored)]
