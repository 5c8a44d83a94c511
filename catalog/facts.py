"""The table of all kinds of fact: ids, versions, structs, what they name, who may read them.

Owns the encoding of bodies. Fields are only ever added at a struct's end, with a default, and
raise the kind's version; a reader that meets a newer version, or an unknown kind, stops and says
so, because ignoring a fact would falsify every view built after it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from .envelope import Op, WireFact
from .errors import BadInputError, CorruptionError, UnknownKindError
from .kinds import content, decision, router, system, worker


class KindId(IntEnum):
    """Numbers on the wire; never reused."""

    REFUSED = 1
    WRITER_EPOCH_STARTED = 2

    MODEL = 16
    LAYOUT = 17
    NODE = 18
    PART = 19
    COPY = 20
    DEMAND = 21
    RETENTION_LEASE = 22
    RETENTION_ROOT = 23
    TENANT = 24
    WORKER_EPOCH = 25
    REUSE = 26
    LAYOUT_PART = 27

    WORKER_STARTED = 64
    KEYFRAME = 65
    REQUEST_QUEUED = 66
    REQUEST_DROPPED = 67
    PAGES_ADOPTED = 68
    ADOPTION_UNDONE = 69
    PAGES_PROMISED = 70
    NODES_EVICTED = 71
    ROWS_ADVANCED = 72
    ROWS_RESTORED = 73
    ROUTE_FORKED = 74
    PROMPT_KEPT = 75
    STREAM_FINISHED = 76
    NODE_DURABLE = 77
    MEASURED = 78
    STREAM_PREEMPTED = 79
    PAGES_PINNED = 80
    PAGES_UNPINNED = 81
    MARK_ARMED = 82
    MARK_DISARMED = 83
    SNAPSHOT_DROPPED = 84
    COPY_KEPT = 85
    COPY_RESTORED = 86
    COPIES_DROPPED = 87
    RAM_KEEP_BEGUN = 88
    RAM_KEEP_ENDED = 89
    SWAP_RELEASED = 90
    SWAP_BEGUN = 91

    ROUTER_STARTED = 96
    WORKER_OBSERVED = 97
    WORKER_EXPIRED = 98
    REQUEST_RECEIVED = 99
    REQUEST_OFFERED = 100
    OFFER_ANSWERED = 101
    ATTEMPT_ENDED = 102
    REQUEST_CLOSED = 103
    REQUEST_EXTENDED = 104

    ROUTE = 128
    ADMIT = 129
    EVICT = 130
    RESTORE = 131
    CHECKPOINT = 132
    PREEMPT = 133
    RESUME = 134
    KEEP = 135
    PLACE = 136
    TUNE = 137
    OUTCOME = 144


class Role(IntEnum):
    """What a fact is to a view."""

    SYSTEM = 0  # the writer's own
    CATALOG = 1  # projected into replicas and the index
    JOURNAL = 2  # starts, keyframes: the frame of a client's journal
    COMMAND = 3  # folded into a view and into its chain
    DECISION = 4
    OUTCOME = 5


@dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table.

    ``entity`` names the body's fields that identify what the fact speaks of; for catalog kinds a
    later fact about the same entity replaces the earlier one. ``policy_visible`` says whether an
    evaluator may read it (through a view or the catalog).
    """

    id: KindId
    name: str
    version: int
    struct: type[msgspec.Struct]
    role: Role
    entity: tuple[str, ...]
    policy_visible: bool


def _table() -> dict[int, Kind]:
    rows: list[tuple[KindId, type[msgspec.Struct], Role, tuple[str, ...]]] = [
        (KindId.REFUSED, system.Refused, Role.SYSTEM, ()),
        (KindId.WRITER_EPOCH_STARTED, system.WriterEpochStarted, Role.SYSTEM, ("writer_epoch",)),
        (KindId.MODEL, content.Model, Role.CATALOG, ("fingerprint",)),
        (KindId.LAYOUT, content.Layout, Role.CATALOG, ("layout_digest",)),
        (KindId.NODE, content.Node, Role.CATALOG, ("node_id",)),
        (KindId.PART, content.Part, Role.CATALOG, ("part_id",)),
        (KindId.COPY, content.Copy, Role.CATALOG, ("part_id", "worker", "tier")),
        (KindId.DEMAND, content.Demand, Role.CATALOG, ("demand",)),
        (KindId.RETENTION_LEASE, content.RetentionLease, Role.CATALOG, ("lease",)),
        (KindId.RETENTION_ROOT, content.RetentionRoot, Role.CATALOG, ("name",)),
        (KindId.TENANT, content.Tenant, Role.CATALOG, ("tenant",)),
        (KindId.WORKER_EPOCH, content.WorkerEpoch, Role.CATALOG, ("worker",)),
        (KindId.REUSE, content.Reuse, Role.CATALOG, ("node_id", "worker")),
        (
            KindId.LAYOUT_PART,
            content.LayoutPart,
            Role.CATALOG,
            ("layout_digest", "group", "shard"),
        ),
        (KindId.WORKER_STARTED, worker.WorkerStarted, Role.JOURNAL, ("worker", "worker_epoch")),
        (KindId.KEYFRAME, worker.Keyframe, Role.JOURNAL, ()),
        (KindId.REQUEST_QUEUED, worker.RequestQueued, Role.COMMAND, ("stream",)),
        (KindId.REQUEST_DROPPED, worker.RequestDropped, Role.COMMAND, ("stream",)),
        (KindId.PAGES_ADOPTED, worker.PagesAdopted, Role.COMMAND, ("stream",)),
        (KindId.ADOPTION_UNDONE, worker.AdoptionUndone, Role.COMMAND, ("stream",)),
        (KindId.PAGES_PROMISED, worker.PagesPromised, Role.COMMAND, ("stream",)),
        (KindId.NODES_EVICTED, worker.NodesEvicted, Role.COMMAND, ()),
        (KindId.ROWS_ADVANCED, worker.RowsAdvanced, Role.COMMAND, ()),
        (KindId.ROWS_RESTORED, worker.RowsRestored, Role.COMMAND, ("stream",)),
        (KindId.ROUTE_FORKED, worker.RouteForked, Role.COMMAND, ("stream",)),
        (KindId.PROMPT_KEPT, worker.PromptKept, Role.COMMAND, ("stream",)),
        (KindId.STREAM_FINISHED, worker.StreamFinished, Role.COMMAND, ("stream",)),
        (KindId.NODE_DURABLE, worker.NodeDurable, Role.COMMAND, ("node",)),
        (KindId.MEASURED, worker.Measured, Role.COMMAND, ("metric",)),
        (KindId.STREAM_PREEMPTED, worker.StreamPreempted, Role.COMMAND, ("stream",)),
        (KindId.PAGES_PINNED, worker.PagesPinned, Role.COMMAND, ("lease",)),
        (KindId.PAGES_UNPINNED, worker.PagesUnpinned, Role.COMMAND, ("lease",)),
        (KindId.MARK_ARMED, worker.MarkArmed, Role.COMMAND, ("stream",)),
        (KindId.MARK_DISARMED, worker.MarkDisarmed, Role.COMMAND, ("stream",)),
        (KindId.SNAPSHOT_DROPPED, worker.SnapshotDropped, Role.COMMAND, ("node",)),
        (KindId.COPY_KEPT, worker.CopyKept, Role.COMMAND, ("stream",)),
        (KindId.COPY_RESTORED, worker.CopyRestored, Role.COMMAND, ("stream",)),
        (KindId.COPIES_DROPPED, worker.CopiesDropped, Role.COMMAND, ()),
        (KindId.RAM_KEEP_BEGUN, worker.RamKeepBegun, Role.COMMAND, ("lease",)),
        (KindId.RAM_KEEP_ENDED, worker.RamKeepEnded, Role.COMMAND, ("lease",)),
        (KindId.SWAP_RELEASED, worker.SwapReleased, Role.COMMAND, ("stream",)),
        (KindId.SWAP_BEGUN, worker.SwapBegun, Role.COMMAND, ("stream",)),
        (KindId.ROUTER_STARTED, router.RouterStarted, Role.JOURNAL, ("router", "router_epoch")),
        (KindId.WORKER_OBSERVED, router.WorkerObserved, Role.COMMAND, ("worker",)),
        (KindId.WORKER_EXPIRED, router.WorkerExpired, Role.COMMAND, ("worker",)),
        (KindId.REQUEST_RECEIVED, router.RequestReceived, Role.COMMAND, ("number",)),
        (KindId.REQUEST_OFFERED, router.RequestOffered, Role.COMMAND, ("number",)),
        (KindId.OFFER_ANSWERED, router.OfferAnswered, Role.COMMAND, ("number",)),
        (KindId.ATTEMPT_ENDED, router.AttemptEnded, Role.COMMAND, ("number",)),
        (KindId.REQUEST_CLOSED, router.RequestClosed, Role.COMMAND, ("number",)),
        (KindId.REQUEST_EXTENDED, router.RequestExtended, Role.COMMAND, ("number",)),
    ]
    decisions = (
        KindId.ROUTE,
        KindId.ADMIT,
        KindId.EVICT,
        KindId.RESTORE,
        KindId.CHECKPOINT,
        KindId.PREEMPT,
        KindId.RESUME,
        KindId.KEEP,
        KindId.PLACE,
        KindId.TUNE,
    )
    rows += [(kind, decision.Decision, Role.DECISION, ("subject",)) for kind in decisions]
    rows += [(KindId.OUTCOME, decision.Outcome, Role.OUTCOME, ("subject",))]
    return {
        int(kind): Kind(
            id=kind,
            name=kind.name.lower(),
            version=_VERSIONS.get(kind, 1),
            struct=struct,
            role=role,
            entity=entity,
            policy_visible=role in (Role.CATALOG, Role.COMMAND, Role.JOURNAL),
        )
        for kind, struct, role, entity in rows
    }


# Kinds whose struct has gained fields since its first version.
_VERSIONS: dict[KindId, int] = {KindId.WORKER_STARTED: 2, KindId.PAGES_ADOPTED: 2}

KINDS: dict[int, Kind] = _table()
KIND_OF_NAME: dict[str, Kind] = {kind.name: kind for kind in KINDS.values()}
DECISION_KINDS: tuple[KindId, ...] = tuple(
    kind.id for kind in KINDS.values() if kind.role is Role.DECISION
)

_KIND_OF_STRUCT: dict[type[msgspec.Struct], Kind] = {
    kind.struct: kind for kind in KINDS.values() if kind.role is not Role.DECISION
}
_DECODERS: dict[int, msgspec.msgpack.Decoder[msgspec.Struct]] = {
    kind_id: msgspec.msgpack.Decoder(kind.struct) for kind_id, kind in KINDS.items()
}
_ENCODER = msgspec.msgpack.Encoder()


def encode_body(body: msgspec.Struct) -> bytes:
    """The deterministic bytes of a fact's own fields."""
    return _ENCODER.encode(body)


def fact(body: msgspec.Struct, *, op: Op = Op.ASSERT) -> WireFact:
    """Wrap a body for sending; its kind follows from its struct (decisions: ``decision_fact``)."""
    kind = _KIND_OF_STRUCT.get(type(body))
    if kind is None:
        raise BadInputError(f"{type(body).__name__} is no kind of fact; see docs/facts.md")
    return WireFact(op, kind.id, kind.version, msgspec.Raw(_ENCODER.encode(body)))


def decision_fact(kind: KindId, body: decision.Decision) -> WireFact:
    """Wrap a decision of the given kind for sending."""
    if KINDS[kind].role is not Role.DECISION:
        raise BadInputError(f"{kind.name} is not a kind of decision")
    return WireFact(Op.ASSERT, kind, KINDS[kind].version, msgspec.Raw(_ENCODER.encode(body)))


def body_reader(kind_id: int) -> Callable[[bytes | msgspec.Raw], msgspec.Struct]:
    """What reads bodies of a kind that is known, for who reads many of them.

    It takes every version up to the kind's own, and raises msgspec.MsgspecError for other bytes.
    """
    return _DECODERS[kind_id].decode


def decode_body(kind_id: int, schema_v: int, body: bytes | msgspec.Raw) -> msgspec.Struct:
    """Read a fact's own fields.

    Raises UnknownKindError for a kind or version this build does not know, CorruptionError when
    the bytes are not of the kind's form.
    """
    kind = KINDS.get(kind_id)
    if kind is None:
        raise UnknownKindError(
            f"fact kind {kind_id} is unknown to this build; read the log with a newer pagetrail"
        )
    if not 1 <= schema_v <= kind.version:
        raise UnknownKindError(
            f"{kind.name} facts of version {schema_v} are unknown to this build (it knows up to "
            f"{kind.version}); read the log with a newer pagetrail"
        )
    try:
        return _DECODERS[kind_id].decode(body)
    except msgspec.MsgspecError as error:
        raise CorruptionError(
            f"a {kind.name} fact does not have its kind's form: {error}"
        ) from error
