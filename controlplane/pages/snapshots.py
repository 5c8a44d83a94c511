"""Snapshot slots: where recurrent state is kept, beside the pages and never in them.

A recurrent state cannot be cut back to an earlier row, so a prompt can be resumed only at a *mark*
where its state was saved. A mark is a page edge ahead of a stream; arming it reserves a slot
before the chunk that passes it runs, so that the chunk can write there. When the prompt is kept,
the slot moves to the node that ends at the mark; without that it returns with its stream. Slots
are counted at load, are contiguous on the device, and no stream's promise touches them.
"""

from __future__ import annotations

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.worker import MarkArmed, MarkDisarmed, SnapshotDropped

from .book import Pool
from .books import Books
from .routes import Route
from .runs import NO_SLOT, Run, ancestor_at


def arm(books: Books, command: MarkArmed) -> None:
    """Reserve a slot for the state after the stream's first columns."""
    route, slots = books.route(command.stream), _slots(books)
    edge = command.columns * books.shape.page_tokens
    if edge <= route.rows or command.columns in route.marks:
        raise BadInputError(
            f"stream {command.stream} has {route.rows} rows and marks at columns "
            f"{sorted(route.marks)}; a mark lies ahead of both, not at column {command.columns}"
        )
    if not slots.free:
        raise BadInputError(
            f"all {slots.total} snapshot slots are taken; drop a snapshot first, or do not mark"
        )
    route.marks[command.columns] = slots.take(1)[0]


def disarm(books: Books, command: MarkDisarmed) -> None:
    """Give a mark's slot back; the stream goes on without the resume point."""
    slot = books.route(command.stream).marks.pop(command.columns, None)
    if slot is None:
        raise BadInputError(
            f"stream {command.stream} has no mark at column {command.columns}; it is disarmed once"
        )
    _slots(books).give([slot])


def drop(books: Books, command: SnapshotDropped) -> None:
    """A node gives up its snapshot; nobody may be reading it under a lease."""
    run = books.tree.node(command.node)
    if run.slot == NO_SLOT or run.pins:
        raise BadInputError(
            f"node {command.node} has "
            + ("no snapshot" if run.slot == NO_SLOT else f"{run.pins} leases reading it")
            + "; choose another victim"
        )
    release(books, run)


def reached(books: Books, route: Route, columns: int) -> list[int]:
    """Marks inside the route's first columns whose rows are written, ascending."""
    page_tokens = books.shape.page_tokens
    return [
        mark for mark in sorted(route.marks) if mark <= columns and mark * page_tokens <= route.rows
    ]


def attach(books: Books, route: Route, end: Run, marks: list[int]) -> None:
    """Move the slots of marks to the nodes of the path to ``end``; what is there already wins."""
    for mark in marks:
        run = books.split_at(ancestor_at(end, mark), mark)
        slot = route.marks.pop(mark)
        if run.slot == NO_SLOT:
            run.slot = slot
        else:
            _slots(books).give([slot])


def release(books: Books, run: Run) -> None:
    """The slot of a node that is cut, if it has one."""
    if run.slot != NO_SLOT:
        _slots(books).give([run.slot])
        run.slot = NO_SLOT


def check_resumable(books: Books, run: Run, columns: int) -> None:
    """With slots at all, a prompt is resumed at a snapshot or from its beginning."""
    if books.slots is None or columns == 0 or (run.slot != NO_SLOT and run.end == columns):
        return
    raise BadInputError(
        f"node {run.number} has no snapshot after column {columns}; resume at a snapshot (see "
        "resume_point), or from the beginning"
    )


def _slots(books: Books) -> Pool:
    if books.slots is None:
        raise BadInputError("there are no snapshot slots; a layout with recurrent state has some")
    return books.slots
