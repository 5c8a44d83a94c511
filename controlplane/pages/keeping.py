"""How runs come to be shared and let go: fork, keep, evict, durable.

On a keep whose leading columns the tree already holds, the stream swaps to the tree's pages and
its duplicates are freed. That is right only when a resumed computation equals a fresh one bit for
bit; a worker that cannot promise this keeps with ``shared`` equal to what it adopted.
"""

from __future__ import annotations

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.worker import NodeDurable, NodesEvicted, PromptKept, RouteForked

from . import snapshots
from .books import Books, check_floors
from .routes import Route
from .runs import (
    NO_NUMBER,
    Run,
    ancestor_at,
    first_present,
    join_front,
    path_down,
    path_up,
)


def fork(books: Books, command: RouteForked) -> None:
    """A new stream shares the columns that cover the source's first rows."""
    books.new_stream(command.stream)
    source = books.settled_route(command.source)
    if not 0 <= command.rows <= source.rows:
        raise BadInputError(
            f"stream {command.source} has {source.rows} rows; a fork shares up to that many, not "
            f"{command.rows}"
        )
    moved = command.pages or (0,) * len(books.pools)
    if len(moved) != len(books.pools) or any(
        not 0 <= count <= promised for count, promised in zip(moved, source.promised, strict=False)
    ):
        raise BadInputError(
            f"stream {command.source} has {tuple(source.promised)} pages promised; it cannot hand "
            f"{command.pages} of them to its fork"
        )
    columns = -(-command.rows // books.shape.page_tokens)
    check_floors(books, ancestor_at(source.end, columns), columns, command.rows)
    shared = ancestor_at(source.end, columns)
    end = books.split_at(shared, columns) if columns else books.tree.root
    books.enter(end)
    route = Route(command.stream, end, command.rows, len(books.pools), source.account)
    for group, count in enumerate(moved):
        source.promised[group] -= count
        route.promised[group] += count
    books.routes[command.stream] = route


def keep(books: Books, command: PromptKept) -> None:
    """A stream's leading columns stay in the tree after it."""
    route = books.settled_route(command.stream)
    tree = books.tree
    shared, columns = command.shared, command.columns
    if not 1 <= columns <= route.columns or not 0 <= shared <= columns:
        raise BadInputError(
            f"stream {command.stream} covers {route.columns} columns; it cannot keep {columns} of "
            f"them with {shared} in the tree already"
        )
    found = tree.locate(command.node, shared)
    held = kept_end(route)
    if shared < held.end or ancestor_at(found, held.end) is not held:
        raise BadInputError(
            f"stream {command.stream} holds {held.end} kept columns up to node {held.number}; "
            f"{shared} columns into node {command.node} are not a continuation of them"
        )
    new = columns - shared
    books.check_kept_limits(new, 1 if new else 0)
    check_floors(books, ancestor_at(route.end, columns), columns, columns * books.shape.page_tokens)
    if shared > held.end:
        check_swap(books, route, found, shared, columns)
    marks = snapshots.reached(books, route, columns)
    superseded = [superseded_node(books, route, number) for number in command.supersedes]
    anchor = books.split_at(found, shared) if shared else tree.root
    if shared > held.end:
        swap(books, route, held, anchor)
    end = anchor
    if new:
        for column in (*marks, columns):
            split_route(books, route, column)
        for run in joined(route, shared, columns, marks):
            tree.keep(run, books.commands, route.account)
            end = run
    snapshots.attach(books, route, end, marks)
    tree.refresh(end, books.commands)
    for run in superseded:
        run.superseded = True


def swap(books: Books, route: Route, held: Run, anchor: Run) -> None:
    """The route's columns between ``held`` and ``anchor`` are given up for the tree's.

    Every stream that passes through the route's first run below them goes along.
    """
    moving = moved_along(books, route, anchor.end)
    split_route(books, route, anchor.end)
    own = [run for run in path_down(route.end) if run.start >= held.end]
    duplicates = [run for run in own if run.end <= anchor.end]
    below = own[len(duplicates)] if len(own) > len(duplicates) else None
    streams, pins = len(moving), 0 if below is None else below.pins
    gained: list[Run] = []
    run = anchor
    while run is not held and run.parent is not None:
        if run.holders == 0:
            books.tree.count_idle(run, -1)
        run.holders += streams + pins
        run.pins += pins
        gained.append(run)
        run = run.parent
    if below is None:
        route.end = anchor
    else:
        below.parent = anchor
        if pins:  # what is pinned below must find its new ancestors pinned too
            for lease in books.leases.values():
                if below in lease.runs:
                    lease.runs[:0] = reversed(gained)
    for moved in moving:
        moved.dirty_from = min(moved.dirty_from, held.end)
    freed: list[list[int]] = [[] for _ in books.pools]
    for run in duplicates:
        books.drop_holders(run, streams, freed)
    books.give(freed)
    books.drop_behind(duplicates)


def check_swap(books: Books, route: Route, found: Run, shared: int, columns: int) -> None:
    """Check that the tree still has the window pages that would be read from it: by the route,
    by those that go along, and by who adopts what is kept."""
    for group in books.windows:
        rows = [columns * books.shape.page_tokens]
        rows += [moved.rows for moved in moved_along(books, route, shared)]
        floor = min(books.shape.floor_column(group, row) for row in rows)
        first = first_present(found, group)
        if floor < first:
            raise BadInputError(
                f"after the swap group {books.shape.pools[group].name!r} is read from column "
                f"{floor}, and node {found.number} has its pages from column {first} on; keep "
                "without swapping"
            )


def moved_along(books: Books, route: Route, shared: int) -> list[Route]:
    """The routes that swap their first ``shared`` columns when ``route`` does."""
    below = ancestor_at(route.end, shared + 1) if route.columns > shared else None
    if below is None or below.holders == 1:
        return [route]
    return [
        moved for moved in books.routes.values() if any(run is below for run in path_up(moved.end))
    ]


def evict(books: Books, command: NodesEvicted) -> None:
    """Cut columns off the tails of leaves, in order; every cut page has the tree alone."""
    if not command.victims:
        raise BadInputError("an eviction names at least one victim")
    tree = books.tree
    left: dict[int, int] = {}
    lost_children: dict[int, int] = {}
    for number, columns in command.victims:
        run = tree.node(number)
        remaining = left.get(number, run.columns)
        if run.parent is None or not 1 <= columns <= remaining:
            raise BadInputError(
                f"node {number} has {remaining} columns to evict; {columns} cannot be cut off it"
            )
        if run.children != lost_children.get(number, 0):
            raise BadInputError(f"node {number} has kept columns below it; evict those first")
        if run.holders:
            raise BadInputError(
                f"node {number} is held by {run.holders} streams or leases; choose another victim"
            )
        left[number] = remaining - columns
        if remaining == columns:
            parent = run.parent.number
            lost_children[parent] = lost_children.get(parent, 0) + 1
    freed: list[list[int]] = [[] for _ in books.pools]
    for number, columns in command.victims:
        snapshots.release(books, tree.node(number))
        for ids, released in zip(tree.cut(tree.node(number), columns), freed, strict=True):
            released += ids
    books.give(freed)


def durable(books: Books, command: NodeDurable) -> None:
    """An acknowledged publication covers the path to the node's first columns."""
    books.tree.mark_durable(books.tree.locate(command.node, command.columns), command.columns)


def kept_end(route: Route) -> Run:
    """The last kept run of a route; the root when there is none."""
    run = route.end
    while run.number == NO_NUMBER and run.parent is not None:
        run = run.parent
    return run


def split_route(books: Books, route: Route, columns: int) -> None:
    """Make one of the route's runs end at ``columns``, if it reaches that far."""
    if columns < route.columns:
        books.split_at(ancestor_at(route.end, columns), columns)


def superseded_node(books: Books, route: Route, number: int) -> Run:
    """A node whose turn the route's prompt continues, without holding it. Raises BadInputError."""
    run = books.tree.node(number)
    if run.parent is None or run in path_up(route.end):
        raise BadInputError(
            f"node {number} is part of what stream {route.stream} keeps and cannot be superseded "
            "by it"
        )
    return run


def joined(route: Route, start: int, end: int, marks: list[int]) -> list[Run]:
    """The route's own runs inside ``[start, end)`` from the top; neighbours with the same
    holders, and no mark between them, made one."""
    runs: list[Run] = []
    for run in path_down(route.end):
        if start <= run.start < end:
            if runs and runs[-1].holders == run.holders and not run.pins and run.start not in marks:
                join_front(run, runs.pop())
            runs.append(run)
    return runs
