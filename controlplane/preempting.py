"""Growth past the reservation: who gives way, and where a stream that gave way goes on.

What a preemption and a resumption read, derived from the view as production and replay have it.
Which streams cannot be stopped just now (they restore, are captured, are stopping) only their
doer knows; it is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from pagetrail.catalog.kinds.content import Tier
from pagetrail.catalog.kinds.worker import Metric, RequestQueued, WorkerStarted

from .pages.owner import PageOwner
from .policy.inputs import PreemptCandidate, PreemptInputs, RestoreOption
from .quotas import Accounts, excess

MIB = 1024 * 1024


class Preempted(msgspec.Struct, frozen=True, array_like=True):
    """A stream that gave way and has not gone on yet."""

    rows: int  # it had at most, and goes on behind
    swap_rows: int  # of them in host memory; 0: they are to be computed again


class PreemptRecorded(msgspec.Struct, frozen=True, array_like=True):
    """What a growth lacks, and the streams that cannot be stopped now."""

    need: tuple[int, ...]
    busy: tuple[int, ...]


def swap_bytes(start: WorkerStarted, rows: int) -> int:
    """Host memory of a stream's rows, in whole pages."""
    columns = -(-rows // start.page_tokens)
    return columns * sum([pool.page_bytes for pool in start.pools])


def preempt_inputs(
    owner: PageOwner,
    start: WorkerStarted,
    accounts: Accounts,
    running: Mapping[int, RequestQueued],
    preempted: Mapping[int, Preempted],
    costs: Mapping[Metric, int],
    asker: int,
    recorded: PreemptRecorded,
) -> PreemptInputs:
    """The complete inputs of a preemption for ``asker``'s growth."""
    over = [any(excess(owner, accounts, number)) for number in range(len(accounts.quotas))]

    def candidate(stream: int) -> PreemptCandidate:
        queued, rows = running[stream], owner.rows(stream)
        size = swap_bytes(start, rows)
        account = accounts.of(queued.tenant)
        transfer_ns = costs[Metric.CAPTURE_NS_PER_MIB] + costs[Metric.UPLOAD_NS_PER_MIB]
        return PreemptCandidate(
            stream=stream,
            priority=queued.priority,
            arrival_us=queued.arrival_us,
            pages=owner.freed_by(stream),
            rows=rows,
            swap_ns=size * transfer_ns // MIB,
            recompute_ns=rows * costs[Metric.PREFILL_NS_PER_TOKEN],
            account=account,
            borrows=over[account],
            swap_bytes=size,
        )

    used = sum([swap_bytes(start, one.swap_rows) for one in preempted.values()])
    return PreemptInputs(
        need=recorded.need,
        priority=running[asker].priority,
        swap_bytes_free=max(0, start.swap_bytes_max - used),
        page_bytes=tuple([pool.page_bytes for pool in start.pools]),
        candidates=tuple(
            [
                candidate(stream)
                for stream in sorted(running)
                if stream != asker and stream not in recorded.busy
            ]
        ),
        asker=candidate(asker),
    )


def swap_option(
    start: WorkerStarted, standing: Preempted, resident: int, upload_ns_per_mib: int
) -> tuple[RestoreOption, ...]:
    """The rows of a stream that gave way, as a source to go on from; none when not swapped."""
    if not standing.swap_rows:
        return ()
    size = swap_bytes(start, max(0, standing.swap_rows - resident))
    return (RestoreOption(Tier.RAM, "", standing.swap_rows, size * upload_ns_per_mib // MIB),)
