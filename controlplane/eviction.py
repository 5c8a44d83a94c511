"""What an eviction decision reads: the oldest kept nodes of a worker's book, as plain values.

Called for every eviction, by production and by replay; written for speed, so it is one pass over
the nodes with nothing computed twice.
"""

from __future__ import annotations

import msgspec

from .pages.owner import PageOwner
from .pages.runs import Run
from .policy.inputs import EvictCandidate, EvictInputs, EvictRun
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
    need_columns, nodes_min = max(recorded.need), recorded.candidates_min
    nodes: list[Run] = []
    columns = last_access = 0
    kept_nodes, oldest = owner.kept_nodes, owner.oldest_nodes()
    if account != ALL_ACCOUNTS:
        kept_nodes = owner.kept_nodes_of(account)
        oldest = filter(lambda node: node.account == account, oldest)
    for node in oldest:
        if node.last_access != last_access and len(nodes) >= nodes_min and columns >= need_columns:
            break
        nodes.append(node)
        last_access = node.last_access
        if not node.holders:
            columns += node.columns
    recompute_ns, reload_ns = costs.column_recompute_ns, costs.column_reload_ns
    place: dict[int, int] = {}
    runs: list[EvictRun] = []
    candidates: list[EvictCandidate] = []
    for node in nodes:
        number, columns, parent = node.number, node.columns, node.parent
        own = place.get(number)
        if own is None:
            own = place[number] = len(runs)
            runs.append(_run(node))
        held: tuple[int, ...] = (own,)
        if parent is not None and parent.parent is not None:
            above = place.get(parent.number)
            if above is None:
                above = place[parent.number] = len(runs)
                runs.append(_run(parent))
            held = (own, above)
        durable = node.durable == columns
        accesses = node.accesses
        candidates.append(
            EvictCandidate(  # by position: in the order of its fields
                number,
                held,
                node.last_access,
                node.previous_access,
                accesses,
                node.start + columns,
                node.resumed,
                node.superseded,
                durable,
                node.pins > 0,
                False,
                accesses * PPM // (accesses + 3),
                columns * recompute_ns,
                columns * reload_ns if durable else 0,
                0,
                0,
            )
        )
    return EvictInputs(
        need=recorded.need,
        runs=tuple(runs),
        candidates=tuple(candidates),
        candidates_cut=kept_nodes - len(nodes),
    )


def _run(node: Run) -> EvictRun:
    """A node's run: held by the tree, by the nodes below it and by streams and leases."""
    pages = node.pages
    held = (len(pages[0]),) if len(pages) == 1 else tuple([len(ids) for ids in pages])
    return EvictRun(held, node.columns, 1 + node.children + node.holders)
