"""The copy store: prompts kept in pages of their own, at any row.

For layouts whose pages cannot be shared in place (a drafter that looks ahead, a family that is
not exact when resumed). A copy takes available pages, counts against the same limits as kept
nodes, and is dropped whole. To resume from it, a stream takes pages of its own promise and has
the rows copied back.
"""

from __future__ import annotations

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.worker import CopiesDropped, CopyKept, CopyRestored

from .books import Books
from .growing import grow, plan
from .routes import Copy
from .runs import first_present


def keep(books: Books, command: CopyKept) -> None:
    """Copy a stream's first rows; the engine copies the pages that ``Copy.pages`` names."""
    route = books.settled_route(command.stream)
    rows, shape = command.rows, books.shape
    if not 1 <= rows <= route.rows:
        raise BadInputError(
            f"stream {command.stream} has {route.rows} rows; a copy keeps 1 to that many, not "
            f"{rows}"
        )
    columns = -(-rows // shape.page_tokens)
    counts = []
    for group, pool in enumerate(books.pools):
        floor = shape.floor_column(group, rows)
        if first_present(route.end, group) > floor:
            raise BadInputError(
                f"group {shape.pools[group].name!r} of stream {command.stream} has given back "
                f"what a copy of {rows} rows reads from column {floor} on; keep more rows"
            )
        counts.append(columns - floor)
        if pool.available < counts[group]:
            raise BadInputError(
                f"group {shape.pools[group].name!r} has {pool.available} available pages and the "
                f"copy takes {counts[group]}; drop copies first, or do not keep"
            )
    books.check_kept_limits(columns, 1)
    superseded = [books.copy(number) for number in command.supersedes]
    pages = [pool.take(count) for pool, count in zip(books.pools, counts, strict=True)]
    number = books.next_copy
    books.next_copy += 1
    books.copies[number] = Copy(number, rows, columns, pages, books.commands)
    books.copied_columns += columns
    for copy in superseded:
        copy.superseded = True


def restore(books: Books, command: CopyRestored) -> None:
    """Rows of a copy count for a stream; they follow the rows that it has."""
    route, copy = books.route(command.stream), books.copy(command.copy)
    if route.rows + command.rows > copy.rows:
        raise BadInputError(
            f"copy {command.copy} has {copy.rows} rows; stream {command.stream} with {route.rows} "
            f"cannot have {command.rows} more of it"
        )
    grow(books, route, plan(books, route, command.rows, {}))
    copy.previous_access, copy.last_access = copy.last_access, books.commands
    copy.accesses += 1
    copy.resumed = True
    books.copies[copy.number] = books.copies.pop(copy.number)  # the newest stands last


def drop(books: Books, command: CopiesDropped) -> None:
    """Give copies up: all of them, or none when one is not there."""
    dropped = [books.copy(number) for number in command.copies]
    if not dropped or len(set(command.copies)) != len(dropped):
        raise BadInputError(f"copies to drop are named once each, and at least one: {command}")
    freed: list[list[int]] = [[] for _ in books.pools]
    for copy in dropped:
        for ids, released in zip(copy.pages, freed, strict=True):
            released += ids
        books.copied_columns -= copy.columns
        del books.copies[copy.number]
    books.give(freed)
