"""Traces served into a log for tests, and plain readers of what such a log holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.facts import KindId, decode_body
from pagetrail.catalog.kinds.worker import PagesAdopted, RequestQueued
from pagetrail.controlplane.log.reader import read_log
from pagetrail.controlplane.policy.types import Evaluation
from pagetrail.replay.fold import Derivation
from pagetrail.replay.loading import Loaded
from pagetrail.replay.trace import TraceRequest, generate_trace
from pagetrail.simtrace import TraceReport, TraceSettings, run_trace

SEED = 11


@dataclass(frozen=True)
class Served:
    """A run: where its log lies, what it reported, what it was asked to serve."""

    directory: Path
    report: TraceReport
    requests: tuple[TraceRequest, ...]
    settings: TraceSettings


def serve(directory: Path, requests: Iterable[TraceRequest], **settings: Any) -> Served:
    """Serve requests with the production machines, writer process and spools."""
    asked = tuple(requests)
    chosen = TraceSettings(**settings)
    return Served(directory, run_trace(iter(asked), directory, chosen), asked, chosen)


def serve_generated(directory: Path, *, requests: int, seed: int = SEED, **settings: Any) -> Served:
    """Serve a generated trace."""
    return serve(directory, generate_trace(seed, requests), **settings)


def transactions(directory: Path) -> Iterator[tuple[str, int, Transaction]]:
    """(client, client epoch, transaction) in the log's order."""
    for frame in read_log(directory):
        for run in frame.runs():
            for transaction in run.transactions:
                yield run.client, run.client_epoch, transaction


def bodies(directory: Path) -> Iterator[tuple[str, msgspec.Struct]]:
    """(client, body) of every fact in the log's order."""
    for client, _, transaction in transactions(directory):
        for wire in transaction.facts:
            yield client, decode_body(wire.kind, wire.schema_v, wire.body)


def by_client(directory: Path) -> dict[str, list[bytes]]:
    """Every client's transactions, encoded, in their order."""
    found: dict[str, list[bytes]] = {}
    for client, _, transaction in transactions(directory):
        found.setdefault(client, []).append(msgspec.msgpack.encode(transaction))
    return found


def adopted_columns(directory: Path) -> dict[str, int]:
    """Columns that each request found resident when it was admitted, by request id."""
    request_of: dict[tuple[str, int], str] = {}
    found: dict[str, int] = {}
    for client, body in bodies(directory):
        if isinstance(body, RequestQueued):
            request_of[(client, body.stream)] = body.request
        elif isinstance(body, PagesAdopted):
            found[request_of[(client, body.stream)]] = body.columns
    return found


@dataclass(frozen=True)
class Derived:
    """A decision of the log as replay derives it again."""

    client: str
    client_seq: int
    inputs: Any
    evaluation: Evaluation[Any]


def derived(directory: Path, kind: KindId) -> list[Derived]:
    """Every decision of one kind, derived again from the facts."""
    loaded = Loaded.read(directory)
    found: list[Derived] = []

    def observe(seen: Derivation) -> None:
        if seen.kind is kind:
            evaluation = seen.force.evaluator.evaluate(seen.force.weights, seen.inputs)
            seq = seen.transaction.client_seq
            found.append(Derived(seen.epoch.client, seq, seen.inputs, evaluation))

    loaded.derive_all(observe)
    return found
