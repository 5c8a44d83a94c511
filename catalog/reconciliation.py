"""What the demands of a log still want, by the standing rules. Reads a replica; changes nothing.

Every demand in force is satisfied, in progress or unsatisfied, with the actions that would satisfy
it. Nothing here deletes or allows a deletion: that no demand names a node says nothing about it.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from .datalog.model import Value
from .errors import BadInputError
from .replica import Replica

_DEMANDS = """?- demand_in_force(Demand, Node, Worker, Tier, Priority),
    demand(e: Demand, demand: Id, owner: Owner, tenant: Tenant, expires_us: Expires)."""
_SATISFIED = "?- satisfied(Demand)."
_IN_PROGRESS = "?- in_progress(Demand)."
_ACTIONS = """?- action(Action, Demand, Part, _, _, _),
    part(e: Part, group: Group, shard: Shard, size_bytes: Bytes)."""
_UNPUBLISHED = "?- unpublished(Demand, Node)."
_NEWEST = "?- fact(seq: $seq, t_us: Time)."


class DemandState(Enum):
    """How far a demand is. In progress: a missing part is being copied."""

    SATISFIED = "satisfied"
    IN_PROGRESS = "in progress"
    UNSATISFIED = "unsatisfied"


class Action(msgspec.Struct, frozen=True):
    """What would help. ``copy``: a ready copy elsewhere can be read; ``capture``: a worker must
    compute the part again; ``publish``: a part that the node must have is bound to nothing yet,
    and ``part`` is -1."""

    action: str
    part: int
    group: int
    shard: int
    size_bytes: int


class DemandReport(msgspec.Struct, frozen=True):
    """One demand in force, with its actions in order of (action, group, shard)."""

    demand: str
    state: DemandState
    owner: str
    tenant: str
    priority: int
    expires_us: int
    node: int
    worker: str
    tier: int
    actions: tuple[Action, ...]


class Reconciliation(msgspec.Struct, frozen=True):
    """Demands in force at log time ``now_us`` as of a position: by falling priority, then id."""

    position: int
    now_us: int
    demands: tuple[DemandReport, ...]


def reconcile(
    replica: Replica, *, as_of: int | None = None, now_us: int | None = None
) -> Reconciliation:
    """Reconcile demands with copies as of a position (None: the replica's).

    ``now_us`` decides which demands have expired; None: the time of the newest fact seen. Raises
    BadInputError when the position is not one of the replica's, or ``now_us`` is negative.
    """
    position = replica.position if as_of is None else as_of
    if now_us is None:
        newest = replica.query(_NEWEST, {"seq": position - 1}, as_of=position)
        now_us = newest.column("Time")[0].as_py() if newest.num_rows else 0
    if now_us < 0:
        raise BadInputError(f"now_us must not be negative, not {now_us}; give a log time")
    now: dict[str, Value] = {"now_us": now_us}

    def rows(text: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = replica.query(text, now, as_of=position).to_pylist()
        return found

    satisfied = {row["Demand"] for row in rows(_SATISFIED)}
    in_progress = {row["Demand"] for row in rows(_IN_PROGRESS)}
    actions: dict[object, list[Action]] = {}
    for row in rows(_ACTIONS):
        given = {name: row[name.capitalize()] for name in ("action", "part", "group", "shard")}
        action = msgspec.convert({**given, "size_bytes": row["Bytes"]}, Action)
        actions.setdefault(row["Demand"], []).append(action)
    for row in rows(_UNPUBLISHED):
        actions.setdefault(row["Demand"], []).append(Action("publish", -1, -1, -1, 0))
    reports = []
    for row in rows(_DEMANDS):
        number = row["Demand"]
        state = DemandState.UNSATISFIED
        if number in satisfied:
            state = DemandState.SATISFIED
        elif number in in_progress:
            state = DemandState.IN_PROGRESS
        named = {
            "demand": row["Id"],
            "owner": row["Owner"],
            "tenant": row["Tenant"],
            "priority": row["Priority"],
            "expires_us": row["Expires"],
            "node": row["Node"],
            "worker": row["Worker"],
            "tier": row["Tier"],
        }
        todo = sorted(actions.get(number, []), key=lambda a: (a.action, a.group, a.shard))
        reports.append(
            msgspec.convert({**named, "state": state, "actions": tuple(todo)}, DemandReport)
        )
    reports.sort(key=lambda report: (-report.priority, report.demand))
    return Reconciliation(position, now_us, tuple(reports))
