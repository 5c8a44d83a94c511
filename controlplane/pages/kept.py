"""The radix store of kept prompts: which runs stay, in which order they were used.

Owns the nodes' numbers, the order of last access, and the sums that policies read: kept columns
and what could be reclaimed. It knows shapes only; what tokens a column holds is the content
index's matter (index.py). It never decides what to evict.

A node's users hold its ancestors too. So the nodes without users are closed downwards, all of
them can be peeled off leaf by leaf, and the reclaimable pages are the sum of their pages: a
count that one user's coming and going changes by the runs of its path.

Touching a node touches its ancestors, so no node was accessed later than its parent.
"""

from __future__ import annotations

from typing import Protocol

from pagetrail.catalog.errors import BadInputError

from .order import AccessOrder
from .runs import NEVER, Run, path_up, split_front


class KeptObserver(Protocol):
    """Who must hear how nodes change (the content index)."""

    def node_split(self, node: int, columns: int, rear: int) -> None:
        """``node`` now ends after its first ``columns``; node ``rear`` is the rest."""

    def node_cut(self, node: int, columns: int) -> None:
        """``node`` has only its first ``columns`` left; 0: it is gone."""


class KeptTree:
    """All nodes. The mutating methods expect what owner.py has checked."""

    __slots__ = (
        "columns",
        "idle",
        "kept",
        "next_number",
        "nodes",
        "nodes_of",
        "observer",
        "order",
        "root",
    )

    def __init__(self, groups: int, accounts: int) -> None:
        self.root = Run(0, [[] for _ in range(groups)], 0, None)
        self.root.number = 0
        self.nodes: dict[int, Run] = {0: self.root}
        self.next_number = 1
        self.columns = 0
        # Per account and group: pages of its nodes, and those of them without users.
        self.kept = [[0] * groups for _ in range(accounts)]
        self.idle = [[0] * groups for _ in range(accounts)]
        self.nodes_of = [0] * accounts
        self.order = AccessOrder()
        self.observer: KeptObserver | None = None

    def __len__(self) -> int:
        """Nodes, without the root."""
        return len(self.nodes) - 1

    def node(self, number: int) -> Run:
        """A node by number. Raises BadInputError when it is not, or no longer, kept."""
        run = self.nodes.get(number)
        if run is None:
            raise BadInputError(
                f"node {number} is not kept (the next number is {self.next_number}); look the "
                "prompt up again"
            )
        return run

    def locate(self, number: int, columns: int) -> Run:
        """The node, when a path of ``columns`` columns ends inside it; 0 columns: the root.

        Raises BadInputError otherwise.
        """
        run = self.node(number)
        if columns == 0 and number == 0:
            return run
        if not run.start < columns <= run.end:
            raise BadInputError(
                f"a path of {columns} columns does not end inside node {number}, which covers "
                f"columns {run.start} to {run.end}; look the prompt up again"
            )
        return run

    # ------------------------------------------------------------ holders

    def count_idle(self, run: Run, sign: int) -> None:
        """A node has lost its last user (1), or got its first (-1)."""
        idle = self.idle[run.account]
        for group, ids in enumerate(run.pages):
            idle[group] += sign * len(ids)

    def reclaimable(self) -> tuple[int, ...]:
        """Pages per group of all nodes without users."""
        if len(self.idle) == 1:
            return tuple(self.idle[0])
        return tuple([sum(pages) for pages in zip(*self.idle, strict=True)])

    # ------------------------------------------------------------ access

    def touch(self, end: Run, now: int) -> None:
        """A request reuses the path to ``end``: command number ``now``."""
        path = list(path_up(end))
        for run in path:
            run.previous_access = run.last_access
            run.last_access = now
            run.accesses += 1
            run.resumed = True
        self.order.to_end(path)

    def refresh(self, end: Run, now: int) -> None:
        """The request that holds the path is still using it; no further access is counted."""
        path = list(path_up(end))
        for run in path:
            run.last_access = now
        self.order.to_end(path)

    # ------------------------------------------------------------ shape

    def split_at(self, run: Run, columns: int) -> Run:
        """The node that ends exactly at the path's ``columns``, inside ``run``; split if needed.

        The front part keeps the number, the rear part takes the next one.
        """
        if columns == run.end:
            return run
        front = split_front(run, columns - run.start)
        front.number, run.number = run.number, self.next_number
        self.next_number += 1
        self.nodes[front.number] = front
        self.nodes[run.number] = run
        front.children = 1
        front.durable = min(run.durable, front.columns)
        run.durable -= front.durable
        front.last_access = run.last_access
        front.previous_access = run.previous_access
        front.accesses = run.accesses
        front.resumed = run.resumed
        front.superseded = run.superseded
        front.account = run.account
        self.nodes_of[run.account] += 1
        self.order.insert_rear(front, run)
        if self.observer is not None:
            self.observer.node_split(front.number, front.columns, run.number)
        return front

    def keep(self, run: Run, now: int, account: int) -> None:
        """A run that only streams held becomes a node below its parent, which is one."""
        parent = run.parent
        run.number = self.next_number
        self.next_number += 1
        self.nodes[run.number] = run
        if parent is not None:
            parent.children += 1
        run.last_access = now
        run.previous_access = NEVER
        run.accesses = 1
        run.account = account
        self.order.append(run)
        self.columns += run.columns
        self.count_kept(run)

    def count_kept(self, run: Run) -> None:
        """A run has become a node: its account's counts."""
        self.nodes_of[run.account] += 1
        kept = self.kept[run.account]
        for group, ids in enumerate(run.pages):
            kept[group] += len(ids)

    def cut(self, run: Run, columns: int) -> list[list[int]]:
        """Take ``columns`` off the tail of a leaf without users; the freed pages per group."""
        left = run.columns - columns
        kept, idle = self.kept[run.account], self.idle[run.account]
        freed = []
        for group, ids in enumerate(run.pages):
            present = max(0, left - (run.columns - len(ids)))
            freed.append(ids[present:])
            del ids[present:]
            kept[group] -= len(freed[group])
            idle[group] -= len(freed[group])
        run.columns = left
        run.durable = min(run.durable, left)
        self.columns -= columns
        if left == 0:
            del self.nodes[run.number]
            self.nodes_of[run.account] -= 1
            self.order.remove(run)
            if run.parent is not None:
                run.parent.children -= 1
        if self.observer is not None:
            self.observer.node_cut(run.number, left)
        return freed

    def mark_durable(self, run: Run, columns: int) -> None:
        """An acknowledged publication covers the path's first ``columns``, ending in ``run``."""
        covered = columns - run.start
        while run.durable < covered:
            run.durable = covered
            if run.parent is None:
                break
            run = run.parent
            covered = run.columns
