"""What the log says of a demo run: which of the things that were to happen did.

Reads facts only, so the table and the assertions are about what was recorded, not about what the
demo hoped for.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from pagetrail.catalog.facts import KINDS, KindId, Role, decode_body
from pagetrail.catalog.kinds.content import Copy, Tier
from pagetrail.catalog.kinds.decision import Decision, Outcome
from pagetrail.catalog.kinds.router import AttemptEnded, RequestReceived
from pagetrail.catalog.kinds.worker import (
    NodesEvicted,
    PagesAdopted,
    RequestQueued,
    RouteForked,
    RowsRestored,
)
from pagetrail.controlplane.log.reader import read_log
from pagetrail.controlplane.policy.inputs import (
    AdmitChoice,
    AdmitOutcome,
    CheckpointChoice,
    EvictReason,
)
from pagetrail.controlplane.policy.residency_plan import PLAN_TERMS

SOURCES = (
    "recomputed",
    "resident",
    "restored from RAM",
    "restored from SSD",
    "restored from object",
)
_SOURCE_OF_TIER = {Tier.RAM: SOURCES[2], Tier.SSD: SOURCES[3], Tier.OBJECT: SOURCES[4]}


@dataclass(slots=True)
class Account:
    """Counts over one log."""

    facts: int = 0
    decisions: Counter[str] = field(default_factory=Counter)
    queued: int = 0
    evictions: int = 0
    evicted_columns: int = 0
    evictions_with_choice: int = 0  # plans that had more than one kept run to choose from
    checkpoints: int = 0
    restored_rows: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    forks: int = 0
    moved: int = 0  # attempts that ended elsewhere than they began
    source: dict[str, str] = field(default_factory=dict)  # by request id


def read_account(directory: Path) -> Account:
    """Go through the log once."""
    account = Account()
    stream_request: dict[tuple[str, int, int], str] = {}
    numbers: dict[tuple[int, int], str] = {}
    for frame in read_log(directory):
        for fact in frame.facts():
            account.facts += 1
            kind = KINDS[fact.kind]
            if kind.role in (Role.SYSTEM, Role.JOURNAL):
                continue
            body = decode_body(fact.kind, fact.schema_v, fact.body)
            stream = (fact.client, fact.client_epoch)
            match body:
                case Decision():
                    account.decisions[kind.name] += 1
                    _decision(account, fact.kind, body)
                case RequestReceived():
                    numbers[(fact.client_epoch, body.number)] = body.request
                case AttemptEnded():
                    account.moved += not body.completed
                case RequestQueued():
                    stream_request[(*stream, body.stream)] = body.request
                case PagesAdopted():
                    request = stream_request[(*stream, body.stream)]
                    account.source[request] = SOURCES[1] if body.columns else SOURCES[0]
                case RowsRestored():
                    source = _SOURCE_OF_TIER[Tier(body.tier)]
                    account.restored_rows[source] += body.rows
                    account.source[stream_request[(*stream, body.stream)]] = source
                case NodesEvicted():
                    account.evictions += 1
                    account.evicted_columns += sum(columns for _, columns in body.victims)
                case RouteForked():
                    account.forks += 1
                case Copy():
                    account.copies[Tier(body.tier).name.lower()] += 1
                case Outcome():
                    pass
    return account


def _decision(account: Account, kind: int, decision: Decision) -> None:
    if kind == KindId.ADMIT:
        choice = msgspec.msgpack.decode(decision.choice, type=AdmitChoice)
        account.queued += choice.outcome == AdmitOutcome.QUEUE
    elif kind == KindId.EVICT:
        account.evictions_with_choice += _eligible(decision) > 1
    elif kind == KindId.CHECKPOINT:
        account.checkpoints += msgspec.msgpack.decode(
            decision.choice, type=CheckpointChoice
        ).capture


def _eligible(decision: Decision) -> int:
    """Kept runs that an eviction could have taken; the demo records all alternatives."""
    columns = msgspec.msgpack.decode(decision.alternatives, type=tuple[tuple[int, ...], ...])
    reasons = columns[[term.name for term in PLAN_TERMS].index("reason")]
    return sum(reason in (EvictReason.CHOSEN, EvictReason.NOT_NEEDED) for reason in reasons)
