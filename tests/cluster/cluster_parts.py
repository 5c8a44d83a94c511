"""Routers and workers for tests of the machines: small, without a log, driven by plain calls."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.facts import decode_body
from pagetrail.catalog.identity import ROOT, chain
from pagetrail.catalog.index import LiveIndex
from pagetrail.catalog.kinds.content import Tier
from pagetrail.catalog.kinds.router import RouterStarted, WorkerObserved
from pagetrail.catalog.kinds.worker import Metric, PoolSpec, WorkerStarted
from pagetrail.controlplane.cluster.deciding import Decider
from pagetrail.controlplane.cluster.messages import Incoming, Offer, Prompt
from pagetrail.controlplane.cluster.router import RouterMachine
from pagetrail.controlplane.cluster.router_view import RouterView
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.cluster.worker_state import PublisherState
from pagetrail.controlplane.journal import Journal
from pagetrail.controlplane.policy.admission import ReserveWeights
from pagetrail.controlplane.policy.recorder import REFERENCE
from pagetrail.controlplane.policy.registry import bind
from pagetrail.controlplane.view import WorkerView

FINGERPRINT = hashlib.sha256(b"a model").digest()
PAGE_TOKENS = 4
COSTS = tuple((metric, 1_000) for metric in Metric)
EVALUATORS = (
    "routing/min-ttft@1",
    "admission/reserve@1",
    "residency/leaf-lru@1",
    "restore/min-completion@1",
    "checkpoint/expected-value@1",
    "keep/within-limits@1",
)
ROOMY = PublisherState(0, -1)


def prompt(tokens: int, *, name: str = "p", root: bytes = ROOT) -> Prompt:
    """A prompt of so many tokens; prompts of one name and root are prefixes of each other."""
    letters = [int.from_bytes(name.encode(), "big") + place for place in range(tokens)]
    parent, pages = root, []
    for start in range(0, tokens, PAGE_TOKENS):
        parent = chain(parent, tuple(letters[start : start + PAGE_TOKENS]))
        pages.append(parent)
    whole = tokens // PAGE_TOKENS
    return Prompt(tokens, parent, root, tuple(pages), tuple(pages[:whole]), len(pages) - 1)


def incoming(request: str, tokens: int = 8, **changes: Any) -> Incoming:
    """A request; ``name`` and ``root`` are its prompt's."""
    text = prompt(tokens, name=changes.pop("name", request), root=changes.pop("root", ROOT))
    fields: dict[str, Any] = {
        "tenant": "",
        "priority": 0,
        "deadline_us": 0,
        "max_new_tokens": 4,
        **changes,
    }
    return Incoming(request=request, prompt=text, **fields)


def facts(transactions: list[Transaction]) -> list[msgspec.Struct]:
    """Bodies of transactions, in order."""
    return [
        decode_body(wire.kind, wire.schema_v, wire.body)
        for transaction in transactions
        for wire in transaction.facts
    ]


def make_worker(
    *,
    pages: int = 16,
    lanes: int = 4,
    epoch: int = 1,
    tiers: tuple[Tier, ...] = (),
    catalog: LiveIndex | None = None,
    evaluators: tuple[str, ...] = EVALUATORS,
    bypass_max: int | None = None,
) -> WorkerMachine:
    """A worker with one pool of pages of four tokens; it reserves no output."""
    admission = ReserveWeights() if bypass_max is None else ReserveWeights(bypass_max=bypass_max)
    bound = [
        bind(name, admission if name.startswith("admission/") else None) for name in evaluators
    ]
    start = WorkerStarted(
        worker="w",
        worker_epoch=epoch,
        fingerprint=FINGERPRINT,
        pools=(PoolSpec("kv", 0, pages, 4_096),),
        page_tokens=PAGE_TOKENS,
        chunk_tokens=PAGE_TOKENS,
        chunk_bytes=4_096,
        checkpoint_tiers=tuple(tiers),
        publish_queue_max=64,
        staging_bytes_max=4_096,
        context_tokens=1_000,
        verify_rows=0,
        step_rows=64,
        lanes=lanes,
        kept_columns_max=pages,
        kept_nodes_max=pages,
        reserve_output=False,
        costs=COSTS,
        evaluators=tuple(bound),
        previous_epoch=0,
        previous_chain=b"",
    )
    decider = Decider(Journal("w", epoch), WorkerView(start), start.evaluators, REFERENCE, 1_000)
    decider.write([start])
    return WorkerMachine(decider, start, catalog or LiveIndex())


@dataclass
class Residents:
    """What a test says lies on the workers' devices."""

    found: dict[str, int] = field(default_factory=dict)

    def tokens(self, prompt_pages: tuple[bytes, ...], workers: tuple[str, ...]) -> dict[str, int]:
        return dict(self.found)


@dataclass
class Routed:
    """A router, its view, and what it believes resident."""

    machine: RouterMachine
    decider: Decider
    residents: Residents

    @property
    def view(self) -> RouterView:
        view: RouterView = self.decider.view
        return view

    def facts(self) -> list[msgspec.Struct]:
        """Facts written since the last call."""
        return facts(self.decider.drain())


def make_router(*workers: WorkerObserved) -> Routed:
    """A router that has heard of the given workers."""
    start = RouterStarted(
        router="router",
        router_epoch=1,
        fingerprint=FINGERPRINT,
        page_tokens=PAGE_TOKENS,
        chunk_tokens=PAGE_TOKENS,
        chunk_bytes=4_096,
        reserve_output=False,
        evaluators=(bind("routing/min-ttft@1"),),
        previous_epoch=0,
        previous_chain=b"",
    )
    decider = Decider(Journal("router", 1), RouterView(start), start.evaluators, REFERENCE, 1_000)
    decider.write([start])
    residents = Residents()
    machine = RouterMachine(decider, start, LiveIndex(), residents)
    for seen in workers:
        assert machine.heartbeat(seen)
    decider.drain()
    return Routed(machine, decider, residents)


def seen(worker: str, observation: int = 1, **changes: Any) -> WorkerObserved:
    """A worker's report."""
    fields: dict[str, Any] = {
        "worker_epoch": 1,
        "fingerprint": FINGERPRINT,
        "online": True,
        "context_tokens": 1_000,
        "verify_rows": 0,
        "free_pages": 100,
        "reclaimable_pages": 0,
        "queue_ns": 0,
        "costs": tuple(cost for _, cost in COSTS),
        "samples": (0,) * len(COSTS),
        "total_pages": 100,
        **changes,
    }
    return WorkerObserved(worker=worker, observation=observation, **fields)


def offer(number: int, request: Incoming, *, attempt: int = 1, epoch: int = 1) -> Offer:
    """An offer to the test's worker."""
    return Offer(number, attempt, "w", epoch, request, 0)
