"""How a stream begins and ends: adopt, undo, promise, finish.

Each function checks all it needs before it changes anything; what it refuses, it refuses with
BadInputError and an unchanged book.
"""

from __future__ import annotations

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.worker import (
    AdoptionUndone,
    PagesAdopted,
    PagesPromised,
    StreamFinished,
    StreamPreempted,
)

from .books import Books, check_floors
from .routes import Route
from .snapshots import check_resumable


def adopt(books: Books, command: PagesAdopted) -> None:
    """A new stream holds the first columns of a kept prompt; the path is touched."""
    books.new_stream(command.stream)
    tree, shape = books.tree, books.shape
    columns = command.columns
    run = tree.locate(command.node, columns)
    all_rows = columns * shape.page_tokens
    rows = command.rows or all_rows
    if rows > all_rows or rows <= all_rows - shape.page_tokens:
        raise BadInputError(
            f"stream {command.stream} cannot count {rows} rows of {columns} columns of "
            f"{shape.page_tokens}: the last row must lie in the last column"
        )
    if not 0 <= command.account < shape.accounts:
        raise BadInputError(
            f"stream {command.stream} is charged to account {command.account}; there are "
            f"{shape.accounts}, from 0"
        )
    check_floors(books, run, columns, rows)
    check_resumable(books, run, columns)
    end = books.split_at(run, columns) if columns else tree.root
    tree.touch(end, books.commands)
    books.enter(end)
    books.routes[command.stream] = Route(
        command.stream, end, rows, len(books.pools), command.account
    )


def undo(books: Books, command: AdoptionUndone) -> None:
    """A stream gives back what it adopted. Its touch of the path stays: it has been looked up."""
    route = books.settled_route(command.stream)
    if any(route.promised) or route.rows != route.adopted_rows:
        raise BadInputError(
            f"stream {command.stream} has been promised pages or has advanced; finish it instead "
            "of undoing its adoption"
        )
    books.remove(command.stream)


def promise(books: Books, command: PagesPromised) -> None:
    """Available pages become the stream's to take: in all groups, or in none."""
    route = books.route(command.stream)
    pages = command.pages
    if len(pages) != len(books.pools) or min(pages) < 0:
        raise BadInputError(
            f"a promise names a count of at least 0 for each of {len(books.pools)} groups, "
            f"not {pages}"
        )
    for group, (pool, count) in enumerate(zip(books.pools, pages, strict=True)):
        if pool.available < count:
            raise BadInputError(
                f"group {books.shape.pools[group].name!r} has {pool.available} available pages "
                f"and stream {command.stream} needs {count}; evict first, or queue it"
            )
    for group, count in enumerate(pages):
        books.pools[group].promised += count
        route.promised[group] += count


def finish(books: Books, command: StreamFinished) -> None:
    """A stream leaves: its promise is returned, its holds are released."""
    _leave(books, command.stream)


def preempt(books: Books, command: StreamPreempted) -> None:
    """A running stream gives everything back and will begin again later."""
    _leave(books, command.stream)


def _leave(books: Books, stream: int) -> None:
    route = books.settled_route(stream)
    for pool, count in zip(books.pools, route.promised, strict=True):
        pool.promised -= count
    books.remove(stream)
