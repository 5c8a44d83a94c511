"""From a configuration to the start facts of a worker and a router."""

from __future__ import annotations

from pagetrail.catalog.kinds.content import Tier
from pagetrail.catalog.kinds.router import RouterStarted
from pagetrail.catalog.kinds.worker import Bound, Metric, PoolSpec, WorkerStarted
from pagetrail.config import Config
from pagetrail.config_checks import page_quotas
from pagetrail.controlplane.journal import Journal
from pagetrail.controlplane.policy.registry import bind

KEPT_NODES_MAX = 1 << 20
CHECKPOINT_TIERS = {
    "none": (),
    "ssd": (Tier.SSD,),
    "object": (Tier.OBJECT,),
    "ssd,object": (Tier.SSD, Tier.OBJECT),
}

# What costs are taken to be until they have been measured: a small model on one CPU core.
CONFIGURED_COSTS: dict[Metric, int] = {
    Metric.PREFILL_NS_PER_TOKEN: 2_000_000,
    Metric.FIRST_TOKEN_NS: 30_000_000,
    Metric.DECODE_NS_PER_TOKEN: 30_000_000,
    Metric.UPLOAD_NS_PER_MIB: 500_000,
    Metric.CAPTURE_NS_PER_MIB: 500_000,
    Metric.RAM_NS_PER_MIB: 100_000,
    Metric.SSD_NS_PER_MIB: 1_500_000,
    Metric.PEER_NS_PER_MIB: 10_000_000,
    Metric.OBJECT_NS_PER_MIB: 3_000_000,
}


def bound_evaluators(config: Config) -> tuple[Bound, ...]:
    """The evaluators in force, by kind of decision."""
    policy = config.policy
    names = (
        policy.route,
        policy.admit,
        policy.evict,
        policy.restore,
        policy.checkpoint,
        policy.preempt,
        policy.resume,
        policy.keep,
    )
    return tuple(sorted((bind(name) for name in names), key=lambda row: row.decision_kind))


def worker_started(
    config: Config,
    *,
    epoch: int,
    fingerprint: bytes,
    pools: tuple[PoolSpec, ...],
    chunk_bytes: int,
    context_tokens: int,
    previous: Journal | None,
) -> WorkerStarted:
    """The first fact of a worker's epoch."""
    worker = config.worker
    pages = min(pool.pages for pool in pools)
    return WorkerStarted(
        worker=worker.id,
        worker_epoch=epoch,
        fingerprint=fingerprint,
        pools=pools,
        page_tokens=worker.page_tokens,
        chunk_tokens=worker.chunk_tokens,
        chunk_bytes=chunk_bytes,
        checkpoint_tiers=tuple(CHECKPOINT_TIERS[worker.checkpoint_tiers]),
        publish_queue_max=max(1, worker.staging_bytes // chunk_bytes),
        staging_bytes_max=worker.staging_bytes,
        context_tokens=context_tokens,
        verify_rows=0,
        step_rows=worker.prefill_tile,
        lanes=worker.lanes,
        kept_columns_max=worker.kept_pages or pages,
        kept_nodes_max=KEPT_NODES_MAX,
        reserve_output=worker.reserve_output,
        costs=tuple(CONFIGURED_COSTS.items()),
        evaluators=bound_evaluators(config),
        previous_epoch=previous.client_epoch if previous is not None else 0,
        previous_chain=previous.chain if previous is not None else b"",
        quotas=page_quotas(config.tenants),
        swap_bytes_max=worker.swap_bytes,
        ram_bytes_max=worker.ram_bytes,
        grows=not worker.reserve_output,
    )


def router_started(
    config: Config,
    *,
    epoch: int,
    fingerprint: bytes,
    chunk_bytes: int,
    previous: Journal | None,
) -> RouterStarted:
    """The first fact of a router's epoch."""
    return RouterStarted(
        router="gateway",
        router_epoch=epoch,
        fingerprint=fingerprint,
        page_tokens=config.worker.page_tokens,
        chunk_tokens=config.worker.chunk_tokens,
        chunk_bytes=chunk_bytes,
        reserve_output=config.worker.reserve_output,
        evaluators=bound_evaluators(config),
        previous_epoch=previous.client_epoch if previous is not None else 0,
        previous_chain=previous.chain if previous is not None else b"",
    )
