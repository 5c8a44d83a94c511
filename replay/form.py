"""The form that a decider's transactions have, apart from what they say.

Production writes journals in one form only; a transaction of another form was not written by it,
even where no fact after it vouches for its bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pagetrail.catalog.envelope import Op, Transaction
from pagetrail.catalog.facts import KINDS, KindId, Role, decode_body
from pagetrail.catalog.kinds.decision import Outcome
from pagetrail.catalog.kinds.router import RouterStarted
from pagetrail.catalog.kinds.worker import WorkerStarted

from .epochs import DECISIONS, Epoch

_ASSERT = int(Op.ASSERT)  # a plain integer: members of an enumeration compare slower
_ROLES: dict[int, Role] = {kind_id: kind.role for kind_id, kind in KINDS.items()}


def form_problems(epoch: Epoch, transaction: Transaction) -> Iterator[str]:
    """What about a transaction is not as production writes it.

    Raises PagetrailError when a fact cannot be read at all.
    """
    facts = transaction.facts
    for index, wire in enumerate(facts):
        if wire.op != _ASSERT and _ROLES.get(wire.kind) not in (Role.CATALOG, Role.SYSTEM):
            yield "a journal's facts are only ever asserted; this one is retracted"
        if index and wire.kind in DECISIONS:
            yield "a decision is not the first fact of its transaction"
    check = _CHECKS.get(facts[0].kind)
    if check is not None:
        yield from check(epoch, transaction)


def _keyframe_problems(epoch: Epoch, transaction: Transaction) -> Iterator[str]:
    if len(transaction.facts) > 1 or transaction.causes or transaction.compare_and_set:
        yield "a keyframe stands alone, without causes or preconditions"


def _start_problems(epoch: Epoch, transaction: Transaction) -> Iterator[str]:
    wire = transaction.facts[0]
    body = decode_body(wire.kind, wire.schema_v, wire.body)
    if transaction.client_seq != epoch.first.client_seq:
        yield "an epoch starts once, with its first transaction"
    if len(transaction.facts) > 1 or transaction.causes or transaction.compare_and_set:
        yield "a start stands alone, without causes or preconditions"
    if isinstance(body, WorkerStarted):
        named = (body.worker, body.worker_epoch)
    elif isinstance(body, RouterStarted):
        named = (body.router, body.router_epoch)
    else:
        return
    if named != (epoch.client, epoch.client_epoch):
        yield f"it starts {named[0]} epoch {named[1]} in another's journal"


def _preempted_problems(epoch: Epoch, transaction: Transaction) -> Iterator[str]:
    """A preemption by itself ends a swap: its cause is the decision that began it."""
    cause = transaction.causes[0] if transaction.causes else None
    known = cause is not None and (cause.client, cause.client_epoch) == (
        epoch.client,
        epoch.client_epoch,
    )
    decision = epoch.decision(cause.client_seq) if cause is not None and known else None
    if decision is None or decision[0] != KindId.PREEMPT:
        yield "a preemption follows from no decision"


def _outcome_problems(epoch: Epoch, transaction: Transaction) -> Iterator[str]:
    wire = transaction.facts[0]
    outcome = decode_body(wire.kind, wire.schema_v, wire.body)
    if isinstance(outcome, Outcome):
        yield from outcome_problems(epoch, transaction, outcome)


def outcome_problems(epoch: Epoch, transaction: Transaction, outcome: Outcome) -> Iterator[str]:
    """What about a transaction that begins with an outcome is not as production writes it."""
    cause = transaction.causes[0] if transaction.causes else None
    if cause is None or (cause.client, cause.client_epoch) != (
        epoch.client,
        epoch.client_epoch,
    ):
        yield "an outcome's first cause is its decision; it names none of this journal"
        return
    if cause.client_seq >= transaction.client_seq or epoch.decision(cause.client_seq) != (
        outcome.decision_kind,
        outcome.subject,
    ):
        yield f"transaction {cause.client_seq} is not the decision that this outcome answers"


_CHECKS: dict[int, Callable[[Epoch, Transaction], Iterator[str]]] = {
    int(KindId.WORKER_STARTED): _start_problems,
    int(KindId.ROUTER_STARTED): _start_problems,
    int(KindId.KEYFRAME): _keyframe_problems,
    int(KindId.OUTCOME): _outcome_problems,
    int(KindId.STREAM_PREEMPTED): _preempted_problems,
}
