"""A report of a run in one HTML file: no network, no scripts, model text escaped.

Holds what an engineer asks first: which run this is, with which rules, whether its decisions were
derived again, what each client decided over time, and a sample of requests with every decision
about them. The sample and its size are stated; the file's size is bounded.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

import pagetrail
from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.facts import KINDS, KindId, Role
from pagetrail.catalog.kinds.router import RequestReceived, RouterStarted
from pagetrail.catalog.kinds.worker import WorkerStarted
from pagetrail.controlplane.log.reader import read_log, verify_log

from .explain import Explained, explain_loaded, readable
from .loading import Loaded
from .verify import VerifyResult, verify

REQUESTS_SAMPLED = 10
ALTERNATIVES_SHOWN = 12
REPORT_BYTES_MAX = 8 * 1024 * 1024
BINS = 60

Start = WorkerStarted | RouterStarted


class _Run:
    """What the report says of a log before any decision."""

    def __init__(self, directory: Path) -> None:
        self.starts: list[tuple[str, int, Start]] = []
        self.requests: list[str] = []
        self.facts: Counter[str] = Counter()
        self.when: dict[str, list[int]] = {}
        self.first_us = self.last_us = 0
        for frame in read_log(directory):
            for run in frame.runs():
                for transaction in run.transactions:
                    self._take(run.client, run.client_epoch, transaction, frame.header.t_us)

    def _take(self, client: str, epoch: int, transaction: Transaction, t_us: int) -> None:
        self.first_us = self.first_us or t_us
        self.last_us = t_us
        for wire in transaction.facts:
            kind = KINDS.get(wire.kind)
            if kind is None:
                self.facts[f"kind {wire.kind}"] += 1  # of a newer build
                continue
            self.facts[kind.name] += 1
            if kind.role is Role.DECISION:
                self.when.setdefault(kind.name, []).append(t_us)
            elif wire.kind in (
                KindId.WORKER_STARTED,
                KindId.ROUTER_STARTED,
                KindId.REQUEST_RECEIVED,
            ):
                body = readable(wire)
                if isinstance(body, RequestReceived):
                    self.requests.append(body.request)
                elif isinstance(body, WorkerStarted | RouterStarted):
                    self.starts.append((client, epoch, body))

    def timeline(self) -> list[tuple[str, int, list[int]]]:
        """(kind, count, decisions per bin of log time)."""
        span = max(1, self.last_us - self.first_us)
        rows = []
        for kind, times in sorted(self.when.items()):
            bins = [0] * BINS
            for t_us in times:
                bins[min(BINS - 1, (t_us - self.first_us) * BINS // span)] += 1
            rows.append((kind, len(times), bins))
        return rows


def write_report(directory: Path, target: Path, *, verdict: VerifyResult | None = None) -> Path:
    """Write the report of a run; ``verdict`` saves verifying again. Returns the file's path."""
    run = _Run(directory)
    verdict = verdict or verify(directory)
    log = verify_log(directory)
    sampled = _sample(run.requests)
    loaded = Loaded.read(directory) if sampled else None
    explained = [
        (request, explain_loaded(loaded, str(directory), request).decisions)
        for request in sampled
        if loaded is not None
    ]
    environment = Environment(
        loader=PackageLoader("pagetrail.replay", "templates"),
        autoescape=select_autoescape(default=True),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html").render(
        version=pagetrail.__version__,
        chain=log.position.chain.hex(),
        facts=verdict.facts,
        verdict=verdict,
        kinds=sorted({*verdict.rederived, *verdict.mismatched, *verdict.missing}),
        starts=[_start(client, epoch, start) for client, epoch, start in run.starts],
        timeline=run.timeline(),
        span_ms=(run.last_us - run.first_us) // 1000,
        fact_counts=sorted(run.facts.items()),
        requests=len(run.requests),
        sample=[
            (request, [_card(decision) for decision in decisions])
            for request, decisions in explained
        ],
    )
    body = page.encode()
    if len(body) > REPORT_BYTES_MAX:
        marker = b"<p>The report was cut at its size limit; see replay explain.</p>"
        body = body[: REPORT_BYTES_MAX - len(marker)].rpartition(b"<section")[0] + marker
    target.write_bytes(body)
    return target


def _sample(requests: list[str]) -> list[str]:
    """Requests evenly spread over the run."""
    if len(requests) <= REQUESTS_SAMPLED:
        return requests
    last = len(requests) - 1
    places = {place * last // (REQUESTS_SAMPLED - 1) for place in range(REQUESTS_SAMPLED)}
    return [requests[place] for place in sorted(places)]


def _start(client: str, epoch: int, start: Start) -> dict[str, Any]:
    return {
        "client": client,
        "epoch": epoch,
        "fingerprint": start.fingerprint.hex()[:16],
        "evaluators": ", ".join(bound.evaluator for bound in start.evaluators),
        "pages": ", ".join(f"{pool.name}: {pool.pages}" for pool in start.pools)
        if isinstance(start, WorkerStarted)
        else "",
    }


def _card(decision: Explained) -> dict[str, Any]:
    return {
        "name": decision.name,
        "anchor": decision.name.replace("/", "-"),
        "kind": decision.kind,
        "position": decision.position,
        "evaluator": decision.evaluator,
        "reason": decision.reason,
        "tie_break": decision.tie_break,
        "verdict": decision.verdict,
        "choice": _json(decision.choice),
        "recorded": _json(decision.recorded),
        "weights": _json(decision.weights),
        "terms": [f"{name} ({unit})" for name, unit in decision.terms.items()],
        "chosen": [_json(item) for item in decision.chosen[:ALTERNATIVES_SHOWN]],
        "rejected": [_json(item) for item in decision.rejected[:ALTERNATIVES_SHOWN]],
        "commands": [f"{told.kind} {_json(told.fields)}" for told in decision.commands],
        "causes": [link.name for link in decision.causes],
        "effects": [link.name for link in decision.effects],
        "outcomes": [_json(outcome.values) for outcome in decision.outcomes],
    }


def _json(value: object) -> str:
    return msgspec.json.encode(value, enc_hook=_readable).decode()


def _readable(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
