"""What an eviction decision reads: the oldest kept nodes of a worker's book, as plain values.

Called for every eviction, by production and by replay; written for speed: column by column, and
what is alike for all nodes is worked out once.
"""

from __future__ import annotations

from itertools import islice

import msgspec

from .pages.owner import PageOwner
from .pages.runs import Run
from .policy.inputs import EvictInputs
from .policy.types import PPM

EVICT_CANDIDATES_MIN = 64
ALL_ACCOUNTS = -1


class EvictRecorded(msgspec.Struct, frozen=True, array_like=True):
    """How far an eviction looked: at least so many of the oldest kept nodes.

    ``passed``: accounts that were asked before and could give nothing.
    """

    need: tuple[int, ...]
    candidates_min: int
    passed: tuple[int, ...] = ()


class KeepCosts(msgspec.Struct, frozen=True, array_like=True):
    """What one lost page column costs to get back."""

    column_recompute_ns: int
    column_reload_ns: int


def reuse_ppm(accesses: int) -> int:
    """Expected chance of another reuse after ``accesses`` touches, the first keep included.

    A count with a prior of one success in four: ``accesses / (accesses + 3)``.
    """
    return accesses * PPM // (accesses + 3)


def evict_inputs(
    owner: PageOwner, costs: KeepCosts, recorded: EvictRecorded, account: int = ALL_ACCOUNTS
) -> EvictInputs:
    """The complete inputs of an eviction: the oldest kept nodes of an account, enough for the need.

    Nodes come in order of (last access, number). The list ends at the first change of last access
    after it holds ``candidates_min`` nodes and, in columns that no stream holds, the need: every
    node left out was touched later than every node in it.
    """
    nodes, left_out = _oldest(owner, recorded, account)
    none, no = (0,) * len(nodes), (False,) * len(nodes)
    widths = tuple([node.columns for node in nodes])
    accesses = [node.accesses for node in nodes]
    durable = _durable_of(nodes, widths)
    recompute_ns, reload_ns = costs.column_recompute_ns, costs.column_reload_ns
    further_runs, others = _parents_of(nodes)
    runs = [*nodes, *others] if others else nodes
    users = [run.holders for run in runs]
    run_columns = widths + tuple([run.columns for run in others])
    return EvictInputs(
        need=recorded.need,
        run_pages=tuple(
            [
                tuple([len(run.pages[group]) for run in runs])
                if group in owner.windows
                else run_columns
                for group in range(len(owner.total()))
            ]
        ),
        run_columns=run_columns,
        # Held by the tree, by the nodes below it and by streams and leases.
        run_holders=tuple([1 + run.children + held for run, held in zip(runs, users, strict=True)])
        if any(users)
        else tuple([1 + run.children for run in runs]),
        entries=tuple([node.number for node in nodes]),
        own_runs=tuple(range(len(nodes))),
        further_runs=further_runs,
        last_access=tuple([node.last_access for node in nodes]),
        previous_access=tuple([node.previous_access for node in nodes]),
        accesses=tuple(accesses),
        depth_columns=tuple([node.start + node.columns for node in nodes])
        if any(further_runs)
        else widths,  # all begin at the root
        resumed=tuple([node.resumed for node in nodes]),
        superseded=tuple([node.superseded for node in nodes]),
        durable=durable,
        pinned=tuple([node.pins > 0 for node in nodes]) if any(users) else no,  # leases are users
        dirty=no,
        reuse_ppm=_reuse_ppm_of(accesses),
        recompute_ns=tuple([width * recompute_ns for width in widths]),
        reload_ns=none
        if durable == no
        else tuple([width * reload_ns * safe for width, safe in zip(widths, durable, strict=True)]),
        sharing_ns=none,
        slo_ns=none,
        entries_cut=left_out,
    )


def _oldest(owner: PageOwner, recorded: EvictRecorded, account: int) -> tuple[list[Run], int]:
    """The nodes that an eviction looks at, and how many of the account's it leaves out."""
    need_columns, nodes_min = max(recorded.need), recorded.candidates_min
    kept_nodes, oldest = owner.kept_nodes, owner.oldest_nodes()
    if account != ALL_ACCOUNTS:
        kept_nodes = owner.kept_nodes_of(account)
        oldest = filter(lambda node: node.account == account, oldest)
    nodes = list(islice(oldest, nodes_min))
    columns = sum([node.columns for node in nodes if not node.holders])
    last_access = nodes[-1].last_access if nodes else 0
    for node in oldest:
        if node.last_access != last_access and columns >= need_columns:
            break
        nodes.append(node)
        last_access = node.last_access
        if not node.holders:
            columns += node.columns
    return nodes, kept_nodes - len(nodes)


def _durable_of(nodes: list[Run], widths: tuple[int, ...]) -> tuple[bool, ...]:
    covered = [node.durable for node in nodes]
    if not any(covered):
        return (False,) * len(nodes)
    return tuple(map(int.__eq__, covered, widths))


def _reuse_ppm_of(accesses: list[int]) -> tuple[int, ...]:
    if not accesses or accesses.count(accesses[0]) < len(accesses):
        return tuple([count * PPM // (count + 3) for count in accesses])
    return (reuse_ppm(accesses[0]),) * len(accesses)


def _parents_of(nodes: list[Run]) -> tuple[tuple[tuple[int, ...], ...], list[Run]]:
    """Per node the place of its parent's run, after the nodes' own, and those that are not theirs.

    The root is nobody's.
    """
    if all(above is None or above.parent is None for above in {node.parent for node in nodes}):
        return ((),) * len(nodes), []
    place = {node.number: number for number, node in enumerate(nodes)}
    others: list[Run] = []
    further: list[tuple[int, ...]] = []
    for node in nodes:
        above = node.parent
        if above is None or above.parent is None:
            further.append(())
            continue
        if above.number not in place:
            place[above.number] = len(place)
            others.append(above)
        further.append((place[above.number],))
    return tuple(further), others
