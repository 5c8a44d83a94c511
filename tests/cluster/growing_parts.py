"""A worker whose streams outgrow their promise, on a logical clock, and the log that it wrote."""

from __future__ import annotations

import heapq
from typing import Any

from cluster_parts import COSTS, FINGERPRINT, PAGE_TOKENS, facts, offer

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.index import LiveIndex
from pagetrail.catalog.kinds.worker import PoolSpec, WorkerStarted
from pagetrail.controlplane.cluster.deciding import Decider
from pagetrail.controlplane.cluster.messages import Ended, Incoming
from pagetrail.controlplane.cluster.modelfree import DeclaredCosts, Due, Later, ModelFreeWorker
from pagetrail.controlplane.cluster.publisher import Publisher
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.journal import Journal
from pagetrail.controlplane.policy.recorder import FULL
from pagetrail.controlplane.policy.registry import bind
from pagetrail.controlplane.view import WorkerView

SHARING = (
    "admission/reserve@2",
    "residency/leaf-lru@1",
    "restore/min-completion@1",
    "checkpoint/expected-value@1",
    "preempt/min-cost@2",
    "resume/min-completion@1",
    "keep/within-limits@2",
)


def growing_machine(
    *, pages: int = 16, evaluators: tuple[str, ...] = SHARING, **changes: Any
) -> WorkerMachine:
    """The production machine with one pool of pages of four tokens; prompts alone are reserved."""
    bound = tuple(sorted((bind(name) for name in evaluators), key=lambda row: row.decision_kind))
    fields: dict[str, Any] = {
        "worker": "w",
        "worker_epoch": 1,
        "fingerprint": FINGERPRINT,
        "pools": (PoolSpec("kv", 0, pages, 4_096),),
        "page_tokens": PAGE_TOKENS,
        "chunk_tokens": PAGE_TOKENS,
        "chunk_bytes": 4_096,
        "checkpoint_tiers": (),
        "publish_queue_max": 64,
        "staging_bytes_max": 4_096,
        "context_tokens": 1_000,
        "verify_rows": 0,
        "step_rows": 64,
        "lanes": 8,
        "kept_columns_max": pages,
        "kept_nodes_max": pages,
        "reserve_output": False,
        "costs": COSTS,
        "evaluators": bound,
        "previous_epoch": 0,
        "previous_chain": b"",
        "grows": True,
        **changes,
    }
    start = WorkerStarted(**fields)
    decider = Decider(Journal("w", 1), WorkerView(start), bound, FULL, 64)
    decider.write([start])
    return WorkerMachine(decider, start, LiveIndex())


class GrowingWorld:
    """A model-free worker served alone until nothing is under way."""

    def __init__(self, machine: WorkerMachine, **costs: Any) -> None:
        declared = DeclaredCosts(**{"decode_ns_per_token": 1_000_000, **costs})
        self.machine = machine
        self.worker = ModelFreeWorker(machine, Publisher(machine), declared)
        self.now_us = 0
        self.ended: list[Ended] = []
        self.transactions: list[Transaction] = []
        self._heap: list[tuple[int, int, Due]] = []
        self._order = 0

    def offer(self, number: int, request: Incoming) -> None:
        self._later(self.worker.offer(offer(number, request), self.now_us))

    def run(self, events: int = 100_000) -> None:
        """Carry out what comes due, at most so many events; the book is whole after each."""
        for _ in range(events):
            if not self._heap:
                self._later(self.worker.refuse_starved(self.now_us))
                if not self._heap:
                    return
            self.now_us, _, due = heapq.heappop(self._heap)
            self._later(self.worker.due(due, self.now_us))
            self.machine.view.owner.check()

    def facts(self) -> list[Any]:
        """Every fact so far."""
        return facts(self.transactions)

    def _later(self, later: list[Later]) -> None:
        for at_us, due in later:
            self._order += 1
            heapq.heappush(self._heap, (at_us, self._order, due))
        self.transactions += self.machine.decider.drain()
        self.ended += [a for a in self.worker.take_answers() if isinstance(a, Ended)]
