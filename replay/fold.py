"""Folding one span of a journal and deriving every decision in it again.

Owns the comparison. For each transaction: the chain must be what decisions and keyframes cite, a
decision's inputs are rebuilt from the view, the catalog as of its position and what it recorded,
its evaluator is run, and choice, reason, tie-break, alternatives and digest are compared byte for
byte; then the commands are folded, each of which must be legal and, where a decision orders it, be
what was decided.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.errors import PagetrailError
from pagetrail.catalog.facts import KINDS, KindId, Role, decode_body
from pagetrail.catalog.kinds.decision import Decision
from pagetrail.catalog.kinds.router import RouterStarted
from pagetrail.catalog.kinds.worker import Keyframe, WorkerStarted
from pagetrail.controlplane.cluster.deciding import InForce, in_force
from pagetrail.controlplane.cluster.router_view import RouterView
from pagetrail.controlplane.journal import Journal
from pagetrail.controlplane.policy.recorder import rederive
from pagetrail.controlplane.policy.registry import UnknownEvaluatorError
from pagetrail.controlplane.view import WorkerView

from .history import CatalogHistory
from .inputs import inputs_of, ordered_commands
from .journals import EpochJournal

FINDINGS_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that does not hold. Names the fact and the field."""

    client: str
    client_epoch: int
    client_seq: int
    kind: str
    what: str

    def __str__(self) -> str:
        place = f"{self.client}/{self.client_epoch}/{self.client_seq}"
        return f"{place} {self.kind}: {self.what}"


@dataclass(slots=True)
class SpanResult:
    """What the check of one span found. Findings beyond the bound are only counted."""

    rederived: dict[str, int] = field(default_factory=dict)  # by kind of decision
    mismatched: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    findings_cut: int = 0
    unattested: int = 0  # transactions after the last decision or keyframe that cites the chain
    end_chain: bytes = b""

    def add(self, finding: Finding) -> None:
        """Report a finding."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.findings_cut += 1


Observer = Callable[[EpochJournal, int, Any, Decision, msgspec.Struct, InForce], None]


class Folder:
    """Folds one span."""

    def __init__(
        self, journal: EpochJournal, history: CatalogHistory, observer: Observer | None = None
    ) -> None:
        self._journal = journal
        self._history = history
        self._observer = observer
        self._result = SpanResult()
        self._commands = 0
        self._view: WorkerView | RouterView
        start = journal.start
        if isinstance(start, WorkerStarted):
            self._view = WorkerView(start)
            self._bound = start.evaluators
        elif isinstance(start, RouterStarted):
            self._view = RouterView(start)
            self._bound = start.evaluators
        else:
            raise PagetrailError(f"the first fact of {journal.client} is no start fact")
        self._start = start
        self._table: dict[KindId, InForce] = {}
        self._position = Journal(journal.client, journal.client_epoch)

    def run(self, first: int, last: int) -> SpanResult:
        """Fold the transactions at places ``first`` to ``last``, both included."""
        result = self._result
        try:
            self._table = in_force(self._bound)
        except UnknownEvaluatorError as error:
            self._report(0, "evaluators", str(error))
        except PagetrailError as error:
            self._report(0, "evaluators", f"the recorded evaluators do not hold: {error}")
        if first:
            self._restore(first)
        for place in range(first, last + 1):
            transaction = self._journal.transactions[place]
            if transaction.client_seq != self._position.next_seq:
                self._report(
                    transaction.client_seq,
                    "transaction",
                    f"expected client_seq {self._position.next_seq}: something is missing or "
                    "stands twice",
                )
            if not (first and place == first):
                try:
                    self._transaction(place, transaction)
                except PagetrailError as error:
                    kind = KINDS[transaction.facts[0].kind].name
                    self._report(transaction.client_seq, kind, str(error))
                    break  # the view is not what it was; later findings would be noise
            self._position.fold(transaction)
            if transaction.facts[0].kind != KindId.KEYFRAME:
                result.unattested += 1
        result.end_chain = self._position.chain
        return result

    def _restore(self, place: int) -> None:
        keyframe = self._journal.keyframe(place)
        transaction = self._journal.transactions[place]
        self._position = Journal(
            self._journal.client,
            self._journal.client_epoch,
            next_seq=transaction.client_seq,
            chain=keyframe.chain,
        )
        self._commands = keyframe.commands
        start = self._start
        self._view = (
            WorkerView.decode(start, keyframe.state)
            if isinstance(start, WorkerStarted)
            else RouterView.decode(start, keyframe.state)
        )

    def _transaction(self, place: int, transaction: Transaction) -> None:
        decided: tuple[KindId, Decision] | None = None
        commands: list[msgspec.Struct] = []
        for index, wire in enumerate(transaction.facts):
            kind = KINDS.get(wire.kind)
            body = decode_body(wire.kind, wire.schema_v, wire.body)
            role = kind.role if kind is not None else None
            if isinstance(body, Decision):
                if index:
                    self._report(
                        transaction.client_seq, "decision", "is not the first of its transaction"
                    )
                decided = (KindId(wire.kind), body)
                self._decision(transaction, KindId(wire.kind), body)
            elif isinstance(body, Keyframe):
                self._keyframe(transaction, body)
            elif role is Role.COMMAND:
                commands.append(body)
                self._view.apply(body)
                self._commands += 1
        for what in ordered_commands(decided, commands):
            self._report(transaction.client_seq, "command", what)

    def _keyframe(self, transaction: Transaction, keyframe: Keyframe) -> None:
        result = self._result
        seq = transaction.client_seq
        if keyframe.chain != self._position.chain:
            self._report(seq, "keyframe", "its chain is not that of the facts before it")
        if keyframe.commands != self._commands:
            self._report(
                seq, "keyframe", f"counts {keyframe.commands} commands, folded {self._commands}"
            )
        if keyframe.state != self._view.encode():
            self._report(seq, "keyframe", "its view is not the fold of the facts before it")
        result.unattested = 0

    def _decision(self, transaction: Transaction, kind: KindId, decision: Decision) -> None:
        result, name = self._result, kind.name.lower()
        force = self._table.get(kind)
        if force is None:
            _count(result.missing, name)
            self._report(transaction.client_seq, name, "its evaluator is not in this build")
            return
        result.unattested = 0
        problem = self._problem(kind, decision, force)
        if problem is None:
            _count(result.rederived, name)
        else:
            _count(result.mismatched, name)
            self._report(transaction.client_seq, name, problem)

    def _problem(self, kind: KindId, decision: Decision, force: InForce) -> str | None:
        if decision.evaluator != force.place:
            return f"names evaluator {decision.evaluator}, in force is {force.place}"
        if decision.chain != self._position.chain:
            return "chain: it saw another history than the facts before it"
        try:
            inputs = inputs_of(kind, self._view, decision, self._history)
        except (PagetrailError, msgspec.MsgspecError) as error:
            return f"inputs: {error}"
        mismatch = rederive(decision, force.evaluator, force.weights, inputs)
        if self._observer is not None:
            self._observer(
                self._journal, self._position.next_seq, self._view, decision, inputs, force
            )
        return None if mismatch is None else str(mismatch)

    def _report(self, client_seq: int, kind: str, what: str) -> None:
        self._result.add(
            Finding(self._journal.client, self._journal.client_epoch, client_seq, kind, what)
        )


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1
