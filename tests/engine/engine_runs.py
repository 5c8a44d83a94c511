"""The engine thread's loop over a real model, turned by hand: offers in, messages and facts out."""

from __future__ import annotations

import queue
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.facts import decode_body
from pagetrail.catalog.index import LiveIndex
from pagetrail.catalog.kinds.worker import PoolSpec
from pagetrail.config_load import load_config
from pagetrail.controlplane.cluster import wire
from pagetrail.controlplane.cluster.deciding import Decider
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.journal import Journal
from pagetrail.controlplane.policy.recorder import REFERENCE
from pagetrail.controlplane.scheduler import Budgets
from pagetrail.controlplane.view import WorkerView
from pagetrail.engine.clock import LogicalClock
from pagetrail.engine.model import EngineModel, EngineOptions, load
from pagetrail.engine.runtime import Item, Runtime, RuntimeOptions
from pagetrail.engine.sampling import SamplingParams
from pagetrail.engine.streams import Generation, encode_generation
from pagetrail.engine.transfers import TransferOptions, Transfers
from pagetrail.starting import worker_started
from pagetrail.tiers.ram import RamTier
from pagetrail.tiers.threads import TierThreads

TURNS_MAX = 5_000
CONTEXT = 512


@dataclass
class ListSpool:
    """The log's client: transactions in order."""

    transactions: list[Transaction] = field(default_factory=list)

    def spool(self, transactions: list[Transaction]) -> None:
        self.transactions += transactions

    def reserve(self, size_bytes: int) -> Callable[[], None]:
        return lambda: None


class EngineRun:
    """One worker epoch. ``settings`` are the configuration's, as ``--set`` takes them."""

    def __init__(
        self, directory: Path, pages: int, spool: ListSpool | None = None, **settings: str
    ) -> None:
        flags = {
            "worker.pages": str(pages),
            "worker.context": str(CONTEXT),
            "worker.checkpoint_tiers": "none",
            "worker.lanes": "4",
            "worker.prefill_tile": "32",
            "worker.step_rows": "64",
            "policy.evict": "residency/leaf-lru@1",
            **{key.replace("__", "."): value for key, value in settings.items()},
        }
        config = load_config(None, {}, {k: ("--set", v) for k, v in flags.items()}).config
        worker = config.worker
        self.model: EngineModel = load(
            str(directory), EngineOptions(pages=pages, context=worker.context)
        )
        row_bytes = self.model.arena.row_bytes(0)
        start = worker_started(
            config,
            epoch=1,
            fingerprint=self.model.fingerprint(),
            pools=(PoolSpec("kv", 0, pages, worker.page_tokens * row_bytes),),
            chunk_bytes=worker.chunk_tokens * row_bytes,
            context_tokens=self.model.context,
            previous=None,
        )
        view = WorkerView(start)
        decider = Decider(Journal("w", 1), view, start.evaluators, REFERENCE, 64)
        decider.write([start])
        self.machine = WorkerMachine(decider, start, LiveIndex())
        if worker.poison:
            view.owner.observe_released(
                lambda group, ids: self.model.poison(np.asarray(ids, np.int32), group)
            )
        ram = RamTier(worker.ram_bytes)
        self.machine.use_memory(ram)
        self.inbox: queue.Queue[Item] = queue.Queue()
        clock = LogicalClock()
        self.tiers = TierThreads({}, self.inbox.put, staging_bytes_max=worker.staging_bytes)
        transfers = Transfers(
            self.machine,
            self.model,
            LiveIndex(),
            self.tiers,
            ram,
            clock,
            TransferOptions(worker.restore_window, worker.ssd_bytes, measure=False),
            self.inbox.put_nowait,
        )
        self.spool = spool or ListSpool()
        self.sent: list[wire.Message] = []
        budgets = Budgets(worker.step_rows, worker.lanes, worker.prefill_tile, 16, 64)
        self.runtime = Runtime(
            self.machine,
            self.model,
            LiveIndex(),
            self.spool,
            transfers,
            clock,
            self.sent.append,
            RuntimeOptions(budgets, 1 << 60, measure=False),
            self.inbox,
        )
        self.inbox.put(wire.Welcome("gateway", 1, 1_000))

    def offer(self, number: int, tokens: list[int], new: int, **changes: Any) -> None:
        """A request of ``new`` tokens, greedy unless a temperature is given."""
        params = SamplingParams(
            temperature=changes.pop("temperature", 0.0), seed=changes.pop("seed", number)
        )
        generation = Generation(params, (), (), True, 0, new, changes.pop("prompt_logprobs", None))
        fields: dict[str, Any] = {
            "tenant": "",
            "salt": None,
            "priority": 0,
            "deadline_us": 0,
            "samples": 1,
            **changes,
        }
        self.inbox.put(
            wire.OfferWire(
                router_epoch=1,
                number=number,
                attempt=1,
                worker=self.machine.start.worker,
                worker_epoch=1,
                request=f"r{number}",
                tokens=tuple(tokens),
                prompt_tokens=len(tokens),
                max_new_tokens=new,
                sampling=encode_generation(generation),
                **fields,
            )
        )

    def run(self) -> None:
        """Turn until nothing is left to do; the book is whole after each turn."""
        for _ in range(TURNS_MAX):
            busy = self.runtime.turn(idle_wait_s=0.0)
            self.machine.view.owner.check()
            if not busy and not self.machine.running_attempts():
                return
        raise AssertionError(f"still running: {self.machine.running_attempts()}")

    def close(self) -> None:
        self.tiers.close()

    def tokens(self, number: int, sample: int = 0) -> list[int]:
        """What a client was sent; each token once and in order."""
        found: list[int] = []
        for message in self.sent:
            if not isinstance(message, wire.TokensWire):
                continue
            if (message.number, message.sample) == (number, sample):
                assert message.first == len(found)
                found += message.tokens
        return found

    def prompt_logprobs(self, number: int) -> list[bytes]:
        """The encoded log-probabilities of a request's prompt, as they were sent."""
        return [
            message.prompt_logprobs
            for message in self.sent
            if isinstance(message, wire.TokensWire)
            and message.number == number
            and message.prompt_logprobs
        ]

    def facts(self) -> list[Any]:
        return [
            decode_body(wired.kind, wired.schema_v, wired.body)
            for transaction in self.spool.transactions
            for wired in transaction.facts
        ]
