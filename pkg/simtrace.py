"""`pagetrail sim trace`: a public trace through the whole control plane, on the real log.

Starts a writer process, opens a spool for the router and each worker, and lets the model-free
cluster serve the trace under a logical clock. Owns the run's settings and its report; decides
nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.content import Tier, WorkerEpoch
from pagetrail.catalog.kinds.router import RouterStarted
from pagetrail.catalog.kinds.worker import Bound, PoolSpec, WorkerStarted
from pagetrail.controlplane.cluster.deciding import Decider
from pagetrail.controlplane.cluster.messages import Incoming
from pagetrail.controlplane.cluster.modelfree import DeclaredCosts, ModelFreeWorker
from pagetrail.controlplane.cluster.publisher import Publisher
from pagetrail.controlplane.cluster.router import RouterMachine
from pagetrail.controlplane.cluster.router_view import RouterView
from pagetrail.controlplane.cluster.traceworld import Arrival, OwnPrefixes, TraceWorld
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.journal import Journal, last_journals
from pagetrail.controlplane.log.reader import read_log
from pagetrail.controlplane.policy.recorder import REFERENCE, RecordMode
from pagetrail.controlplane.policy.registry import bind, evaluator
from pagetrail.controlplane.view import WorkerView
from pagetrail.log_outlet import LogOutlet
from pagetrail.replay.trace import BLOCK_TOKENS, TracePrompts, TraceRequest

ROUTER = "router"
KEYFRAME_EVERY = 4_096
TIERS = {"none": (), "ssd": (Tier.SSD,), "ssd,object": (Tier.SSD, Tier.OBJECT)}
DEFAULT_EVALUATORS = (
    "routing/min-ttft@1",
    "admission/reserve@1",
    "residency/value-density@1",
    "restore/min-completion@1",
    "checkpoint/expected-value@1",
    "keep/within-limits@1",
)
# For workers whose streams may outgrow their promise, with shares, or with host memory.
SHARING_EVALUATORS = (
    "admission/reserve@2",
    "keep/within-limits@2",
    "preempt/min-cost@2",
    "resume/min-completion@1",
)


class TraceSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a trace is served."""

    workers: int = 1
    pages: int = 10_000
    evaluators: tuple[str, ...] = ()  # each replaces the default of its kind of decision
    lanes: int = 1
    count: str = "serving"
    tiers: str = "ssd,object"
    reserve_output: bool = False
    grows: bool = False  # outputs are computed too, page by page, beyond what was reserved
    swap_bytes: int = 0
    ram_bytes: int = 0
    quotas: tuple[tuple[str, int], ...] = ()  # (tenant, pages); requests are theirs in turn
    serial: bool = False
    logical_writer: bool = False
    record: RecordMode = REFERENCE
    keyframe_every: int = KEYFRAME_EVERY
    token_bytes: int = 7_168
    costs: DeclaredCosts = DeclaredCosts()


class TraceReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run reports."""

    log: str
    requests: int
    failed: int
    prompt_blocks: int
    hit_blocks: int
    hit_percent: str  # two decimals
    evictions: int
    evicted_pages: int
    restored_tokens: int
    recomputed_tokens: int
    ttft_ms: dict[str, int]
    facts: int
    log_bytes: int
    stored_bytes: int
    decisions: dict[str, int]
    facts_by_client: dict[str, str]  # SHA-256 of each journal's end
    wall_s: float


def run_trace(
    requests: Iterator[TraceRequest], directory: Path, settings: TraceSettings
) -> TraceReport:
    """Serve the requests with a log in ``directory``; an earlier run's log there is continued."""
    _check(settings)
    started_s = time.monotonic()
    names = tuple(f"worker-{number}" for number in range(settings.workers))
    bound = _bound(settings)
    outlet = LogOutlet(
        directory,
        (ROUTER, *names),
        clock="logical" if settings.logical_writer else "wall",
        serial=settings.serial,
    )
    try:
        before = last_journals(run for frame in read_log(directory) for run in frame.runs())
        fingerprint = _fingerprint(settings)
        workers = {
            name: _worker(name, settings, bound, fingerprint, outlet, before) for name in names
        }
        router_decider, router = _router(settings, bound, fingerprint, outlet, before, workers)
        for name in names:
            outlet.spool(name, workers[name].machine.decider.drain())
        world = TraceWorld(router, router_decider, workers, outlet)
        world.serve(_arrivals(requests, settings))
    finally:
        outlet.close()
    return _report(directory, world, router_decider, workers, started_s)


def _check(settings: TraceSettings) -> None:
    if not 1 <= settings.workers <= 64:
        raise BadInputError(f"workers must be from 1 to 64, not {settings.workers}")
    if not 1 <= settings.pages <= 1 << 24:
        raise BadInputError(f"pages must be from 1 to {1 << 24}, not {settings.pages}")
    if not 1 <= settings.lanes <= 1024:
        raise BadInputError(f"lanes must be from 1 to 1024, not {settings.lanes}")
    if settings.tiers not in TIERS:
        raise BadInputError(f"tiers must be one of {', '.join(TIERS)}, not {settings.tiers!r}")


def _bound(settings: TraceSettings) -> tuple[Bound, ...]:
    chosen = {evaluator(name).kind: name for name in DEFAULT_EVALUATORS}
    if settings.tiers == "none":
        chosen[KindId.EVICT] = "residency/leaf-lru@1"
    if settings.grows or settings.quotas or settings.ram_bytes:
        chosen |= {evaluator(name).kind: name for name in SHARING_EVALUATORS}
    for name in settings.evaluators:
        chosen[evaluator(name).kind] = name
    return tuple(bind(chosen[kind]) for kind in sorted(chosen))


def _fingerprint(settings: TraceSettings) -> bytes:
    what = f"pagetrail model-free worker, {BLOCK_TOKENS}, {settings.token_bytes}"
    return hashlib.sha256(what.encode()).digest()


def _previous(before: dict[str, Journal], client: str) -> tuple[int, bytes]:
    journal = before.get(client)
    return (journal.client_epoch, journal.chain) if journal is not None else (0, b"")


def _worker(
    name: str,
    settings: TraceSettings,
    bound: tuple[Bound, ...],
    fingerprint: bytes,
    outlet: LogOutlet,
    before: dict[str, Journal],
) -> ModelFreeWorker:
    epoch = outlet.epochs[name]
    previous_epoch, previous_chain = _previous(before, name)
    block_bytes = BLOCK_TOKENS * settings.token_bytes
    start = WorkerStarted(
        worker=name,
        worker_epoch=epoch,
        fingerprint=fingerprint,
        pools=(PoolSpec("kv", 0, settings.pages, block_bytes),),
        page_tokens=BLOCK_TOKENS,
        chunk_tokens=BLOCK_TOKENS,
        chunk_bytes=block_bytes,
        checkpoint_tiers=tuple(TIERS[settings.tiers]),
        publish_queue_max=1 << 20,
        staging_bytes_max=block_bytes,
        context_tokens=1 << 20,
        verify_rows=0,
        step_rows=1 << 20,
        lanes=settings.lanes,
        kept_columns_max=settings.pages,
        kept_nodes_max=settings.pages,
        reserve_output=settings.reserve_output,
        costs=settings.costs.by_metric(),
        evaluators=bound,
        previous_epoch=previous_epoch,
        previous_chain=previous_chain,
        quotas=settings.quotas,
        swap_bytes_max=settings.swap_bytes,
        ram_bytes_max=settings.ram_bytes,
        grows=settings.grows,
    )
    decider = Decider(
        Journal(name, epoch), WorkerView(start), bound, settings.record, settings.keyframe_every
    )
    decider.write([start])
    decider.write([WorkerEpoch(name, epoch, "")])
    machine = WorkerMachine(decider, start, outlet.index)
    return ModelFreeWorker(machine, Publisher(machine), settings.costs)


def _router(
    settings: TraceSettings,
    bound: tuple[Bound, ...],
    fingerprint: bytes,
    outlet: LogOutlet,
    before: dict[str, Journal],
    workers: dict[str, ModelFreeWorker],
) -> tuple[Decider, RouterMachine]:
    epoch = outlet.epochs[ROUTER]
    previous_epoch, previous_chain = _previous(before, ROUTER)
    start = RouterStarted(
        router=ROUTER,
        router_epoch=epoch,
        fingerprint=fingerprint,
        page_tokens=BLOCK_TOKENS,
        chunk_tokens=BLOCK_TOKENS,
        chunk_bytes=BLOCK_TOKENS * settings.token_bytes,
        reserve_output=settings.reserve_output,
        evaluators=bound,
        previous_epoch=previous_epoch,
        previous_chain=previous_chain,
    )
    decider = Decider(
        Journal(ROUTER, epoch), RouterView(start), bound, settings.record, settings.keyframe_every
    )
    decider.write([start])
    return decider, RouterMachine(decider, start, outlet.index, OwnPrefixes(workers))


def _arrivals(requests: Iterator[TraceRequest], settings: TraceSettings) -> Iterator[Arrival]:
    prompts = TracePrompts(settings.count)
    tenants = ("", *(tenant for tenant, _ in settings.quotas))
    for number, request in enumerate(requests, 1):
        yield Arrival(
            request.timestamp * 1000,
            Incoming(
                request=f"trace-{number}",
                tenant=tenants[number % len(tenants)],
                priority=0,
                deadline_us=0,
                prompt=prompts.prompt(request),
                max_new_tokens=request.output_length,
            ),
        )


def _report(
    directory: Path,
    world: TraceWorld,
    router_decider: Decider,
    workers: dict[str, ModelFreeWorker],
    started_s: float,
) -> TraceReport:
    deciders = {ROUTER: router_decider} | {
        name: worker.machine.decider for name, worker in workers.items()
    }
    decisions: dict[str, int] = {}
    for decider in deciders.values():
        for kind, count in decider.decided.items():
            decisions[kind.name.lower()] = decisions.get(kind.name.lower(), 0) + count
    counters = [worker.counters for worker in workers.values()]
    blocks = sum(counter.prompt_blocks for counter in counters)
    hits = sum(counter.hit_blocks for counter in counters)
    hundredths = (hits * 20_000 + blocks) // (2 * blocks) if blocks else 0
    log = directory / "log"
    return TraceReport(
        log=str(directory),
        requests=world.tally.completed,
        failed=world.tally.failed,
        prompt_blocks=blocks,
        hit_blocks=hits,
        hit_percent=f"{hundredths // 100}.{hundredths % 100:02d}",
        evictions=decisions.get("evict", 0),
        evicted_pages=sum(worker.machine.evicted_columns for worker in workers.values()),
        restored_tokens=sum(counter.restored_tokens for counter in counters),
        recomputed_tokens=sum(counter.recomputed_tokens for counter in counters),
        ttft_ms=_percentiles(world.tally.ttft_ns),
        facts=sum(decider.facts for decider in deciders.values()),
        log_bytes=sum(path.stat().st_size for path in log.rglob("*") if path.is_file()),
        stored_bytes=sum(counter.stored_bytes for counter in counters),
        decisions=dict(sorted(decisions.items())),
        facts_by_client={
            name: decider.journal.chain.hex() for name, decider in sorted(deciders.items())
        },
        wall_s=round(time.monotonic() - started_s, 2),
    )


def _percentiles(values_ns: list[int]) -> dict[str, int]:
    ordered = sorted(values_ns)
    if not ordered:
        return {}
    return {
        f"p{percent}": ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] // 1_000_000
        for percent in (50, 95, 99)
    }
