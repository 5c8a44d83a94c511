"""Routes and leases: who holds runs besides the kept tree.

A route is a stream's page tables: the path from the root to its last run, its rows, and what it
may still take. A lease pins runs while their bytes are read (a capture, a transfer).

What a live engine has written ahead of the book is here too: pages in flight, rows that are
committed but not yet advanced by a command. None of it is part of the state.
"""

from __future__ import annotations

from .runs import NEVER, Run


class Ahead:
    """What a route has taken and written since its rows were last advanced.

    ``pages[group]`` are ids of consecutive columns from ``first_column`` on. ``copied``: the first
    of them is a copy of the route's last column, which has another holder.
    """

    __slots__ = ("committed_rows", "copied", "first_column", "pages", "pending_rows", "ticket")

    def __init__(self, first_column: int, copied: bool, groups: int) -> None:
        self.first_column = first_column
        self.copied = copied
        self.pages: list[list[int]] = [[] for _ in range(groups)]
        self.committed_rows = 0
        self.pending_rows = 0
        self.ticket = 0


class Route:
    """A stream's place in the tree of runs. Read-only outside this package."""

    __slots__ = (
        "account",
        "adopted_columns",
        "adopted_rows",
        "ahead",
        "dirty_from",
        "end",
        "marks",
        "promised",
        "rows",
        "stream",
    )

    def __init__(self, stream: int, end: Run, rows: int, groups: int, account: int = 0) -> None:
        self.stream = stream
        self.account = account  # on whom its own pages are charged, and what it keeps
        self.end = end
        self.rows = rows
        self.adopted_columns = end.end
        self.adopted_rows = rows
        self.promised = [0] * groups
        self.marks: dict[int, int] = {}  # column of an armed mark -> its snapshot slot
        self.ahead: Ahead | None = None
        self.dirty_from = 0  # first column whose page ids the device's table may not have

    @property
    def columns(self) -> int:
        """Columns the route covers; the last may be partly filled."""
        return self.end.end


class Copy:
    """A prompt kept in pages of its own; in a window group the last ones only."""

    __slots__ = (
        "accesses",
        "columns",
        "last_access",
        "number",
        "pages",
        "previous_access",
        "resumed",
        "rows",
        "superseded",
    )

    def __init__(
        self, number: int, rows: int, columns: int, pages: list[list[int]], now: int
    ) -> None:
        self.number = number
        self.rows = rows
        self.columns = columns
        self.pages = pages
        self.last_access = now
        self.previous_access = NEVER
        self.accesses = 1
        self.resumed = False
        self.superseded = False


class Lease:
    """Runs that are being read. The list is closed towards the root, and only grows by splits.

    ``ram_columns``: columns that are on their way to host memory; 0: another reader.
    """

    __slots__ = ("number", "ram_columns", "runs")

    def __init__(self, number: int, runs: list[Run], ram_columns: int = 0) -> None:
        self.number = number
        self.runs = runs
        self.ram_columns = ram_columns
