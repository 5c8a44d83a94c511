"""Runs: the unit in which pages are held.

A *run* is a range of page columns that the same holders hold: the kept tree, streams whose route
passes through it, and leases that pin it. All runs form one tree. A kept run is a *node* of the
kept prompts and has a number; a run that only streams hold has none. A stream's route is the path
from the root to the run it ends in. So the hold count of a page is its run's, adopting a prompt
costs one step a run, and two books that differ only in page ids have equal runs.

A run is split when its holders are about to differ. The object keeps the *rear* part, so that
everything that hangs below keeps its parent; a new run in front of it takes the number.

In a window group the leading pages of a run may have been given back: ``pages[group]`` then holds
fewer ids than ``columns``, and those it holds are the last ones.
"""

from __future__ import annotations

from collections.abc import Iterator

NO_NUMBER = -1
NO_SLOT = -1
NEVER = -1


class Run:
    """A range of columns ``[start, start + columns)`` with the same holders throughout.

    ``holders`` counts the streams and leases whose path includes the run, ``pins`` the leases
    among them; the tree's own hold is not in it. The fields from ``number`` on matter for kept
    runs only. Whoever reads a run outside this package reads it only.
    """

    __slots__ = (
        "accesses",
        "account",
        "children",
        "columns",
        "durable",
        "holders",
        "last_access",
        "newer",
        "number",
        "older",
        "pages",
        "parent",
        "pins",
        "previous_access",
        "resumed",
        "slot",
        "start",
        "superseded",
    )

    def __init__(self, start: int, pages: list[list[int]], columns: int, parent: Run | None):
        self.start = start
        self.columns = columns
        self.pages = pages
        self.parent = parent
        self.holders = 0
        self.pins = 0
        self.number = NO_NUMBER
        self.children = 0  # kept runs directly below
        self.durable = 0  # leading columns that an acknowledged publication covers
        self.last_access = 0
        self.previous_access = NEVER
        self.accesses = 0
        self.resumed = False
        self.superseded = False
        self.account = 0  # on whose account it is kept
        self.slot = NO_SLOT  # of the snapshot at the run's end
        self.older: Run = self  # neighbours in the order of last access; itself: in no order
        self.newer: Run = self

    @property
    def end(self) -> int:
        """One past the last column."""
        return self.start + self.columns

    @property
    def kept(self) -> bool:
        """Whether the run is a node of the kept prompts (the root is one)."""
        return self.number != NO_NUMBER

    @property
    def holds(self) -> int:
        """Holds on each of the run's pages: its holders' and the tree's."""
        return self.holders + (self.number != NO_NUMBER)

    @property
    def depth_columns(self) -> int:
        """Columns of the path from the root to the run's end."""
        return self.start + self.columns

    @property
    def durable_columns(self) -> int:
        """Durable columns of that path, as far as the run itself is concerned; 0: none of its."""
        return self.start + self.durable if self.durable else 0

    @property
    def page_counts(self) -> tuple[int, ...]:
        """Pages per group."""
        return tuple([len(ids) for ids in self.pages])


def path_up(run: Run) -> Iterator[Run]:
    """The run and its ancestors, without the root."""
    while run.parent is not None:
        yield run
        run = run.parent


def path_down(run: Run) -> list[Run]:
    """The runs from below the root to ``run``."""
    path = list(path_up(run))
    path.reverse()
    return path


def ancestor_at(run: Run, columns: int) -> Run:
    """The run of the path to ``run`` that covers column ``columns - 1``; the root for 0."""
    while run.start >= columns and run.parent is not None:
        run = run.parent
    return run


def first_present(run: Run, group: int) -> int:
    """The first column from which on the path up to ``run``'s end has all pages of the group."""
    while run.parent is not None:
        present = len(run.pages[group])
        if present < run.columns:
            return run.end - present
        run = run.parent
    return 0


def split_front(run: Run, columns: int) -> Run:
    """Cut the first ``columns`` off into a new run in front; holders stay as they are.

    Numbers, order and counts of kept runs are the caller's business (kept.py).
    """
    front_pages: list[list[int]] = []
    for ids in run.pages:
        present = max(0, columns - (run.columns - len(ids)))
        front_pages.append(ids[:present])
        del ids[:present]
    front = Run(run.start, front_pages, columns, run.parent)
    front.holders = run.holders
    front.pins = run.pins
    run.parent = front
    run.start += columns
    run.columns -= columns
    return front


def join_front(run: Run, front: Run) -> None:
    """Undo a split: ``run`` takes over the columns of its parent ``front``.

    Only for runs that nobody keeps and whose users are the same.
    """
    for ids, before in zip(run.pages, front.pages, strict=True):
        ids[:0] = before
    run.start = front.start
    run.columns += front.columns
    run.parent = front.parent
