"""The form that a decider's transactions have, apart from what they say.

Production writes journals in one form only; a transaction of another form was not written by it,
even where no fact after it vouches for its bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from pagetrail.catalog.envelope import Cause, Op, Transaction
from pagetrail.catalog.facts import KINDS, KindId, Role, decode_body
from pagetrail.catalog.kinds.decision import Decision, Outcome
from pagetrail.catalog.kinds.router import RouterStarted
from pagetrail.catalog.kinds.worker import WorkerStarted

from .journals import STARTS, EpochJournal

_ROLES: dict[int, Role] = {kind_id: kind.role for kind_id, kind in KINDS.items()}


def form_problems(journal: EpochJournal, transaction: Transaction) -> Iterator[str]:
    """What about a transaction is not as production writes it.

    Raises PagetrailError when a fact cannot be read at all.
    """
    facts = transaction.facts
    for index, wire in enumerate(facts):
        role = _ROLES.get(wire.kind)
        if role is Role.CATALOG or role is Role.SYSTEM:
            continue
        if wire.op != Op.ASSERT:
            yield "a journal's facts are only ever asserted; this one is retracted"
        if index and role is Role.DECISION:
            yield "a decision is not the first fact of its transaction"
    kind = facts[0].kind
    if kind in STARTS:
        yield from _start_problems(journal, transaction)
    elif kind == KindId.KEYFRAME:
        if len(facts) > 1 or transaction.causes or transaction.compare_and_set:
            yield "a keyframe stands alone, without causes or preconditions"
    elif kind == KindId.OUTCOME:
        yield from _outcome_problems(journal, transaction)


def _start_problems(journal: EpochJournal, transaction: Transaction) -> Iterator[str]:
    wire = transaction.facts[0]
    body = decode_body(wire.kind, wire.schema_v, wire.body)
    if transaction is not journal.transactions[0]:
        yield "an epoch starts once, with its first transaction"
    if len(transaction.facts) > 1 or transaction.causes or transaction.compare_and_set:
        yield "a start stands alone, without causes or preconditions"
    if isinstance(body, WorkerStarted):
        named = (body.worker, body.worker_epoch)
    elif isinstance(body, RouterStarted):
        named = (body.router, body.router_epoch)
    else:
        return
    if named != (journal.client, journal.client_epoch):
        yield f"it starts {named[0]} epoch {named[1]} in another's journal"


def _outcome_problems(journal: EpochJournal, transaction: Transaction) -> Iterator[str]:
    wire = transaction.facts[0]
    outcome = decode_body(wire.kind, wire.schema_v, wire.body)
    if not isinstance(outcome, Outcome):
        return
    cause = transaction.causes[0] if transaction.causes else None
    if cause is None or (cause.client, cause.client_epoch) != (
        journal.client,
        journal.client_epoch,
    ):
        yield "an outcome's first cause is its decision; it names none of this journal"
        return
    answered = journal.at(cause.client_seq)
    decision = None
    if answered is not None and cause.client_seq < transaction.client_seq:
        first = answered.facts[0]
        if first.kind == outcome.decision_kind:
            decision = decode_body(first.kind, first.schema_v, first.body)
    if not isinstance(decision, Decision) or decision.subject != outcome.subject:
        yield f"transaction {cause.client_seq} is not the decision that this outcome answers"


def unknown_causes(
    journal: EpochJournal, known: dict[tuple[str, int], EpochJournal]
) -> Iterator[tuple[int, Cause]]:
    """(client_seq, cause) of causes that the log does not hold."""
    for transaction in journal.transactions:
        for cause in transaction.causes:
            other = known.get((cause.client, cause.client_epoch))
            if other is None or other.at(cause.client_seq) is None:
                yield transaction.client_seq, cause
