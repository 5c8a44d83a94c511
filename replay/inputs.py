"""From a recorded decision back to its complete inputs, and forward to the commands it orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.index import Entry
from pagetrail.catalog.kinds.decision import Decision
from pagetrail.catalog.kinds.router import RequestOffered
from pagetrail.catalog.kinds.worker import (
    NodesEvicted,
    PagesAdopted,
    PagesPromised,
    PromptKept,
    RequestDropped,
)
from pagetrail.controlplane.cluster.router_view import RouteRecorded, RouterView
from pagetrail.controlplane.lookup import PrefixLookup, rebuild
from pagetrail.controlplane.policy.inputs import (
    AdmitChoice,
    AdmitOutcome,
    EvictChoice,
    KeepChoice,
    RouteChoice,
)
from pagetrail.controlplane.view import (
    AdmitRecorded,
    CheckpointRecorded,
    EvictRecorded,
    KeepRecorded,
    RestoreRecorded,
    WorkerView,
)

from .history import CatalogAt, CatalogHistory

Builder = Callable[[Any, Decision, CatalogHistory], msgspec.Struct]


def inputs_of(
    kind: KindId, view: WorkerView | RouterView, decision: Decision, history: CatalogHistory
) -> msgspec.Struct:
    """The inputs a decision was made from, by the functions that production used.

    Raises PagetrailError when they cannot have been: the subject is not there, or the catalog as
    of the decision's position does not answer the recorded look-up so.
    """
    return _BUILDERS[kind](view, decision, history)


def ordered_commands(
    decided: tuple[KindId, Decision] | None, commands: list[msgspec.Struct]
) -> Iterator[str]:
    """What in a transaction's commands is not what its decision ordered."""
    if decided is None:
        for command in commands:
            if isinstance(command, NodesEvicted | PromptKept | RequestOffered):
                yield f"{type(command).__name__} follows from no decision"
        return
    kind, decision = decided
    check = _ORDERS.get(kind)
    if check is not None:
        yield from check(decision, commands)


# ---------------------------------------------------------------- inputs


def _entries(
    view: WorkerView | RouterView, lookup: PrefixLookup, decision: Decision, history: CatalogHistory
) -> tuple[CatalogAt, tuple[Entry, ...]]:
    catalog = history.at(decision.as_of)
    root = view.root_of(decision.subject)
    return catalog, rebuild(catalog, view.start.fingerprint, root, lookup)


def _route(view: RouterView, decision: Decision, history: CatalogHistory) -> msgspec.Struct:
    recorded = msgspec.msgpack.decode(decision.recorded, type=RouteRecorded)
    catalog, entries = _entries(view, recorded.lookup, decision, history)
    return view.route_inputs(decision.subject, recorded, catalog, entries)


def _admit(view: WorkerView, decision: Decision, history: CatalogHistory) -> msgspec.Struct:
    recorded = msgspec.msgpack.decode(decision.recorded, type=AdmitRecorded)
    catalog, entries = _entries(view, recorded.lookup, decision, history)
    return view.admit_inputs(decision.subject, recorded, catalog, entries)


def _evict(view: WorkerView, decision: Decision, history: CatalogHistory) -> msgspec.Struct:
    return view.evict_inputs(msgspec.msgpack.decode(decision.recorded, type=EvictRecorded))


def _restore(view: WorkerView, decision: Decision, history: CatalogHistory) -> msgspec.Struct:
    recorded = msgspec.msgpack.decode(decision.recorded, type=RestoreRecorded)
    catalog, entries = _entries(view, recorded.lookup, decision, history)
    return view.restore_inputs(decision.subject, catalog, entries)


def _checkpoint(view: WorkerView, decision: Decision, history: CatalogHistory) -> msgspec.Struct:
    recorded = msgspec.msgpack.decode(decision.recorded, type=CheckpointRecorded)
    catalog, entries = _entries(view, recorded.lookup, decision, history)
    return view.checkpoint_inputs(decision.subject, recorded, catalog, entries)


def _keep(view: WorkerView, decision: Decision, history: CatalogHistory) -> msgspec.Struct:
    return view.keep_inputs(msgspec.msgpack.decode(decision.recorded, type=KeepRecorded))


def _unsupported(view: Any, decision: Decision, history: CatalogHistory) -> msgspec.Struct:
    raise BadInputError("this build makes no decisions of this kind")


_BUILDERS: dict[KindId, Builder] = {
    KindId.ROUTE: _route,
    KindId.ADMIT: _admit,
    KindId.EVICT: _evict,
    KindId.RESTORE: _restore,
    KindId.CHECKPOINT: _checkpoint,
    KindId.KEEP: _keep,
    KindId.PREEMPT: _unsupported,
    KindId.RESUME: _unsupported,
    KindId.PLACE: _unsupported,
    KindId.TUNE: _unsupported,
}


# ---------------------------------------------------------------- orders


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


_ORDERS: dict[KindId, Callable[[Decision, list[msgspec.Struct]], Iterator[str]]] = {
    KindId.ROUTE: _offer_ordered,
    KindId.ADMIT: _admission_ordered,
    KindId.EVICT: _eviction_ordered,
    KindId.KEEP: _keep_ordered,
}
