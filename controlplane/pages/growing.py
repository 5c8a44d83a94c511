"""How streams grow: rows that were written take pages out of the promise.

A row that lands in a column which someone else holds too takes a page of its own first
(copy on write), out of the same promise. In a window group pages that have fallen behind the
window are given back first; what the stream alone held becomes its promise again.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagetrail.catalog.errors import BadInputError, InvariantError
from pagetrail.catalog.kinds.worker import RowsAdvanced, RowsRestored

from .books import Books
from .routes import Ahead, Route
from .runs import NO_NUMBER, Run, path_up

ADVANCES_MAX = 65_536


@dataclass(frozen=True, slots=True)
class Growth:
    """What one advance does, worked out before anything changes."""

    rows: int  # after it
    copied: bool  # the column being written has another holder
    first_column: int  # first column that gets new pages
    columns: int  # after it
    takes: tuple[int, ...]  # pages per group
    gives: tuple[int, ...]  # pages per group that fall behind a window


def advance(books: Books, command: RowsAdvanced) -> None:
    """Apply one batch of advances, in its order: all of them or none."""
    entries = command.entries
    if not 1 <= len(entries) <= ADVANCES_MAX:
        raise BadInputError(
            f"a batch of advances holds 1 to {ADVANCES_MAX} entries, not {len(entries)}"
        )
    leaving: dict[Run, int] = {}  # users that copies earlier in the batch take off a run
    planned: list[tuple[Route, Growth]] = []
    seen: set[int] = set()
    for stream, rows in entries:
        if stream in seen:
            raise BadInputError(f"stream {stream} stands twice in one batch; add its rows up")
        seen.add(stream)
        route = books.route(stream)
        planned.append((route, plan(books, route, rows, leaving)))
    for route, growth in planned:
        grow(books, route, growth)


def restore(books: Books, command: RowsRestored) -> None:
    """Rows that a verified restore has written into the stream's own pages."""
    route = books.route(command.stream)
    grow(books, route, plan(books, route, command.rows, {}))


def shared(run: Run) -> bool:
    """Whether a route's last run has another holder than the route itself."""
    return run.number != NO_NUMBER or run.holders > 1


def plan(books: Books, route: Route, rows: int, leaving: dict[Run, int]) -> Growth:
    """What ``rows`` more rows need. Raises BadInputError when the promise does not cover them."""
    if rows < 1:
        raise BadInputError(f"stream {route.stream} advances by at least 1 row, not {rows}")
    ahead = route.ahead
    if ahead is not None and rows > ahead.committed_rows:
        raise BadInputError(
            f"stream {route.stream} has {ahead.committed_rows} committed rows to advance, not "
            f"{rows}; commit the append first"
        )
    page_tokens = books.shape.page_tokens
    end, before = route.end, route.columns
    after_rows = route.rows + rows
    after = -(-after_rows // page_tokens)
    copied = route.rows < before * page_tokens and (
        end.number != NO_NUMBER or end.holders - leaving.get(end, 0) > 1
    )
    if copied:
        leaving[end] = leaving.get(end, 0) + 1
    first = before - copied
    takes = [after - first] * len(books.pools)
    gives = [0] * len(books.pools)
    for group in books.windows:
        floor = books.shape.floor_column(group, after_rows)
        takes[group] = max(0, after - max(first, floor))
        gives[group] = sum(count for _, count in fallen(books, route, group, floor))
    for group, (take, give) in enumerate(zip(takes, gives, strict=True)):
        if take > route.promised[group] + give:
            raise BadInputError(
                f"stream {route.stream} needs {take} pages of group "
                f"{books.shape.pools[group].name!r} for {rows} more rows and may take "
                f"{route.promised[group] + give}; promise it more first"
            )
    return Growth(after_rows, copied, first, after, tuple(takes), tuple(gives))


def grow(books: Books, route: Route, growth: Growth) -> None:
    """Carry a planned growth out."""
    for group in books.windows:
        drop_fallen(books, route, group, books.shape.floor_column(group, growth.rows))
    ahead = route.ahead
    if ahead is not None:
        pages = settle(books, route, ahead, growth)
    else:
        pages = [
            pool.take(count) if count else []
            for pool, count in zip(books.pools, growth.takes, strict=True)
        ]
        route.dirty_from = min(route.dirty_from, growth.first_column)
    if growth.copied:
        leave_last_column(books, route)
    for group, count in enumerate(growth.takes):
        books.pools[group].promised -= count
        route.promised[group] -= count
    extend(route, growth.columns - growth.first_column, pages)
    route.rows = growth.rows


def settle(books: Books, route: Route, ahead: Ahead, growth: Growth) -> list[list[int]]:
    """The pages in flight that committed rows fill; they are in flight no longer.

    A copy that turned out needless (the other holder has left) takes the place of its original:
    ids differ from a replayed book's, counts do not.
    """
    if growth.copied and not ahead.copied:
        raise InvariantError(
            f"stream {route.stream} wrote rows into a page that came to be shared meanwhile"
        )
    filled = growth.columns - ahead.first_column
    pages = []
    for group, (pool, ids) in enumerate(zip(books.pools, ahead.pages, strict=True)):
        used = ids[:filled]
        del ids[:filled]
        pool.in_flight -= len(used)
        if ahead.copied and not growth.copied and route.end.pages[group]:
            original = route.end.pages[group]
            pool.give([original[-1]])
            original[-1] = used[0]
            del used[0]
        elif ahead.copied and not growth.copied:
            pool.give([used.pop(0)])
        behind = len(used) - growth.takes[group]  # written, and behind a window already
        if behind:
            pool.give(used[:behind])
            del used[:behind]
        pages.append(used)
    ahead.first_column = growth.columns
    ahead.copied = False
    ahead.committed_rows -= growth.rows - route.rows
    if not ahead.committed_rows and not ahead.pending_rows:
        route.ahead = None
        del books.ahead[route.stream]
    return pages


def extend(route: Route, columns: int, pages: list[list[int]]) -> None:
    """Append columns to a route: to its own last run, or in a new one."""
    if columns == 0:
        return
    end = route.end
    if shared(end):
        route.end = Run(end.end, pages, columns, end)
        route.end.holders = 1
        return
    for ids, more in zip(end.pages, pages, strict=True):
        ids += more
    end.columns += columns


def leave_last_column(books: Books, route: Route) -> None:
    """Give up a route's hold on its last column, which others hold too."""
    last = route.end
    if last.columns > 1:
        books.split_at(last, last.end - 1)
    freed: list[list[int]] = [[] for _ in books.pools]
    books.drop_holders(last, 1, freed)
    books.give(freed)
    if last.parent is not None:
        route.end = last.parent


def fallen(books: Books, route: Route, group: int, floor: int) -> list[tuple[Run, int]]:
    """Runs of a route that lose leading pages of a window group once it needs none below floor.

    A kept run loses none; a run that other routes pass through loses what none of them needs.
    """
    losses = []
    for run in path_up(route.end):
        if run.number != NO_NUMBER:
            break
        count = books.unneeded(run, group, route, floor)
        if count:
            losses.append((run, count))
    return losses


def drop_fallen(books: Books, route: Route, group: int, floor: int) -> None:
    """Give back what has fallen behind; it is the route's to take again."""
    pool = books.pools[group]
    for run, count in fallen(books, route, group, floor):
        pool.give(run.pages[group][:count])
        del run.pages[group][:count]
        pool.promised += count
        route.promised[group] += count
