"""Everything a page owner remembers, and the few moves that all operations share.

Owns the composition of pools, kept tree, routes and leases. The operations themselves are plain
functions over it (beginning.py, growing.py, keeping.py, pinning.py), listed in commands.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.worker import PoolSpec

from .book import Pool
from .kept import KeptTree
from .routes import Copy, Lease, Route
from .runs import NO_NUMBER, Run, first_present, path_down, path_up, split_front

GROUPS_MAX = 64
PAGE_TOKENS_MAX = 65_536
ACCOUNTS_MAX = 4_096


@dataclass(frozen=True, slots=True)
class Shape:
    """What a page owner is built from."""

    pools: tuple[PoolSpec, ...]
    page_tokens: int
    verify_rows: int
    kept_columns_max: int
    kept_nodes_max: int
    snap_slots: int = 0
    accounts: int = 1

    def __post_init__(self) -> None:
        if not 1 <= len(self.pools) <= GROUPS_MAX:
            raise BadInputError(
                f"a page owner has 1 to {GROUPS_MAX} pools, not {len(self.pools)}; "
                "give one PoolSpec per layout group"
            )
        if not 1 <= self.page_tokens <= PAGE_TOKENS_MAX:
            raise BadInputError(
                f"page_tokens must be 1 to {PAGE_TOKENS_MAX}, not {self.page_tokens}"
            )
        for pool in self.pools:
            if pool.window_tokens != 0 and pool.window_tokens < 2:
                raise BadInputError(
                    f"group {pool.name!r} attends a window of {pool.window_tokens} rows; a window "
                    "has at least 2, and 0 means all rows"
                )
        if not 1 <= self.accounts <= ACCOUNTS_MAX:
            raise BadInputError(
                f"pages are charged to 1 to {ACCOUNTS_MAX} accounts, not {self.accounts}"
            )
        for name in ("verify_rows", "kept_columns_max", "kept_nodes_max", "snap_slots"):
            if getattr(self, name) < 0:
                raise BadInputError(f"{name} must not be negative, not {getattr(self, name)}")

    def floor_column(self, group: int, rows: int) -> int:
        """The first column whose page the group still needs when the next row is ``rows``.

        The next token of a window group reads rows ``[max(0, rows - window + 1), rows)``.
        """
        window = self.pools[group].window_tokens
        if window == 0:
            return 0
        return max(0, rows - window + 1) // self.page_tokens


class Books:
    """The state of a page owner. Mutated only by the operations that commands.py lists."""

    __slots__ = (
        "ahead",
        "commands",
        "copied_columns",
        "copies",
        "leases",
        "next_copy",
        "pools",
        "routes",
        "shape",
        "slots",
        "tickets",
        "tree",
        "windows",
    )

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.pools = [Pool(pool.pages) for pool in shape.pools]
        self.tree = KeptTree(len(shape.pools), shape.accounts)
        self.routes: dict[int, Route] = {}
        self.leases: dict[int, Lease] = {}
        self.copies: dict[int, Copy] = {}  # in order of last access
        self.copied_columns = 0
        self.next_copy = 1
        self.slots = Pool(shape.snap_slots) if shape.snap_slots else None
        # Live matters, no part of the state: routes with pages in flight, appends reserved so far.
        self.ahead: dict[int, Route] = {}
        self.tickets = 0
        self.commands = 0  # applied so far; while one is applied, its own number
        self.windows = tuple(
            group for group, pool in enumerate(shape.pools) if pool.window_tokens != 0
        )

    def route(self, stream: int) -> Route:
        """A stream's route. Raises BadInputError when the stream has none."""
        route = self.routes.get(stream)
        if route is None:
            raise BadInputError(
                f"stream {stream} holds no route; it must adopt (maybe no) pages first, and it "
                "leaves once"
            )
        return route

    def settled_route(self, stream: int) -> Route:
        """A stream's route, when no row of it waits to be advanced. Raises BadInputError."""
        route = self.route(stream)
        if route.ahead is not None:
            raise BadInputError(
                f"stream {stream} has {route.ahead.committed_rows} rows that were written and not "
                f"advanced, and {route.ahead.pending_rows} pending; commit or abort the append and "
                "advance the rows first"
            )
        return route

    def new_stream(self, stream: int) -> None:
        """Check that a stream may begin. Raises BadInputError."""
        if stream < 1:
            raise BadInputError(f"streams are numbered from 1, not {stream}")
        if stream in self.routes:
            raise BadInputError(f"stream {stream} has a route already; finish it first")

    def copy(self, number: int) -> Copy:
        """A kept copy. Raises BadInputError when it is not, or no longer, there."""
        copy = self.copies.get(number)
        if copy is None:
            raise BadInputError(
                f"copy {number} is not kept (the next number is {self.next_copy}); look the "
                "prompt up again"
            )
        return copy

    def check_kept_limits(self, columns: int, entries: int) -> None:
        """Check that so many more columns and entries may be kept. Raises BadInputError."""
        kept_columns = self.tree.columns + self.copied_columns
        if kept_columns + columns > self.shape.kept_columns_max:
            raise BadInputError(
                f"keeping {columns} columns beside {kept_columns} would pass the limit of "
                f"{self.shape.kept_columns_max}; evict first, or do not keep"
            )
        kept_entries = len(self.tree) + len(self.copies)
        if kept_entries + entries > self.shape.kept_nodes_max:
            raise BadInputError(
                f"{kept_entries} nodes and copies are kept and the limit is "
                f"{self.shape.kept_nodes_max}; evict first, or do not keep"
            )

    def enter(self, end: Run) -> None:
        """One more holder of the whole path to ``end``."""
        for run in path_up(end):
            if run.holders == 0 and run.number != NO_NUMBER:
                self.tree.count_idle(run, -1)
            run.holders += 1

    def split_at(self, run: Run, columns: int) -> Run:
        """The run that ends exactly at the path's ``columns``, inside ``run``; split if needed."""
        if columns == run.end:
            return run
        if run.number != NO_NUMBER:
            front = self.tree.split_at(run, columns)
        else:
            front = split_front(run, columns - run.start)
        if run.pins:
            for lease in self.leases.values():
                if run in lease.runs:
                    lease.runs.insert(lease.runs.index(run), front)
        return front

    def leave(self, end: Run) -> None:
        """One holder fewer of the whole path to ``end``; what nobody holds any more is free."""
        freed: list[list[int]] = [[] for _ in self.pools]
        for run in path_up(end):
            self.drop_holders(run, 1, freed)
        self.give(freed)

    def remove(self, stream: int) -> None:
        """Forget a stream and let its path go."""
        route = self.routes.pop(stream)
        if self.slots is not None and route.marks:
            self.slots.give(list(route.marks.values()))
        self.leave(route.end)
        if self.windows:
            self.drop_behind(path_down(route.end))

    def unneeded(self, run: Run, group: int, route: Route | None, floor: int) -> int:
        """Leading pages of a run in a window group that no holder needs.

        The run is not kept. ``route`` is taken to need nothing before ``floor`` any more.
        """
        if run.pins:
            return 0
        gone = run.columns - len(run.pages[group])
        lowest = floor
        if route is None or run.holders > 1:
            for other in self.routes.values():
                if other is not route and any(other_run is run for other_run in path_up(other.end)):
                    lowest = min(lowest, self.shape.floor_column(group, other.rows))
        return max(0, min(run.columns, lowest - run.start) - gone)

    def drop_behind(self, path: Iterable[Run]) -> None:
        """After a holder has left: window pages that it alone still needed become free."""
        for group in self.windows:
            for run in path:
                if run.number == NO_NUMBER and run.holders:
                    count = self.unneeded(run, group, None, run.end)
                    if count:
                        self.pools[group].give(run.pages[group][:count])
                        del run.pages[group][:count]

    def drop_holders(self, run: Run, count: int, freed: list[list[int]]) -> None:
        """``holders`` fewer users of one run; pages without a holder are added to ``freed``."""
        run.holders -= count
        if run.holders == 0:
            if run.number != NO_NUMBER:
                self.tree.count_idle(run, 1)
            else:
                for ids, released in zip(run.pages, freed, strict=True):
                    released += ids

    def give(self, freed: list[list[int]]) -> None:
        """Give pages back to their pools."""
        for pool, ids in zip(self.pools, freed, strict=True):
            if ids:
                pool.give(ids)


def check_floors(books: Books, run: Run, columns: int, rows: int) -> None:
    """Check that a continuation at ``rows`` finds all the pages that its next token reads.

    ``run`` is the run of its path that covers column ``columns - 1``. Raises BadInputError when
    a window group has given some of them back.
    """
    for group in books.windows:
        floor = books.shape.floor_column(group, rows)
        first = first_present(run, group)
        if first > min(floor, columns):
            raise BadInputError(
                f"a continuation at row {rows} reads group {books.shape.pools[group].name!r} from "
                f"column {floor}, and its pages start at column {first}; choose a later row, or "
                "recompute"
            )
