"""What a simulated run is given and what it answers, and how its processes are started."""

from __future__ import annotations

import hashlib

import msgspec

from pagetrail.catalog.kinds.content import Tier
from pagetrail.catalog.kinds.router import RouterStarted
from pagetrail.catalog.kinds.worker import Bound, PoolSpec, WorkerStarted
from pagetrail.controlplane.policy.registry import bind

from ..modelfree import DeclaredCosts
from .faults import Fault
from .nodes import ROUTER
from .workload import BLOCK_TOKENS, CHUNK_BLOCKS

BLOCK_BYTES = 64 * 1024
FINGERPRINT = hashlib.sha256(b"pagetrail simulator").digest()
EVALUATORS = (
    "routing/min-ttft@1",
    "admission/reserve@1",
    "residency/value-density@1",
    "restore/min-completion@1",
    "checkpoint/expected-value@1",
    "keep/within-limits@2",
    "preempt/min-cost@2",
    "resume/min-completion@1",
)
COSTS = DeclaredCosts(
    prefill_ns_per_token=400_000,
    first_token_ns=4_000_000,
    decode_ns_per_token=4_000_000,
)


class SimSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A run. ``faults`` None: drawn from the seed, one every ``fault_every_us``."""

    seed: int
    workers: int = 4
    pages: int = 32
    lanes: int = 4
    simulated_us: int = 20_000_000
    requests_per_s: int = 20
    fault_every_us: int = 1_000_000
    faults: tuple[Fault, ...] | None = None


class SimReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run did."""

    seed: int
    requests: int
    verdicts: dict[str, int]
    events: int
    facts: int
    decisions: int = 0  # derived again
    simulated_us: int
    faults: dict[str, int]  # by kind
    violation: str  # empty: none
    digest: str  # of everything that happened


def worker_name(number: int) -> str:
    """The name of a worker, counted from 0."""
    return f"worker-{number}"


def worker_start(number: int, settings: SimSettings) -> WorkerStarted:
    """The start fact of a worker; its node fills in the epochs.

    Every other worker reserves a request's whole output. The streams of the rest may outgrow what
    they were promised, and then one gives way to another; these workers also have host memory, for
    what gives way and for what they cannot keep.
    """
    grows = number % 2 == 1
    host_bytes = settings.pages * BLOCK_BYTES if grows else 0
    return WorkerStarted(
        worker=worker_name(number),
        worker_epoch=0,
        fingerprint=FINGERPRINT,
        pools=(PoolSpec("kv", 0, settings.pages, BLOCK_BYTES),),
        page_tokens=BLOCK_TOKENS,
        chunk_tokens=BLOCK_TOKENS * CHUNK_BLOCKS,
        chunk_bytes=BLOCK_BYTES * CHUNK_BLOCKS,
        checkpoint_tiers=(Tier.SSD, Tier.OBJECT),
        publish_queue_max=1_024,
        staging_bytes_max=BLOCK_BYTES * CHUNK_BLOCKS,
        context_tokens=settings.pages * BLOCK_TOKENS,
        verify_rows=0,
        step_rows=settings.pages * BLOCK_TOKENS,
        lanes=settings.lanes,
        kept_columns_max=settings.pages * 3 // 4 if grows else settings.pages,
        kept_nodes_max=settings.pages,
        reserve_output=not grows,
        grows=grows,
        swap_bytes_max=host_bytes,
        ram_bytes_max=host_bytes,
        costs=COSTS.by_metric(),
        evaluators=_bound(),
        previous_epoch=0,
        previous_chain=b"",
    )


def router_start() -> RouterStarted:
    """The start fact of the router; its node fills in the epochs."""
    return RouterStarted(
        router=ROUTER,
        router_epoch=0,
        fingerprint=FINGERPRINT,
        page_tokens=BLOCK_TOKENS,
        chunk_tokens=BLOCK_TOKENS * CHUNK_BLOCKS,
        chunk_bytes=BLOCK_BYTES * CHUNK_BLOCKS,
        reserve_output=True,
        evaluators=_bound(),
        previous_epoch=0,
        previous_chain=b"",
    )


def _bound() -> tuple[Bound, ...]:
    rows = [bind(name) for name in EVALUATORS]
    return tuple(sorted(rows, key=lambda row: row.decision_kind))
