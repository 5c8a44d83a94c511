"""`pagetrail replay explain`: why a decision came out as it did, and what came of it.

Reads facts only: the journal is folded from the keyframe before, the decision derived again, and
its alternatives, inputs, causes and effects told as plain values. Owns that account; judges
nothing beyond saying whether the derivation agrees with what was recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from pagetrail.catalog.envelope import Cause, Transaction, WireFact
from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.catalog.facts import KINDS, KindId, Role, decode_body
from pagetrail.catalog.kinds.decision import Decision, Outcome
from pagetrail.catalog.kinds.router import RequestReceived
from pagetrail.catalog.kinds.worker import RequestQueued, RouteForked
from pagetrail.catalog.plain import plain
from pagetrail.controlplane.policy.outcomes import OUTCOME_TERMS

from .alternatives import Alternative, Rejected, alternatives, reason_name
from .findings import UNREADABLE
from .fold import Derivation
from .journals import EpochJournal
from .loading import Loaded

DECISIONS_MAX = 1_000
"""Most decisions that one explanation tells."""

_NAME = re.compile(r"([^/]+)/(\d+)/(\d+)")
_ROLES: dict[int, Role] = {kind_id: kind.role for kind_id, kind in KINDS.items()}


class Link(msgspec.Struct, frozen=True):
    """A transaction: its name, its place in the log, the kinds of its facts."""

    name: str  # client/epoch/client_seq
    position: int
    kinds: tuple[str, ...]


class Told(msgspec.Struct, frozen=True):
    """A fact: its kind, and its fields by name."""

    kind: str
    fields: dict[str, Any]


class OutcomeTold(msgspec.Struct, frozen=True):
    """What then happened, by the terms of the kind's outcome."""

    name: str
    position: int
    values: dict[str, int]


class Explained(msgspec.Struct, frozen=True, kw_only=True):
    """One decision."""

    name: str
    position: int
    kind: str
    subject: int
    request: str  # empty when no request is known under the subject
    evaluator: str
    weights: dict[str, Any]
    as_of: int
    chain: str
    recorded: Any
    choice: Any
    reason: str
    tie_break: int  # place of the criterion that settled it
    terms: dict[str, str]  # unit by term
    chosen: tuple[Alternative, ...]
    rejected: tuple[Rejected, ...]
    inputs: Any
    commands: tuple[Told, ...]  # facts of the same transaction
    causes: tuple[Link, ...]
    effects: tuple[Link, ...]  # transactions that name it as a cause
    outcomes: tuple[OutcomeTold, ...]
    verdict: str  # "derived again", or what does not hold


class Explanation(msgspec.Struct, frozen=True):
    """The decisions that were asked about, in the order of the log."""

    log: str
    asked: str
    decisions: tuple[Explained, ...]


@dataclass(frozen=True, slots=True)
class _Asked:
    journal: EpochJournal
    transaction: Transaction

    @property
    def cause(self) -> Cause:
        journal = self.journal
        return Cause(journal.client, journal.client_epoch, self.transaction.client_seq)


def explain(directory: Path, decision: str) -> Explanation:
    """Explain a decision of a run's log.

    ``decision`` is a transaction's name ``client/epoch/client_seq``, a position in the log, or a
    request id, which stands for every decision about that request. Raises BadInputError when it
    names none, and as ``Loaded.read`` does.
    """
    return explain_loaded(Loaded.read(directory), str(directory), decision)


def explain_loaded(loaded: Loaded, log: str, decision: str) -> Explanation:
    """Explain a decision of a log that has been read; ``log`` is its name in the explanation."""
    found = _find(loaded, decision)
    derived, findings = _derive(loaded, found)
    effects = _effects(loaded, {asked.cause for asked in found})
    requests = {
        (asked.journal.client, asked.journal.client_epoch): _requests(asked.journal)
        for asked in found
    }
    explained = [
        _explained(
            loaded,
            asked,
            requests[(asked.journal.client, asked.journal.client_epoch)],
            derived.get(asked.cause),
            findings.get(asked.cause),
            effects.get(asked.cause, []),
        )
        for asked in found
    ]
    explained.sort(key=lambda one: one.position)
    return Explanation(log, decision, tuple(explained))


# ---------------------------------------------------------------- which decisions


def _find(loaded: Loaded, decision: str) -> list[_Asked]:
    named = _NAME.fullmatch(decision)
    if named is not None:
        cause = Cause(named.group(1), int(named.group(2)), int(named.group(3)))
        found = [
            _Asked(journal, located.transaction)
            for journal in loaded.journals
            if (journal.client, journal.client_epoch) == (cause.client, cause.client_epoch)
            and (located := journal.at(cause.client_seq)) is not None
        ]
        return [_decision_of(asked, decision) for asked in found] or _none(decision)
    about = list(_about_request(loaded, decision))
    if not about and decision.isdecimal():
        about = [_decision_of(asked, decision) for asked in _at_position(loaded, int(decision))]
    if len(about) > DECISIONS_MAX:
        raise BadInputError(
            f"{decision} stands for {len(about)} decisions; name one of them, such as "
            f"{about[0].cause.client}/{about[0].cause.client_epoch}/{about[0].cause.client_seq}"
        )
    return about or _none(decision)


def _none(decision: str) -> list[_Asked]:
    raise BadInputError(
        f"the log holds no decision {decision!r}; expected client/epoch/client_seq, a position in "
        "the log, or a request id, as `pagetrail facts tail` shows them"
    )


def _decision_of(asked: _Asked, decision: str) -> _Asked:
    """The transaction itself when it decides, else the decision of its journal that it cites."""
    if _decides(asked.transaction):
        return asked
    for cause in asked.transaction.causes:
        cited = asked.journal.at(cause.client_seq)
        if cause.client != asked.journal.client or cited is None:
            continue
        if _decides(cited.transaction):
            return _Asked(asked.journal, cited.transaction)
    kind = KINDS.get(asked.transaction.facts[0].kind)
    raise BadInputError(
        f"{decision} is a {kind.name if kind is not None else 'unknown'} fact that names no "
        "decision as its cause; ask for a decision, or for the request"
    )


def _decides(transaction: Transaction) -> bool:
    return _ROLES.get(transaction.facts[0].kind) is Role.DECISION


def _at_position(loaded: Loaded, position: int) -> Iterator[_Asked]:
    for journal in loaded.journals:
        for transaction, _, first in journal.walk():
            if first <= position < first + len(transaction.facts):
                yield _Asked(journal, transaction)


def _about_request(loaded: Loaded, request: str) -> Iterator[_Asked]:
    for journal in loaded.journals:
        subjects = {number for number, name in _requests(journal).items() if name == request}
        if not subjects:
            continue
        for transaction, _, _ in journal.walk():
            decided = journal.decision(transaction.client_seq)
            if decided is not None and decided[1] in subjects:
                yield _Asked(journal, transaction)


def _requests(journal: EpochJournal) -> dict[int, str]:
    """Request ids of a journal by stream or request number."""
    found: dict[int, str] = {}
    for transaction, _, _ in journal.walk():
        for wire in transaction.facts:
            if wire.kind in (KindId.REQUEST_QUEUED, KindId.REQUEST_RECEIVED, KindId.ROUTE_FORKED):
                body = readable(wire)
                if isinstance(body, RequestQueued):
                    found[body.stream] = body.request
                elif isinstance(body, RequestReceived):
                    found[body.number] = body.request
                elif isinstance(body, RouteForked) and body.source in found:
                    found[body.stream] = found[body.source]
    return found


def _decision(transaction: Transaction) -> Decision:
    wire = transaction.facts[0]
    body = decode_body(wire.kind, wire.schema_v, wire.body)
    if not isinstance(body, Decision):
        raise BadInputError(f"transaction {transaction.client_seq} decides nothing")
    return body


# ---------------------------------------------------------------- deriving them again


def _derive(
    loaded: Loaded, found: Iterable[_Asked]
) -> tuple[dict[Cause, Derivation], dict[Cause, str]]:
    """(derivations, first finding at or before each) by the decisions' names."""
    wanted = {asked.cause for asked in found}
    derived: dict[Cause, Derivation] = {}
    told: dict[Cause, str] = {}

    def observe(seen: Derivation) -> None:
        epoch = seen.epoch
        cause = Cause(epoch.client, epoch.client_epoch, seen.transaction.client_seq)
        if cause in wanted:
            derived[cause] = seen

    for journal in loaded.journals:
        if not journal.decides:
            continue
        for first, last in journal.spans():
            inside = [
                cause
                for cause in wanted
                if (cause.client, cause.client_epoch) == (journal.client, journal.client_epoch)
                and first <= cause.client_seq - journal.first.client_seq <= last
            ]
            if inside:
                result = loaded.fold(journal, first, last, observe)
                for cause in inside:
                    before = [at for at in result.findings if at.client_seq <= cause.client_seq]
                    if before:
                        told[cause] = str(before[-1])
    return derived, told


def _effects(
    loaded: Loaded, causes: set[Cause]
) -> dict[Cause, list[tuple[EpochJournal, int, Transaction]]]:
    found: dict[Cause, list[tuple[EpochJournal, int, Transaction]]] = {}
    for journal in loaded.journals:
        for transaction, _, first in journal.walk():
            for cause in transaction.causes:
                if cause in causes:
                    found.setdefault(cause, []).append((journal, first, transaction))
    return found


# ---------------------------------------------------------------- telling them


def _explained(
    loaded: Loaded,
    asked: _Asked,
    requests: dict[int, str],
    derived: Derivation | None,
    finding: str | None,
    effects: list[tuple[EpochJournal, int, Transaction]],
) -> Explained:
    journal, transaction = asked.journal, asked.transaction
    decision = _decision(transaction)
    kind = KindId(transaction.facts[0].kind)
    name = f"{journal.client}/{journal.client_epoch}/{transaction.client_seq}"
    chosen: tuple[Alternative, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    evaluator, weights, terms = f"evaluator {decision.evaluator}", {}, {}
    recorded, choice, inputs = plain(decision.recorded), plain(decision.choice), None
    if derived is not None:
        force = derived.force
        evaluation = force.evaluator.evaluate(force.weights, derived.inputs)
        chosen, rejected = alternatives(force.evaluator, derived.inputs, evaluation)
        evaluator, weights = force.evaluator.name, plain(force.weights)
        terms = {term.name: term.unit for term in force.evaluator.terms}
        choice, inputs = plain(_typed(decision.choice, evaluation.choice)), plain(derived.inputs)
    return Explained(
        name=name,
        position=_position(journal, transaction),
        kind=kind.name.lower(),
        subject=decision.subject,
        request=requests.get(decision.subject, ""),
        evaluator=evaluator,
        weights=weights,
        as_of=decision.as_of,
        chain=decision.chain.hex(),
        recorded=recorded,
        choice=choice,
        reason=reason_name(kind, decision.reason),
        tie_break=decision.tie_break,
        terms=terms,
        chosen=chosen,
        rejected=rejected,
        inputs=inputs,
        commands=tuple(_told(wire) for wire in transaction.facts[1:]),
        causes=tuple(_links(loaded, transaction.causes)),
        effects=tuple(_link(other, first, cited) for other, first, cited in effects),
        outcomes=tuple(_outcomes(effects)),
        verdict=_verdict(derived, finding),
    )


def _position(journal: EpochJournal, transaction: Transaction) -> int:
    located = journal.at(transaction.client_seq)
    return located.position if located is not None else -1


def _verdict(derived: Derivation | None, finding: str | None) -> str:
    if derived is not None and derived.mismatch is not None:
        return str(derived.mismatch)
    if derived is not None and finding is None:
        return "derived again"
    return finding or "not derived: what comes before it does not hold"


def _links(loaded: Loaded, causes: Iterable[Cause]) -> Iterator[Link]:
    for cause in causes:
        for journal in loaded.journals:
            if (journal.client, journal.client_epoch) == (cause.client, cause.client_epoch):
                located = journal.at(cause.client_seq)
                if located is not None:
                    yield _link(journal, located.position, located.transaction)


def _link(journal: EpochJournal, first: int, transaction: Transaction) -> Link:
    name = f"{journal.client}/{journal.client_epoch}/{transaction.client_seq}"
    return Link(name, first, tuple(_kind_name(wire.kind) for wire in transaction.facts))


def _outcomes(effects: Iterable[tuple[EpochJournal, int, Transaction]]) -> Iterator[OutcomeTold]:
    for journal, first, transaction in effects:
        wire = transaction.facts[0]
        if wire.kind != KindId.OUTCOME:
            continue
        body = readable(wire)
        if isinstance(body, Outcome):
            terms = OUTCOME_TERMS.get(KindId(body.decision_kind), ())
            names = [f"{term.name} ({term.unit})" for term in terms]
            name = f"{journal.client}/{journal.client_epoch}/{transaction.client_seq}"
            yield OutcomeTold(name, first, dict(zip(names, body.values, strict=False)))


def _told(wire: WireFact) -> Told:
    body = readable(wire)
    return Told(
        _kind_name(wire.kind),
        {"body": plain(bytes(wire.body))} if body is None else plain(body),
    )


def readable(wire: WireFact) -> msgspec.Struct | None:
    """A fact's own fields; None when this build cannot read them, which verify reports."""
    try:
        return decode_body(wire.kind, wire.schema_v, wire.body)
    except PagetrailError:
        return None


def _kind_name(kind_id: int) -> str:
    kind = KINDS.get(kind_id)
    return kind.name if kind is not None else f"kind {kind_id}"


def _typed(stored: msgspec.Raw, derived: msgspec.Struct) -> object:
    try:
        return msgspec.msgpack.decode(stored, type=type(derived))
    except UNREADABLE:
        return stored
