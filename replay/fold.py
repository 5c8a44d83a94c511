"""Folding one span of a journal and deriving every decision in it again.

Owns the comparison. For each transaction: the chain must be what decisions and keyframes cite, a
decision's inputs are rebuilt from the view, the catalog as of its position and what it recorded,
its evaluator is run, and choice, reason, tie-break, alternatives and digest are compared byte for
byte; then the commands are folded, each of which must be legal and, where a decision orders it, be
what was decided. What it is given may have been altered in any way, so whatever cannot be read or
folded is a finding, never an error of the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import msgspec

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.errors import CorruptionError, InvariantError, PagetrailError
from pagetrail.catalog.facts import KINDS, KindId, Role, decode_body
from pagetrail.catalog.kinds.decision import Decision
from pagetrail.catalog.kinds.router import RouterStarted
from pagetrail.catalog.kinds.worker import Bound, Keyframe, WorkerStarted
from pagetrail.controlplane.cluster.deciding import InForce
from pagetrail.controlplane.cluster.router_view import RouterView
from pagetrail.controlplane.journal import Journal
from pagetrail.controlplane.policy.recorder import Mismatch, rederive
from pagetrail.controlplane.policy.registry import UnknownEvaluatorError, unbind
from pagetrail.controlplane.view import WorkerView

from .form import form_problems
from .history import CatalogHistory
from .inputs import inputs_of
from .journals import EpochJournal
from .orders import is_plain, ordered_commands

FINDINGS_MAX = 1_000

UNREADABLE = (
    PagetrailError,
    msgspec.MsgspecError,
    ArithmeticError,
    LookupError,
    TypeError,
    ValueError,
    MemoryError,
)
"""What code may raise over records that are not what production wrote."""

_ROLES: dict[int, Role] = {kind_id: kind.role for kind_id, kind in KINDS.items()}


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
    missing: dict[str, int] = field(default_factory=dict)  # could not be derived at all
    findings: list[Finding] = field(default_factory=list)
    findings_cut: int = 0
    unattested: int = 0  # transactions whose chain no later decision or keyframe cites
    end_chain: bytes = b""

    def add(self, finding: Finding) -> None:
        """Report a finding."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.findings_cut += 1


@dataclass(frozen=True, slots=True)
class Derivation:
    """A decision derived again. ``view`` is the state it was made in, and is folded on."""

    journal: EpochJournal
    transaction: Transaction
    kind: KindId
    decision: Decision
    view: WorkerView | RouterView
    inputs: msgspec.Struct
    force: InForce
    mismatch: Mismatch | None


Observer = Callable[[Derivation], None]


class Folder:
    """Folds one span of a decider's journal."""

    def __init__(
        self, journal: EpochJournal, history: CatalogHistory, observer: Observer | None = None
    ) -> None:
        self._journal = journal
        self._history = history
        self._observer = observer
        self._result = SpanResult()
        self._position = Journal(journal.client, journal.client_epoch)
        self._commands = 0
        self._view: WorkerView | RouterView
        self._table: dict[KindId, InForce] = {}

    def run(self, first: int, last: int) -> SpanResult:
        """Fold the transactions at places ``first`` to ``last``, both included."""
        result = self._result
        transactions = self._journal.transactions
        folding = self._begin(first, last)
        for place in range(first, last + 1):
            transaction = transactions[place]
            if transaction.client_seq != self._position.next_seq:
                self._report(
                    transaction.client_seq,
                    "transaction",
                    f"expected client_seq {self._position.next_seq}: something is missing or "
                    "stands twice",
                )
            if folding and (place != first or not first):
                try:
                    self._transaction(transaction)
                except UNREADABLE as error:
                    self._report(transaction.client_seq, _name(transaction), _told(error))
                    folding = False  # the view is not what it was; later findings would be noise
                    self._give_up(transaction.client_seq, transactions[place : last + 1])
            self._position.fold(transaction)
            if transaction.facts[0].kind != KindId.KEYFRAME:
                result.unattested += 1
        result.end_chain = self._position.chain
        return result

    def _begin(self, first: int, last: int) -> bool:
        """Build the view the span starts from; False when that cannot be done."""
        seq = self._journal.transactions[first].client_seq
        try:
            start = self._journal.start
            if not isinstance(start, WorkerStarted | RouterStarted):
                raise CorruptionError(f"the first fact of {self._journal.client} is no start fact")
            if first:
                self._restore(start, first)
            else:
                self._view = (
                    WorkerView(start) if isinstance(start, WorkerStarted) else RouterView(start)
                )
        except UNREADABLE as error:
            self._report(seq, _name(self._journal.transactions[first]), _told(error))
            self._give_up(seq, self._journal.transactions[first : last + 1])
            return False
        self._bind(start.evaluators, report=not first)
        return True

    def _bind(self, bound: Iterable[Bound], *, report: bool) -> None:
        """Put the recorded evaluators in force; those that cannot be are reported once an epoch."""
        for place, row in enumerate(bound):
            try:
                kind = KindId(row.decision_kind)
                if kind in self._table:
                    raise InvariantError(f"two evaluators are bound for {kind.name.lower()}")
                self._table[kind] = InForce(place, *unbind(row))
            except UnknownEvaluatorError as error:
                if report:
                    self._report(0, "evaluators", str(error))
            except UNREADABLE as error:
                if report:
                    self._report(
                        0, "evaluators", f"the recorded evaluators do not hold: {_told(error)}"
                    )

    def _restore(self, start: WorkerStarted | RouterStarted, place: int) -> None:
        keyframe = self._journal.keyframe(place)
        transaction = self._journal.transactions[place]
        self._position = Journal(
            self._journal.client,
            self._journal.client_epoch,
            next_seq=transaction.client_seq,
            chain=keyframe.chain,
        )
        self._commands = keyframe.commands
        self._view = (
            WorkerView.decode(start, keyframe.state)
            if isinstance(start, WorkerStarted)
            else RouterView.decode(start, keyframe.state)
        )

    def _transaction(self, transaction: Transaction) -> None:
        decided: tuple[KindId, Decision] | None = None
        commands: list[msgspec.Struct] = []
        for wire in transaction.facts:
            role = _ROLES.get(wire.kind)
            if role is Role.CATALOG:
                continue  # the catalog's history has read it
            body = decode_body(wire.kind, wire.schema_v, wire.body)
            if role is Role.COMMAND:
                commands.append(body)
                self._view.apply(body)
                self._commands += 1
            elif isinstance(body, Decision):
                kind = KindId(wire.kind)
                decided = decided or (kind, body)
                self._decision(transaction, kind, body)
            elif isinstance(body, Keyframe):
                self._keyframe(transaction, body)
        if len(commands) == 1 and len(transaction.facts) == 1 and is_plain(transaction.facts[0]):
            return  # a command by itself, as most transactions are: nothing orders it
        for problem in form_problems(self._journal, transaction):
            self._report(transaction.client_seq, _name(transaction), problem)
        for problem in ordered_commands(decided, commands):
            self._report(transaction.client_seq, "command", problem)

    def _keyframe(self, transaction: Transaction, keyframe: Keyframe) -> None:
        seq = transaction.client_seq
        if keyframe.chain != self._position.chain:
            self._report(seq, "keyframe", "its chain is not that of the facts before it")
        if keyframe.commands != self._commands:
            self._report(
                seq, "keyframe", f"counts {keyframe.commands} commands, folded {self._commands}"
            )
        if keyframe.state != self._view.encode():
            self._report(seq, "keyframe", "its view is not the fold of the facts before it")
        self._result.unattested = 0

    def _decision(self, transaction: Transaction, kind: KindId, decision: Decision) -> None:
        result, name = self._result, kind.name.lower()
        force = self._table.get(kind)
        if force is None:
            _count(result.missing, name)
            self._report(transaction.client_seq, name, "no evaluator of this build is bound to it")
            return
        result.unattested = 0
        problem = self._problem(transaction, kind, decision, force)
        if problem is None:
            _count(result.rederived, name)
        else:
            _count(result.mismatched, name)
            self._report(transaction.client_seq, name, problem)

    def _problem(
        self, transaction: Transaction, kind: KindId, decision: Decision, force: InForce
    ) -> str | None:
        if decision.evaluator != force.place:
            return f"names evaluator {decision.evaluator}, in force is {force.place}"
        if decision.chain != self._position.chain:
            return "chain: it saw another history than the facts before it"
        try:
            inputs = inputs_of(kind, self._view, decision, self._history)
            mismatch = rederive(decision, force.evaluator, force.weights, inputs)
        except UNREADABLE as error:
            return f"inputs: {_told(error)}"
        if self._observer is not None:
            self._observer(
                Derivation(
                    self._journal, transaction, kind, decision, self._view, inputs, force, mismatch
                )
            )
        return None if mismatch is None else str(mismatch)

    def _give_up(self, client_seq: int, rest: Iterable[Transaction]) -> None:
        """Count the decisions that stand in what is no longer folded."""
        left = 0
        for transaction in rest:
            if _ROLES.get(transaction.facts[0].kind) is Role.DECISION:
                _count(self._result.missing, _name(transaction))
                left += 1
        if left:
            self._report(client_seq, "span", f"{left} decisions from here on were not derived")

    def _report(self, client_seq: int, kind: str, what: str) -> None:
        self._result.add(
            Finding(self._journal.client, self._journal.client_epoch, client_seq, kind, what)
        )


def _name(transaction: Transaction) -> str:
    kind = KINDS.get(transaction.facts[0].kind)
    return kind.name if kind is not None else f"kind {transaction.facts[0].kind}"


def _told(error: Exception) -> str:
    if isinstance(error, PagetrailError | msgspec.MsgspecError):
        return str(error)
    return f"it cannot be folded ({type(error).__name__}: {error})"


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1
