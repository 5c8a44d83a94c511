"""The order of last access: kept nodes by (last access, number), oldest first.

Owns one circular linked list through the runs. It holds because a touch stamps the number of the
command being applied, which is the largest yet: touched nodes go to the end, and nothing else
ever moves. Each step costs the same at ten nodes and at a million.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from .runs import Run


class AccessOrder:
    """The list; its ends are one run of its own that is no node."""

    __slots__ = ("_ends",)

    def __init__(self) -> None:
        self._ends = Run(0, [], 0, None)

    def __iter__(self) -> Iterator[Run]:
        """Oldest first, lazily; the nodes must not change meanwhile."""
        run = self._ends.newer
        while run is not self._ends:
            yield run
            run = run.newer

    def append(self, run: Run) -> None:
        """Put a node that is in no order at the end; its stamp is the newest."""
        self._link(self._ends.older, run)

    def remove(self, run: Run) -> None:
        """Take a node out."""
        run.older.newer = run.newer
        run.newer.older = run.older
        run.older = run.newer = run

    def to_end(self, runs: Iterable[Run]) -> None:
        """Nodes that one command stamped go to the end, in order of number."""
        for run in sorted(runs, key=_number):
            self.remove(run)
            self.append(run)

    def insert_rear(self, front: Run, rear: Run) -> None:
        """After a split: ``front`` takes the place of ``rear``, which has the newest number.

        ``rear`` follows the nodes of its stamp; those are nodes of one path.
        """
        before = rear.older
        self.remove(rear)
        self._link(before, front)
        place = front
        while place.newer is not self._ends and place.newer.last_access == rear.last_access:
            place = place.newer
        self._link(place, rear)

    @staticmethod
    def _link(before: Run, run: Run) -> None:
        run.older = before
        run.newer = before.newer
        before.newer.older = run
        before.newer = run


def _number(run: Run) -> int:
    return run.number
