"""The canonical encoding of a page owner's state, and back.

Written: the shape, the counts, every node by number, every run that only streams hold in the
order in which the streams (by number, their paths from the top) and then the leases first meet
it, every stream, every lease. Not written: page ids, what is in flight, and all that follows from
the rest. What is read back is checked against
every invariant before it is used.
"""

from __future__ import annotations

import msgspec

from pagetrail.catalog.errors import BadInputError, CorruptionError, InvariantError
from pagetrail.catalog.kinds.worker import PoolSpec

from .books import Books, Shape
from .check import check
from .routes import Copy, Lease, Route
from .runs import NO_NUMBER, NO_SLOT, Run, path_down

STATE_VERSION = 2
_RESUMED = 1
_SUPERSEDED = 2
_SNAPSHOT = 4


class NodeState(msgspec.Struct, frozen=True, array_like=True):
    """A kept run. ``present``: pages per window group (the others have one a column)."""

    number: int
    parent: int
    columns: int
    present: tuple[int, ...]
    durable: int
    last_access: int
    previous_access: int
    accesses: int
    flags: int
    account: int


class RunState(msgspec.Struct, frozen=True, array_like=True):
    """A run that only streams hold. ``parent``: a node, or ~i for the i-th such run."""

    parent: int
    columns: int
    present: tuple[int, ...]


class RouteState(msgspec.Struct, frozen=True, array_like=True):
    """A stream. ``end``: as RunState.parent."""

    stream: int
    end: int
    rows: int
    adopted_columns: int
    adopted_rows: int
    promised: tuple[int, ...]
    marks: tuple[int, ...]
    account: int


class CopyState(msgspec.Struct, frozen=True, array_like=True):
    """A kept copy."""

    number: int
    rows: int
    last_access: int
    previous_access: int
    accesses: int
    flags: int


class LeaseState(msgspec.Struct, frozen=True, array_like=True):
    """A lease and the runs it pins; each as RunState.parent."""

    lease: int
    runs: tuple[int, ...]
    ram_columns: int


class OwnerState(msgspec.Struct, frozen=True, array_like=True):
    """Everything."""

    version: int
    pools: tuple[PoolSpec, ...]
    page_tokens: int
    verify_rows: int
    kept_columns_max: int
    kept_nodes_max: int
    snap_slots: int
    accounts: int
    commands: int
    next_number: int
    next_copy: int
    nodes: tuple[NodeState, ...]
    runs: tuple[RunState, ...]
    routes: tuple[RouteState, ...]
    leases: tuple[LeaseState, ...]
    copies: tuple[CopyState, ...]


_DECODER = msgspec.msgpack.Decoder(OwnerState)


def encode(books: Books) -> bytes:
    """The bytes of a state."""
    windows = books.windows

    def present(run: Run) -> tuple[int, ...]:
        return tuple(len(run.pages[group]) for group in windows)

    nodes = tuple(
        NodeState(
            number,
            0 if run.parent is None else run.parent.number,
            run.columns,
            present(run),
            run.durable,
            run.last_access,
            run.previous_access,
            run.accesses,
            _flags(run) + _SNAPSHOT * (run.slot != NO_SLOT),
            run.account,
        )
        for number, run in sorted(books.tree.nodes.items())
        if number
    )
    places: dict[Run, int] = {}
    runs: list[RunState] = []

    def reference(run: Run) -> int:
        return run.number if run.number != NO_NUMBER else ~places[run]

    def meet(path: list[Run]) -> None:
        for run in path:
            if run.number == NO_NUMBER and run not in places:
                parent = reference(run.parent or books.tree.root)
                runs.append(RunState(parent, run.columns, present(run)))
                places[run] = len(places)

    routes: list[RouteState] = []
    for stream, route in sorted(books.routes.items()):
        meet(path_down(route.end))
        routes.append(
            RouteState(
                stream,
                reference(route.end),
                route.rows,
                route.adopted_columns,
                route.adopted_rows,
                tuple(route.promised),
                tuple(sorted(route.marks)),
                route.account,
            )
        )
    leases: list[LeaseState] = []
    for number, lease in sorted(books.leases.items()):
        meet(lease.runs)
        leases.append(
            LeaseState(number, tuple([reference(run) for run in lease.runs]), lease.ram_columns)
        )
    shape = books.shape
    return msgspec.msgpack.encode(
        OwnerState(
            STATE_VERSION,
            shape.pools,
            shape.page_tokens,
            shape.verify_rows,
            shape.kept_columns_max,
            shape.kept_nodes_max,
            shape.snap_slots,
            shape.accounts,
            books.commands,
            books.tree.next_number,
            books.next_copy,
            nodes,
            tuple(runs),
            tuple(routes),
            tuple(leases),
            tuple(
                CopyState(
                    copy.number,
                    copy.rows,
                    copy.last_access,
                    copy.previous_access,
                    copy.accesses,
                    _flags(copy),
                )
                for copy in books.copies.values()
            ),
        )
    )


def decode(encoded: bytes) -> Books:
    """The books of an encoded state. Raises CorruptionError when it is none."""
    try:
        state = _DECODER.decode(encoded)
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"this is not the state of a page owner: {error}") from error
    if state.version != STATE_VERSION:
        raise CorruptionError(
            f"a page owner's state of version {state.version} cannot be read; this build writes "
            f"and reads version {STATE_VERSION}"
        )
    try:
        books = _rebuild(state)
        check(books)
    except (BadInputError, InvariantError, KeyError, IndexError) as error:
        raise CorruptionError(f"the state of a page owner contradicts itself: {error}") from error
    return books


def _rebuild(state: OwnerState) -> Books:
    books = Books(
        Shape(
            state.pools,
            state.page_tokens,
            state.verify_rows,
            state.kept_columns_max,
            state.kept_nodes_max,
            state.snap_slots,
            state.accounts,
        )
    )
    tree = books.tree
    books.commands = state.commands
    tree.next_number = state.next_number
    for node in state.nodes:
        run = Run(0, _pages(books, node.columns, node.present), node.columns, None)
        run.number = node.number
        run.durable = node.durable
        run.last_access = node.last_access
        run.previous_access = node.previous_access
        run.accesses = node.accesses
        run.resumed = bool(node.flags & _RESUMED)
        run.superseded = bool(node.flags & _SUPERSEDED)
        run.account = node.account
        if node.flags & _SNAPSHOT:
            run.slot = _slot(books)
        tree.nodes[node.number] = run
        tree.columns += node.columns
        tree.count_kept(run)
        tree.count_idle(run, 1)
    for node in state.nodes:
        run, parent = tree.nodes[node.number], tree.nodes[node.parent]
        run.parent = parent
        parent.children += 1
    _place(books)
    for run in sorted(tree.nodes.values(), key=lambda run: (run.last_access, run.number)):
        if run.parent is not None:
            tree.order.append(run)
    runs: list[Run] = []

    def referred(reference: int) -> Run:
        return tree.nodes[reference] if reference >= 0 else runs[~reference]

    for item in state.runs:
        parent = referred(item.parent)
        runs.append(
            Run(parent.end, _pages(books, item.columns, item.present), item.columns, parent)
        )
    for stored in state.routes:
        route = Route(
            stored.stream, referred(stored.end), stored.rows, len(books.pools), stored.account
        )
        route.adopted_columns = stored.adopted_columns
        route.adopted_rows = stored.adopted_rows
        route.promised = list(stored.promised)
        route.marks = {column: _slot(books) for column in stored.marks}
        for pool, count in zip(books.pools, stored.promised, strict=True):
            pool.promised += count
        books.enter(route.end)
        books.routes[stored.stream] = route
    for pinned in state.leases:
        lease = Lease(
            pinned.lease, [referred(reference) for reference in pinned.runs], pinned.ram_columns
        )
        for run in lease.runs:
            if run.holders == 0 and run.number != NO_NUMBER:
                tree.count_idle(run, -1)
            run.holders += 1
            run.pins += 1
        books.leases[pinned.lease] = lease
    books.next_copy = state.next_copy
    for kept in state.copies:
        copy = _copy(books, kept)
        books.copies[copy.number] = copy
        books.copied_columns += copy.columns
    return books


def _copy(books: Books, kept: CopyState) -> Copy:
    columns = -(-kept.rows // books.shape.page_tokens)
    pages = [
        pool.take(columns - books.shape.floor_column(group, kept.rows))
        for group, pool in enumerate(books.pools)
    ]
    copy = Copy(kept.number, kept.rows, columns, pages, kept.last_access)
    copy.previous_access = kept.previous_access
    copy.accesses = kept.accesses
    copy.resumed = bool(kept.flags & _RESUMED)
    copy.superseded = bool(kept.flags & _SUPERSEDED)
    return copy


def _flags(kept: Run | Copy) -> int:
    return _RESUMED * kept.resumed + _SUPERSEDED * kept.superseded


def _slot(books: Books) -> int:
    if books.slots is None:
        raise InvariantError("a snapshot is kept and there are no slots")
    return books.slots.take(1)[0]


def _pages(books: Books, columns: int, present: tuple[int, ...]) -> list[list[int]]:
    """Fresh pages for a run."""
    counts = [columns] * len(books.pools)
    for group, count in zip(books.windows, present, strict=True):
        counts[group] = count
    if columns < 1 or any(not 0 <= count <= columns for count in counts):
        raise InvariantError(f"a run of {columns} columns cannot have {counts} pages")
    return [pool.take(count) for pool, count in zip(books.pools, counts, strict=True)]


def _place(books: Books) -> None:
    """Work out every node's first column; parents may have larger numbers than children."""
    tree = books.tree
    placed = {0}
    for number in sorted(tree.nodes):
        waiting: list[Run] = []
        run: Run | None = tree.nodes[number]
        while run is not None and run.number not in placed:
            if len(waiting) > len(tree.nodes):
                raise InvariantError(f"node {number} is its own ancestor")
            waiting.append(run)
            run = run.parent
        for run in reversed(waiting):
            run.start = run.parent.end if run.parent is not None else 0
            placed.add(run.number)
