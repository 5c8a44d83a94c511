"""Leases: pages that are being read stay what they are until the reader is done.

A lease pins the whole path to the columns it names, so that no ancestor can go first. A run that
a stream grows is cut off at the lease's end; a pinned page is never written again, its stream
copies it first.
"""

from __future__ import annotations

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.worker import PagesPinned, PagesUnpinned

from .books import Books
from .routes import Lease
from .runs import NO_NUMBER, ancestor_at, path_down

LEASES_MAX = 4_096


def pin(books: Books, command: PagesPinned) -> None:
    """A lease on a stream's first columns, or (stream 0) on a kept path's."""
    if command.lease < 1 or command.lease in books.leases:
        raise BadInputError(
            f"lease {command.lease} cannot be given: numbers start at 1 and each is used by one "
            "lease at a time"
        )
    if len(books.leases) >= LEASES_MAX:
        raise BadInputError(f"{LEASES_MAX} leases are out, which is the limit; return some first")
    columns = command.columns
    if command.stream:
        route = books.settled_route(command.stream)
        if command.node or not 1 <= columns <= route.columns:
            raise BadInputError(
                f"stream {command.stream} covers {route.columns} columns; a lease pins 1 to that "
                f"many of a stream (and then names no node), not {columns}"
            )
        run = ancestor_at(route.end, columns)
        if run.number == NO_NUMBER:
            run = books.split_at(run, columns)
    else:
        run = books.tree.locate(command.node, columns)
        if run.parent is None:
            raise BadInputError("a lease pins at least one column")
    books.enter(run)
    runs = path_down(run)
    for pinned in runs:
        pinned.pins += 1
    books.leases[command.lease] = Lease(command.lease, runs)


def unpin(books: Books, command: PagesUnpinned) -> None:
    """A lease is returned, once."""
    lease = books.leases.pop(command.lease, None)
    if lease is None:
        raise BadInputError(f"lease {command.lease} is not out; it is returned exactly once")
    freed: list[list[int]] = [[] for _ in books.pools]
    for run in lease.runs:
        run.pins -= 1
        books.drop_holders(run, 1, freed)
    books.give(freed)
    books.drop_behind(lease.runs)
