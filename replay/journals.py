"""A log as journals: each client epoch's transactions in order, cut into spans that stand alone.

Owns the reading of a log for replay. A span begins with the epoch's start fact or with a keyframe,
so it can be folded without what came before; neighbours overlap in the keyframe, where the fold of
one must equal the start of the next. Reads facts only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from pagetrail.catalog.envelope import Run, Transaction
from pagetrail.catalog.errors import CorruptionError
from pagetrail.catalog.facts import KindId, decode_body
from pagetrail.catalog.kinds.worker import Keyframe

STARTS = (KindId.WORKER_STARTED, KindId.ROUTER_STARTED)


@dataclass(slots=True)
class EpochJournal:
    """One client epoch as the log holds it: at least one transaction, without gaps in client_seq.

    ``first_seqs`` are the transactions' positions in the log.
    """

    client: str
    client_epoch: int
    transactions: list[Transaction] = field(default_factory=list)
    first_seqs: list[int] = field(default_factory=list)

    @property
    def decides(self) -> bool:
        """Whether this client is a decider: its journal begins with a start fact."""
        return self.transactions[0].facts[0].kind in STARTS

    @property
    def start(self) -> msgspec.Struct | None:
        """The start fact, when this client is a decider. Raises PagetrailError when unreadable."""
        first = self.transactions[0].facts[0]
        return decode_body(first.kind, first.schema_v, first.body) if self.decides else None

    def at(self, client_seq: int) -> Transaction | None:
        """The transaction of that number, when the log holds it."""
        place = client_seq - self.transactions[0].client_seq
        return self.transactions[place] if 0 <= place < len(self.transactions) else None

    def spans(self) -> list[tuple[int, int]]:
        """Places ``(first, last)`` of transactions: from a start or keyframe to the next one.

        ``last`` is the keyframe that closes the span, inclusive, or the last transaction.
        """
        edges = [0] + [
            place
            for place, transaction in enumerate(self.transactions)
            if transaction.facts[0].kind == KindId.KEYFRAME
        ]
        last = len(self.transactions) - 1
        return [
            (first, following)
            for first, following in zip(edges, [*edges[1:], last], strict=True)
            if following > first or first == 0
        ]

    def keyframe(self, place: int) -> Keyframe:
        """The keyframe at a place."""
        wire = self.transactions[place].facts[0]
        body = decode_body(wire.kind, wire.schema_v, wire.body)
        if not isinstance(body, Keyframe):
            raise CorruptionError(f"transaction {place} of {self.client} is no keyframe")
        return body


def journals_of(runs: Iterable[tuple[int, Run]]) -> list[EpochJournal]:
    """Journals from a log's runs, each with the ``seq`` of its first fact, in the log's order."""
    found: dict[tuple[str, int], EpochJournal] = {}
    for first_seq, run in runs:
        key = (run.client, run.client_epoch)
        journal = found.get(key)
        if journal is None:
            journal = found[key] = EpochJournal(*key)
        seq = first_seq
        for transaction in run.transactions:
            journal.transactions.append(transaction)
            journal.first_seqs.append(seq)
            seq += len(transaction.facts)
    return [found[key] for key in sorted(found)]
