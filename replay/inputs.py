"""From a recorded decision back to its complete inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.index import Entry
from pagetrail.catalog.kinds.decision import Decision
from pagetrail.controlplane.cluster.router_view import RouteRecorded, RouterView
from pagetrail.controlplane.eviction import EvictRecorded
from pagetrail.controlplane.lookup import PrefixLookup, rebuild
from pagetrail.controlplane.preempting import PreemptRecorded
from pagetrail.controlplane.view import (
    AdmitRecorded,
    CheckpointRecorded,
    KeepRecorded,
    RestoreRecorded,
    WorkerView,
)

from .history import CatalogAt, CatalogHistory

_ROUTE_RECORDED = msgspec.msgpack.Decoder(RouteRecorded)
_ADMIT_RECORDED = msgspec.msgpack.Decoder(AdmitRecorded)
_EVICT_RECORDED = msgspec.msgpack.Decoder(EvictRecorded)
_RESTORE_RECORDED = msgspec.msgpack.Decoder(RestoreRecorded)
_CHECKPOINT_RECORDED = msgspec.msgpack.Decoder(CheckpointRecorded)
_KEEP_RECORDED = msgspec.msgpack.Decoder(KeepRecorded)
_PREEMPT_RECORDED = msgspec.msgpack.Decoder(PreemptRecorded)

Builder = Callable[[Any, Decision, CatalogHistory], msgspec.Struct]


def inputs_of(
    kind: KindId, view: WorkerView | RouterView, decision: Decision, history: CatalogHistory
) -> msgspec.Struct:
    """The inputs a decision was made from, by the functions that production used.

    Raises PagetrailError when they cannot have been: the subject is not there, or the catalog as
    of the decision's position does not answer the recorded look-up so.
    """
    return _BUILDERS[kind](view, decision, history)


def recorded_lookup(kind: KindId, decision: Decision) -> PrefixLookup | None:
    """The catalog look-up that a decision recorded; None when its kind makes none.

    Raises PagetrailError or msgspec.MsgspecError as ``inputs_of`` does.
    """
    recorded_type = _WITH_LOOKUP.get(kind)
    if recorded_type is None:
        return None
    lookup: PrefixLookup = msgspec.msgpack.decode(decision.recorded, type=recorded_type).lookup
    return lookup


def _entries(
    view: WorkerView | RouterView, lookup: PrefixLookup, decision: Decision, history: CatalogHistory
) -> tuple[CatalogAt, tuple[Entry, ...]]:
    catalog = history.at(decision.as_of)
    root = view.root_of(decision.subject)
    return catalog, rebuild(catalog, view.start.fingerprint, root, lookup)


def _route(view: RouterView, decision: Decision, history: CatalogHistory) -> msgspec.Struct:
    recorded = _ROUTE_RECORDED.decode(decision.recorded)
    catalog, entries = _entries(view, recorded.lookup, decision, history)
    return view.route_inputs(decision.subject, recorded, catalog, entries)


def _admit(view: WorkerView, decision: Decision, history: CatalogHistory) -> msgspec.Struct:
    recorded = _ADMIT_RECORDED.decode(decision.recorded)
    catalog, entries = _entries(view, recorded.lookup, decision, history)
    return view.admit_inputs(decision.subject, recorded, catalog, entries)


def _evict(view: WorkerView, decision: Decision, history: CatalogHistory) -> msgspec.Struct:
    recorded = _EVICT_RECORDED.decode(decision.recorded)
    return view.evict_inputs(decision.subject, recorded)


def _restore(view: WorkerView, decision: Decision, history: CatalogHistory) -> msgspec.Struct:
    recorded = _RESTORE_RECORDED.decode(decision.recorded)
    catalog, entries = _entries(view, recorded.lookup, decision, history)
    return view.restore_inputs(decision.subject, recorded, catalog, entries)


def _checkpoint(view: WorkerView, decision: Decision, history: CatalogHistory) -> msgspec.Struct:
    recorded = _CHECKPOINT_RECORDED.decode(decision.recorded)
    catalog, entries = _entries(view, recorded.lookup, decision, history)
    return view.checkpoint_inputs(decision.subject, recorded, catalog, entries)


def _keep(view: WorkerView, decision: Decision, history: CatalogHistory) -> msgspec.Struct:
    return view.keep_inputs(_KEEP_RECORDED.decode(decision.recorded))


def _preempt(view: WorkerView, decision: Decision, history: CatalogHistory) -> msgspec.Struct:
    recorded = _PREEMPT_RECORDED.decode(decision.recorded)
    return view.preempt_inputs(decision.subject, recorded)


def _unsupported(view: Any, decision: Decision, history: CatalogHistory) -> msgspec.Struct:
    raise BadInputError("this build makes no decisions of this kind")


_BUILDERS: dict[KindId, Builder] = {
    KindId.ROUTE: _route,
    KindId.ADMIT: _admit,
    KindId.EVICT: _evict,
    KindId.RESTORE: _restore,
    KindId.CHECKPOINT: _checkpoint,
    KindId.KEEP: _keep,
    KindId.PREEMPT: _preempt,
    KindId.RESUME: _restore,
    KindId.PLACE: _unsupported,
    KindId.TUNE: _unsupported,
}

_WITH_LOOKUP: dict[KindId, Any] = {
    KindId.ROUTE: RouteRecorded,
    KindId.ADMIT: AdmitRecorded,
    KindId.RESTORE: RestoreRecorded,
    KindId.RESUME: RestoreRecorded,
    KindId.CHECKPOINT: CheckpointRecorded,
}
