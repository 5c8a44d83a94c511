"""Leases: pages that are being read stay what they are until the reader is done.

A lease pins the whole path to the columns it names, so that no ancestor can go first. A run that
a stream grows is cut off at the lease's end; a pinned page is never written again, its stream
copies it first. A keep to RAM is a lease too: the pages stay until their bytes are in host memory.
"""

from __future__ import annotations

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.worker import (
    PagesPinned,
    PagesUnpinned,
    RamKeepBegun,
    RamKeepEnded,
)

from .books import Books
from .routes import Lease
from .runs import NO_NUMBER, Run, ancestor_at, path_down

LEASES_MAX = 4_096


def pin(books: Books, command: PagesPinned) -> None:
    """A lease on a stream's first columns, or (stream 0) on a kept path's."""
    _check_lease(books, command.lease)
    columns = command.columns
    if command.stream:
        if command.node:
            raise BadInputError(f"a lease on stream {command.stream} names no node as well")
        run = _stream_run(books, command.stream, columns)
    else:
        run = books.tree.locate(command.node, columns)
        if run.parent is None:
            raise BadInputError("a lease pins at least one column")
    _lease(books, command.lease, run, 0)


def unpin(books: Books, command: PagesUnpinned) -> None:
    """A lease is returned, once."""
    lease = books.leases.get(command.lease)
    if lease is None or lease.ram_columns:
        raise BadInputError(
            f"lease {command.lease} is not out, or belongs to a keep to RAM; a lease is returned "
            "exactly once"
        )
    _return(books, lease)


def begin_ram_keep(books: Books, command: RamKeepBegun) -> None:
    """A stream's first columns are read into host memory."""
    _check_lease(books, command.lease)
    run = _stream_run(books, command.stream, command.columns)
    _lease(books, command.lease, run, command.columns)


def end_ram_keep(books: Books, command: RamKeepEnded) -> None:
    """They have been read, or could not be: the lease is returned, once."""
    lease = books.leases.get(command.lease)
    if lease is None or not lease.ram_columns:
        raise BadInputError(f"lease {command.lease} belongs to no keep to RAM; it is ended once")
    if not 0 <= command.rows <= lease.ram_columns * books.shape.page_tokens:
        raise BadInputError(
            f"the keep to RAM under lease {command.lease} is of {lease.ram_columns} columns of "
            f"{books.shape.page_tokens} rows; {command.rows} rows cannot have been read"
        )
    _return(books, lease)


def _check_lease(books: Books, number: int) -> None:
    if number < 1 or number in books.leases:
        raise BadInputError(
            f"lease {number} cannot be given: numbers start at 1 and each is used by one lease at "
            "a time"
        )
    if len(books.leases) >= LEASES_MAX:
        raise BadInputError(f"{LEASES_MAX} leases are out, which is the limit; return some first")


def _stream_run(books: Books, stream: int, columns: int) -> Run:
    """The run that a lease on a stream's first columns ends in; split off where it is its own."""
    route = books.settled_route(stream)
    if not 1 <= columns <= route.columns:
        raise BadInputError(
            f"stream {stream} covers {route.columns} columns; a lease pins 1 to that many of them, "
            f"not {columns}"
        )
    run = ancestor_at(route.end, columns)
    return books.split_at(run, columns) if run.number == NO_NUMBER else run


def _lease(books: Books, number: int, run: Run, ram_columns: int) -> None:
    books.enter(run)
    runs = path_down(run)
    for pinned in runs:
        pinned.pins += 1
    books.leases[number] = Lease(number, runs, ram_columns)


def _return(books: Books, lease: Lease) -> None:
    del books.leases[lease.number]
    freed: list[list[int]] = [[] for _ in books.pools]
    for run in lease.runs:
        run.pins -= 1
        books.drop_holders(run, 1, freed)
    books.give(freed)
    books.drop_behind(lease.runs)
