"""What a decision orders: the commands of its transaction must be what it chose."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.decision import Decision
from pagetrail.catalog.kinds.router import RequestOffered
from pagetrail.catalog.kinds.worker import (
    NodesEvicted,
    PagesAdopted,
    PagesPromised,
    PromptKept,
    RamKeepBegun,
    RequestDropped,
    StreamPreempted,
    SwapBegun,
)
from pagetrail.controlplane.policy.inputs import (
    AdmitChoice,
    AdmitOutcome,
    EvictChoice,
    KeepOrRamChoice,
    PreemptChoice,
    RouteChoice,
)
from pagetrail.controlplane.view import AdmitRecorded, KeepRecorded

_ROUTE_CHOICE = msgspec.msgpack.Decoder(RouteChoice)
_BY_DECISION = (NodesEvicted, PromptKept, RamKeepBegun, RequestOffered, SwapBegun)
ORDERED = frozenset(
    map(
        int,
        (
            KindId.NODES_EVICTED,
            KindId.PROMPT_KEPT,
            KindId.RAM_KEEP_BEGUN,
            KindId.REQUEST_OFFERED,
            KindId.STREAM_PREEMPTED,
            KindId.SWAP_BEGUN,
        ),
    )
)
"""Commands that only a decision may order: in its own transaction, or named as the cause by one
that ends what the decision began (form.py)."""


def ordered_commands(
    decided: tuple[KindId, Decision] | None, commands: list[msgspec.Struct]
) -> Iterator[str]:
    """What in a transaction's commands is not what its decision ordered."""
    if decided is None:
        for command in commands:
            if isinstance(command, _BY_DECISION):
                yield f"{type(command).__name__} follows from no decision"
        return
    kind, decision = decided
    check = _ORDERS.get(kind)
    if check is not None:
        yield from check(decision, commands)


def _offer_ordered(decision: Decision, commands: list[msgspec.Struct]) -> Iterator[str]:
    choice = _ROUTE_CHOICE.decode(decision.choice)
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
    # A choice of the evaluators that know no RAM is read with none.
    choice = msgspec.msgpack.decode(decision.choice, type=KeepOrRamChoice)
    recorded = msgspec.msgpack.decode(decision.recorded, type=KeepRecorded)
    for command in commands:
        if isinstance(command, PromptKept) and (
            not choice.keep
            or (command.stream, command.node, command.shared, command.columns)
            != (decision.subject, recorded.node, recorded.shared, choice.columns)
        ):
            yield "the keep is not the one that was decided"
    copied = [(one.stream, one.columns) for one in commands if isinstance(one, RamKeepBegun)]
    if copied != ([(decision.subject, choice.ram_columns)] if choice.ram_columns else []):
        yield "the keep to host memory is not the one that was decided"


def _preemption_ordered(decision: Decision, commands: list[msgspec.Struct]) -> Iterator[str]:
    choice = msgspec.msgpack.decode(decision.choice, type=PreemptChoice)
    ordered = [
        SwapBegun(stream) if swap else StreamPreempted(stream, False)
        for stream, swap in choice.victims
    ]
    if [one for one in commands if isinstance(one, SwapBegun | StreamPreempted)] != ordered:
        yield f"the streams that give way are not {choice.victims}, which was decided"


_ORDERS: dict[KindId, Callable[[Decision, list[msgspec.Struct]], Iterator[str]]] = {
    KindId.ROUTE: _offer_ordered,
    KindId.ADMIT: _admission_ordered,
    KindId.EVICT: _eviction_ordered,
    KindId.KEEP: _keep_ordered,
    KindId.PREEMPT: _preemption_ordered,
}
