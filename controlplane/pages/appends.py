"""Appends: pages are taken before rows are written, and counted after.

``reserve`` takes the pages (and the copy of a shared last page) that the rows of one step need;
the device writes; ``commit`` or ``abort`` ends the append. Committed rows are not in the book
yet: the engine commits every step, and one RowsAdvanced before the next decision counts them. In
between their pages are *in flight*: free and promised for every policy, so that the state a
decision reads follows from commands alone.

An append is known by its ticket, which is never used twice: ending one that has ended does
nothing. Until it ends, the route keeps its hold on the page that was copied.
"""

from __future__ import annotations

from dataclasses import dataclass

from pagetrail.catalog.errors import BadInputError

from .books import Books
from .growing import shared
from .routes import Ahead, Route


@dataclass(frozen=True, slots=True)
class Append:
    """Rows ``[first_row, first_row + rows)`` of a stream may be written."""

    stream: int
    ticket: int
    first_row: int
    rows: int
    page_tokens: int
    pages: tuple[tuple[int, ...], ...]  # per group: ids of the columns from first_row's on
    # per group (source, target): copy the page before writing; source -1: nothing to copy. Empty
    # when the page being written has no other holder.
    copies: tuple[tuple[int, int], ...]

    def slots(self, group: int) -> list[int]:
        """``page * page_tokens + offset`` of each row, in order."""
        page_tokens, row, end = self.page_tokens, self.first_row, self.first_row + self.rows
        slots: list[int] = []
        for page in self.pages[group]:
            offset = row % page_tokens
            count = min(page_tokens - offset, end - row)
            start = page * page_tokens + offset
            slots += range(start, start + count)
            row += count
        return slots


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The promise does not cover the rows: pages per group to be promised first.

    With a window group, advancing the committed rows may give back enough.
    """

    pages: tuple[int, ...]


def reserve(books: Books, stream: int, rows: int) -> Append | Shortfall:
    """Take what the next ``rows`` rows need: everything, or nothing and say what is missing.

    Raises BadInputError when an append of the stream is pending.
    """
    route = books.route(stream)
    ahead = route.ahead
    if rows < 1:
        raise BadInputError(f"an append is of at least 1 row, not {rows}")
    if ahead is not None and ahead.pending_rows:
        raise BadInputError(
            f"stream {stream} has an append of {ahead.pending_rows} rows pending; commit or abort "
            "it first"
        )
    page_tokens = books.shape.page_tokens
    copies = ahead is None and _copies(books, route)
    if ahead is None:
        ahead = Ahead(route.columns - copies, copies, len(books.pools))
    first_row = route.rows + ahead.committed_rows
    have = ahead.first_column + len(ahead.pages[0])
    more = max(0, -(-(first_row + rows) // page_tokens) - have)
    missing = _missing(route, ahead, more)
    if any(missing):
        return Shortfall(missing)
    sources = [ids[-1] if ids else -1 for ids in route.end.pages] if copies else []
    for pool, ids in zip(books.pools, ahead.pages, strict=True):
        ids += pool.take(more)
        pool.in_flight += more
    route.ahead = ahead
    books.ahead[stream] = route
    if more:
        route.dirty_from = min(route.dirty_from, have)
    books.tickets += 1
    ahead.ticket = books.tickets
    ahead.pending_rows = rows
    first_column = first_row // page_tokens
    return Append(
        stream,
        ahead.ticket,
        first_row,
        rows,
        page_tokens,
        tuple([tuple(page_table(route, group, first_column)) for group in range(len(books.pools))]),
        tuple([(source, ids[0]) for source, ids in zip(sources, ahead.pages, strict=False)]),
    )


def shortfall(books: Books, stream: int, rows: int) -> tuple[int, ...]:
    """Pages per group that must be promised before ``rows`` more rows can be reserved."""
    route = books.route(stream)
    ahead = route.ahead
    if ahead is None:
        ahead = Ahead(route.columns - _copies(books, route), False, len(books.pools))
    last = route.rows + ahead.committed_rows + ahead.pending_rows + rows
    have = ahead.first_column + len(ahead.pages[0])
    return _missing(route, ahead, max(0, -(-last // books.shape.page_tokens) - have))


def _copies(books: Books, route: Route) -> bool:
    """Whether the next row lands in a column that someone else holds too."""
    return route.rows < route.columns * books.shape.page_tokens and shared(route.end)


def _missing(route: Route, ahead: Ahead, more: int) -> tuple[int, ...]:
    return tuple(
        [
            max(0, len(ids) + more - promised)
            for ids, promised in zip(ahead.pages, route.promised, strict=True)
        ]
    )


def commit(books: Books, append: Append, rows: int) -> bool:
    """The first ``rows`` rows of an append are written in every layer; the others never were.

    False, with nothing changed, when the append has ended already.
    """
    if not 0 <= rows <= append.rows:
        raise BadInputError(f"an append of {append.rows} rows cannot commit {rows}")
    pending = _pending(books, append)
    if pending is None:
        return False
    route, ahead = pending
    ahead.committed_rows += rows
    _end(books, route, ahead)
    return True


def abort(books: Books, append: Append) -> bool:
    """No row of the append counts; its pages are the promise's again. As ``commit`` of 0 rows."""
    return commit(books, append, 0)


def _pending(books: Books, append: Append) -> tuple[Route, Ahead] | None:
    route = books.routes.get(append.stream)
    if route is None or route.ahead is None:
        return None
    ahead = route.ahead
    if ahead.ticket != append.ticket or not ahead.pending_rows:
        return None
    return route, ahead


def _end(books: Books, route: Route, ahead: Ahead) -> None:
    """Nothing is pending any more; pages that no committed row needs go back."""
    ahead.pending_rows = 0
    needed = 0
    if ahead.committed_rows:
        rows = route.rows + ahead.committed_rows
        needed = max(0, -(-rows // books.shape.page_tokens) - ahead.first_column)
    if needed < len(ahead.pages[0]):
        route.dirty_from = min(route.dirty_from, ahead.first_column + needed)
        for pool, ids in zip(books.pools, ahead.pages, strict=True):
            pool.in_flight -= len(ids) - needed
            pool.give(ids[needed:])
            del ids[needed:]
    if not ahead.committed_rows:
        route.ahead = None
        del books.ahead[route.stream]


def committed(books: Books) -> tuple[tuple[int, int], ...]:
    """(stream, rows) that are committed and not yet advanced, by stream."""
    return tuple(
        [
            (stream, route.ahead.committed_rows)
            for stream, route in sorted(books.ahead.items())
            if route.ahead is not None and route.ahead.committed_rows
        ]
    )


def page_table(route: Route, group: int, first_column: int) -> list[int]:
    """Page ids of a route's columns from ``first_column`` on, those in flight included; -1 where
    a window group has given its page back."""
    parts: list[list[int]] = []
    end = route.columns
    ahead = route.ahead
    if ahead is not None:
        parts.append(ahead.pages[group][max(0, first_column - ahead.first_column) :])
        end = ahead.first_column
    run = route.end
    while run.parent is not None and run.end > first_column:
        ids = run.pages[group]
        columns = [-1] * (run.columns - len(ids)) + ids if len(ids) < run.columns else ids
        parts.append(columns[max(0, first_column - run.start) : max(0, end - run.start)])
        run = run.parent
    table: list[int] = []
    for part in reversed(parts):
        table += part
    return table
