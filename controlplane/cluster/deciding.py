"""How a machine decides: evaluators in force, the journal it writes to, the decision fact.

Owns the order that makes replay possible: inputs are derived from the view as it stands, the
decision cites the journal's chain before its own transaction, and the commands that carry it out
follow in the same transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from pagetrail.catalog.envelope import Cause, CompareAndSet, Transaction, WireFact
from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.facts import KINDS, KindId, Role, decision_fact, fact
from pagetrail.catalog.kinds.worker import Bound, Keyframe

from ..journal import Journal
from ..policy.recorder import RecordMode, record
from ..policy.registry import unbind
from ..policy.types import AnyEvaluator, Evaluation


@dataclass(frozen=True, slots=True)
class InForce:
    """An evaluator with its weights, and its place in the epoch's table."""

    place: int
    evaluator: AnyEvaluator
    weights: msgspec.Struct


def in_force(bound: Sequence[Bound]) -> dict[KindId, InForce]:
    """The epoch's table by kind of decision. Raises BadInputError for two of one kind."""
    table: dict[KindId, InForce] = {}
    for place, row in enumerate(bound):
        kind = KindId(row.decision_kind)
        if kind in table:
            raise BadInputError(f"two evaluators are bound for {kind.name.lower()}; bind one")
        table[kind] = InForce(place, *unbind(row))
    return table


class Decider:
    """Evaluates, records, folds and hands out transactions to be spooled.

    ``outbox`` holds the transactions written since ``drain``: the caller spools them before it
    carries out anything that follows from them.
    """

    def __init__(
        self,
        journal: Journal,
        view: Any,
        bound: Sequence[Bound],
        mode: RecordMode,
        keyframe_every: int,
    ) -> None:
        self.journal = journal
        self.view = view
        self.table: Mapping[KindId, InForce] = in_force(bound)
        self.mode = mode
        self.commands = 0
        self.facts = 0
        self.decided: Counter[KindId] = Counter()
        self.outbox: list[Transaction] = []
        self._keyframe_every = keyframe_every
        self._since_keyframe = 0

    def evaluate(
        self,
        kind: KindId,
        inputs: msgspec.Struct,
        subject: int,
        as_of: int,
        recorded: msgspec.Struct,
    ) -> tuple[Evaluation[Any], WireFact]:
        """Decide without writing. The fact is only valid as the next transaction's first."""
        force = self.table[kind]
        evaluation, decision = record(
            force.place,
            force.evaluator,
            force.weights,
            inputs,
            subject=subject,
            as_of=as_of,
            chain=self.journal.chain,
            recorded=recorded,
            mode=self.mode,
        )
        return evaluation, decision_fact(kind, decision)

    def write(
        self,
        facts: Sequence[WireFact | msgspec.Struct],
        *,
        causes: Sequence[Cause] = (),
        compare_and_set: Sequence[CompareAndSet] = (),
    ) -> Cause:
        """Fold the commands among the facts and write one transaction; returns its name."""
        wired: list[WireFact] = []
        for item in facts:
            if isinstance(item, WireFact):
                wired.append(item)
                continue
            wire = fact(item)
            if KINDS[wire.kind].role is Role.COMMAND:
                self.view.apply(item)
                self.commands += 1
            wired.append(wire)
        self.facts += len(wired)
        if KINDS[wired[0].kind].role is Role.DECISION:
            self.decided[KindId(wired[0].kind)] += 1
        transaction = self.journal.write(wired, causes, compare_and_set)
        self.outbox.append(transaction)
        self._since_keyframe += 1
        return self.journal.cause(transaction.client_seq)

    def keyframe_if_due(self) -> None:
        """Write a keyframe when enough has been written since the last."""
        if self._since_keyframe >= self._keyframe_every:
            self.keyframe()

    def keyframe(self) -> None:
        """Write the whole view, so that replay can start here."""
        self.write([Keyframe(self.commands, self.journal.chain, self.view.encode())])
        self._since_keyframe = 0

    def drain(self) -> list[Transaction]:
        """Hand out what was written since the last call."""
        written, self.outbox = self.outbox, []
        return written
