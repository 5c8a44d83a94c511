"""What a decision orders: the commands of its transaction must be what it chose."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from pagetrail.catalog.envelope import Op, WireFact
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.decision import Decision
from pagetrail.catalog.kinds.router import RequestOffered
from pagetrail.catalog.kinds.worker import (
    NodesEvicted,
    PagesAdopted,
    PagesPromised,
    PromptKept,
    RequestDropped,
)
from pagetrail.controlplane.policy.inputs import (
    AdmitChoice,
    AdmitOutcome,
    EvictChoice,
    KeepChoice,
    RouteChoice,
)
from pagetrail.controlplane.view import AdmitRecorded, KeepRecorded


def is_plain(wire: WireFact) -> bool:
    """Whether a command may stand by itself, and is stated in the only form that commands have."""
    return wire.op == Op.ASSERT and wire.kind not in _ORDERED


def ordered_commands(
    decided: tuple[KindId, Decision] | None, commands: list[msgspec.Struct]
) -> Iterator[str]:
    """What in a transaction's commands is not what its decision ordered."""
    if decided is None:
        for command in commands:
            if isinstance(command, NodesEvicted | PromptKept | RequestOffered):  # as _ORDERED
                yield f"{type(command).__name__} follows from no decision"
        return
    kind, decision = decided
    check = _ORDERS.get(kind)
    if check is not None:
        yield from check(decision, commands)


def _offer_ordered(decision: Decision, commands: list[msgspec.Struct]) -> Iterator[str]:
    choice = msgspec.msgpack.decode(decision.choice, type=RouteChoice)
    offers = [command for command in commands if isinstance(command, RequestOffered)]
    chosen = [(choice.worker, choice.worker_epoch)] if choice.worker else []
    if [(offer.worker, offer.worker_epoch) for offer in offers] != chosen:
        yield f"the offers do not go to the chosen worker {choice.worker!r}"


def _admission_ordered(decision: Decision, commands: list[msgspec.Struct]) -> Iterator[str]:
    choice = msgspec.msgpack.decode(decision.choice, type=AdmitChoice)
    recorded = msgspec.msgpack.decode(decision.recorded, type=AdmitRecorded)
    adopted = [command for command in commands if isinstance(command, PagesAdopted)]
    dropped = [command for command in commands if isinstance(command, RequestDropped)]
    admits = choice.outcome == AdmitOutcome.ADMIT
    match = [(decision.subject, recorded.node, recorded.columns)] if admits else []
    if [(command.stream, command.node, command.columns) for command in adopted] != match:
        yield "the adoption is not the one that was decided"
    if bool(dropped) != (choice.outcome == AdmitOutcome.REFUSE):
        yield "the refusal is not the one that was decided"
    for command in commands:
        if isinstance(command, PagesPromised) and command.pages != choice.promise:
            yield f"promises {command.pages} pages, decided were {choice.promise}"


def _eviction_ordered(decision: Decision, commands: list[msgspec.Struct]) -> Iterator[str]:
    choice = msgspec.msgpack.decode(decision.choice, type=EvictChoice)
    evicted = [command.victims for command in commands if isinstance(command, NodesEvicted)]
    if evicted != ([choice.victims] if choice.victims else []):
        yield f"evicts {evicted}, decided was {choice.victims}"


def _keep_ordered(decision: Decision, commands: list[msgspec.Struct]) -> Iterator[str]:
    choice = msgspec.msgpack.decode(decision.choice, type=KeepChoice)
    recorded = msgspec.msgpack.decode(decision.recorded, type=KeepRecorded)
    for command in commands:
        if isinstance(command, PromptKept) and (
            not choice.keep
            or (command.stream, command.node, command.shared, command.columns)
            != (decision.subject, recorded.node, recorded.shared, choice.columns)
        ):
            yield "the keep is not the one that was decided"


_ORDERED = frozenset({KindId.NODES_EVICTED, KindId.PROMPT_KEPT, KindId.REQUEST_OFFERED})
_ORDERS: dict[KindId, Callable[[Decision, list[msgspec.Struct]], Iterator[str]]] = {
    KindId.ROUTE: _offer_ordered,
    KindId.ADMIT: _admission_ordered,
    KindId.EVICT: _eviction_ordered,
    KindId.KEEP: _keep_ordered,
}
