"""Folding a journal and deriving every decision in it again.

Owns the comparison. For each transaction: the chain must be what decisions and keyframes cite, a
decision's inputs are rebuilt from the view, the catalog as of its position and what it recorded,
its evaluator is run, and choice, reason, tie-break, alternatives and digest are compared byte for
byte; then the commands are folded, each of which must be legal and, where a decision orders it, be
what was decided. What it is given may have been altered in any way, so whatever cannot be read or
folded is a finding, never an error of the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from pagetrail.catalog.envelope import Op, Transaction
from pagetrail.catalog.errors import CorruptionError, InvariantError
from pagetrail.catalog.facts import KINDS, KindId, Role, body_reader, decode_body
from pagetrail.catalog.kinds.decision import CITED_CHAIN_BYTES, Decision, Outcome
from pagetrail.catalog.kinds.router import RouterStarted, WorkerObserved
from pagetrail.catalog.kinds.worker import Bound, Keyframe, WorkerStarted
from pagetrail.controlplane.cluster.deciding import InForce
from pagetrail.controlplane.cluster.router_view import RouterView
from pagetrail.controlplane.journal import Journal
from pagetrail.controlplane.policy.recorder import Mismatch, rederive
from pagetrail.controlplane.policy.registry import UnknownEvaluatorError, unbind
from pagetrail.controlplane.twins import NO_TWINS, Twins, agrees
from pagetrail.controlplane.view import WorkerView

from .epochs import DECISIONS, Epoch
from .findings import FINDINGS_MAX, UNREADABLE, Finding, told
from .form import form_problems, outcome_problems
from .history import CatalogHistory
from .inputs import inputs_of
from .orders import ORDERED, ordered_commands

_ROLES: dict[int, Role] = {int(kind_id): kind.role for kind_id, kind in KINDS.items()}

_KINDS = {int(kind): kind for kind in KindId}
_NAMES = {kind: kind.name.lower() for kind in KindId}

# Plain integers: members of an enumeration are slower to look up and to compare.
_KEYFRAME = int(KindId.KEYFRAME)
_ASSERT = int(Op.ASSERT)
_READ_ALONE = {
    (kind_id, version): body_reader(kind_id)
    for kind_id, kind in KINDS.items()
    if kind.role is Role.OUTCOME or (kind.role is Role.COMMAND and kind_id not in ORDERED)
    for version in range(1, kind.version + 1)
}
"""What reads the facts that stand by themselves, as in most transactions: nothing orders them."""


@dataclass(slots=True)
class SpanResult:
    """What the check of one span found. Findings beyond the bound are only counted."""

    rederived: dict[str, int] = field(default_factory=dict)  # by kind of decision
    mismatched: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)  # could not be derived at all
    by_twin: int = 0  # decisions among the derived that a compiled twin answered for
    findings: list[Finding] = field(default_factory=list)
    findings_cut: int = 0
    unattested: int = 0  # transactions whose chain no later decision or keyframe cites
    end_chain: bytes = b""
    observed: list[tuple[int, str, int]] = field(default_factory=list)
    """(client_seq, worker, epoch) where a router first observes a worker epoch."""

    def add(self, finding: Finding) -> None:
        """Report a finding."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)
        else:
            self.findings_cut += 1


@dataclass(frozen=True, slots=True)
class Derivation:
    """A decision derived again. ``view`` is the state it was made in, and is folded on."""

    epoch: Epoch
    transaction: Transaction
    kind: KindId
    decision: Decision
    view: WorkerView | RouterView
    inputs: msgspec.Struct
    force: InForce
    mismatch: Mismatch | None


Observer = Callable[[Derivation], None]


class Folder:
    """Folds one span of a decider's journal: ``begin`` or ``resume``, then ``feed``s, then ``end``.

    A span begins with the epoch's start or with a keyframe, which also closes the span before.
    """

    def __init__(
        self,
        epoch: Epoch,
        history: CatalogHistory,
        observer: Observer | None = None,
        twins: Twins = NO_TWINS,
    ) -> None:
        self._epoch = epoch
        self._history = history
        self._observer = observer
        self._twins = twins
        self._result = SpanResult()
        self._position = Journal(epoch.client, epoch.client_epoch)
        self._commands = 0
        self._view: WorkerView | RouterView
        self._table: dict[KindId, InForce] = {}
        self._observed: set[tuple[str, int]] = set()
        self._broken_at: int | None = None  # the client_seq from which nothing is folded
        self._left = 0  # decisions from there on

    def begin(self, transaction: Transaction, encoded: msgspec.Raw) -> None:
        """Take the epoch's first transaction, its start."""
        self._position.next_seq = transaction.client_seq  # one that begins late is told elsewhere
        try:
            start = self._start()
            self._view = (
                WorkerView(start) if isinstance(start, WorkerStarted) else RouterView(start)
            )
        except UNREADABLE as error:
            self._break(transaction, error)
        else:
            self._bind(start.evaluators, report=True)
        self.feed(transaction, encoded)

    def resume(self, transaction: Transaction, encoded: msgspec.Raw) -> None:
        """Take the keyframe that the span begins with; the span before has judged it."""
        seq, epoch = transaction.client_seq, self._epoch
        self._position.next_seq = seq + 1
        try:
            start = self._start()
            wire = transaction.facts[0]
            keyframe = decode_body(wire.kind, wire.schema_v, wire.body)
            if not isinstance(keyframe, Keyframe):
                raise CorruptionError(f"transaction {seq} of {epoch.client} is no keyframe")
            self._position = Journal.after_keyframe(
                epoch.client, epoch.client_epoch, keyframe.chain, seq, encoded
            )
            self._commands = keyframe.commands
            self._view = (
                WorkerView.decode(start, keyframe.state)
                if isinstance(start, WorkerStarted)
                else RouterView.decode(start, keyframe.state)
            )
        except UNREADABLE as error:
            self._break(transaction, error)
        else:
            self._bind(start.evaluators, report=False)

    def feed(self, transaction: Transaction, encoded: msgspec.Raw) -> None:
        """Fold the next transaction."""
        seq = transaction.client_seq
        if seq != self._position.next_seq:
            expected = self._position.next_seq
            what = f"expected client_seq {expected}: something is missing or stands twice"
            self._report(seq, "transaction", what)
        if self._broken_at is None:
            try:
                self._transaction(transaction)
            except UNREADABLE as error:
                # The view is not what it was; later findings would be noise.
                self._break(transaction, error)
        kind = transaction.facts[0].kind
        if self._broken_at is not None and kind in DECISIONS:
            _count(self._result.missing, _name(transaction))
            self._left += 1
        self._position.fold(transaction, encoded)
        if kind != _KEYFRAME:
            self._result.unattested += 1

    def feed_all(self, transactions: Sequence[Transaction], encoded: Sequence[msgspec.Raw]) -> None:
        """Fold the next transactions.

        Most are commands and outcomes that stand by themselves. Nothing cites the chain between two
        of those, so it moves past a stretch of them at once.
        """
        position, first = self._position, 0
        expected = position.next_seq
        for place, transaction in enumerate(transactions):
            facts = transaction.facts
            wire = facts[0]
            read = _READ_ALONE.get((wire.kind, wire.schema_v))
            if (
                read is None
                or len(facts) > 1
                or wire.op != _ASSERT
                or transaction.client_seq != expected
                or transaction.compare_and_set
                or self._broken_at is not None
            ):
                self._pass(encoded[first:place])
                self.feed(transaction, encoded[place])
                first, expected = place + 1, position.next_seq
                continue
            expected += 1
            try:
                try:
                    body = read(wire.body)
                except msgspec.MsgspecError:
                    body = decode_body(wire.kind, wire.schema_v, wire.body)  # says what is wrong
                if type(body) is Outcome:
                    for problem in outcome_problems(self._epoch, transaction, body):
                        self._report(transaction.client_seq, "outcome", problem)
                else:
                    self._command(transaction, body)
            except UNREADABLE as error:
                self._break(transaction, error)
        self._pass(encoded[first:])

    def _pass(self, encoded: Sequence[msgspec.Raw]) -> None:
        """The chain moves past transactions that have been folded."""
        if encoded:
            self._position.fold_plain(encoded)
            self._result.unattested += len(encoded)

    def end(self) -> SpanResult:
        """What was found."""
        result = self._result
        result.end_chain = self._position.chain
        if self._broken_at is not None and self._left:
            what = f"{self._left} decisions from here on were not derived"
            self._report(self._broken_at, "span", what)
        return result

    def _start(self) -> WorkerStarted | RouterStarted:
        start = self._epoch.start
        if not isinstance(start, WorkerStarted | RouterStarted):
            raise CorruptionError(f"the first fact of {self._epoch.client} is no start fact")
        return start

    def _break(self, transaction: Transaction, error: Exception) -> None:
        self._report(transaction.client_seq, _name(transaction), told(error))
        self._broken_at = transaction.client_seq

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
                    what = f"the recorded evaluators do not hold: {told(error)}"
                    self._report(0, "evaluators", what)

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
                self._command(transaction, body)
            elif type(body) is Decision:
                kind = _KINDS[wire.kind]
                decided = decided or (kind, body)
                self._decision(transaction, kind, body)
            elif isinstance(body, Keyframe):
                self._keyframe(transaction, body)
        for problem in form_problems(self._epoch, transaction):
            self._report(transaction.client_seq, _name(transaction), problem)
        for problem in ordered_commands(decided, commands):
            self._report(transaction.client_seq, "command", problem)

    def _command(self, transaction: Transaction, command: msgspec.Struct) -> None:
        self._view.apply(command)
        self._commands += 1
        if type(command) is WorkerObserved:
            seen = (command.worker, command.worker_epoch)
            if seen not in self._observed:
                self._observed.add(seen)
                self._result.observed.append((transaction.client_seq, *seen))

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
        result, name = self._result, _NAMES[kind]
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
        if decision.chain != self._position.chain[:CITED_CHAIN_BYTES]:
            return "chain: it saw another history than the facts before it"
        try:
            inputs = inputs_of(kind, self._view, decision, self._history)
            mismatch = self._rederived(decision, force, inputs)
        except UNREADABLE as error:
            return f"inputs: {told(error)}"
        if self._observer is not None:
            self._observer(
                Derivation(
                    self._epoch, transaction, kind, decision, self._view, inputs, force, mismatch
                )
            )
        return None if mismatch is None else str(mismatch)

    def _rederived(
        self, decision: Decision, force: InForce, inputs: msgspec.Struct
    ) -> Mismatch | None:
        """Derive again. A compiled twin may only agree; anything else the evaluator decides."""
        twin = self._twins.get(force.evaluator.name)
        if twin is not None:
            answer = twin(force.weights, inputs)
            if answer is not None and agrees(answer, decision):
                self._result.by_twin += 1
                return None
        return rederive(decision, force.evaluator, force.weights, inputs)

    def _report(self, client_seq: int, kind: str, what: str) -> None:
        self._result.add(
            Finding(self._epoch.client, self._epoch.client_epoch, client_seq, kind, what)
        )


def _name(transaction: Transaction) -> str:
    kind = KINDS.get(transaction.facts[0].kind)
    return kind.name if kind is not None else f"kind {transaction.facts[0].kind}"


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1
