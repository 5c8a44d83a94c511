"""Every invariant of the book, verified by brute force from what lies there.

Used after each operation in tests, on every state that is read back, and by a worker that idles.
It trusts no counter: each is counted again.
"""

from __future__ import annotations

from collections import Counter

from pagetrail.catalog.errors import InvariantError

from .books import Books
from .runs import NO_NUMBER, NO_SLOT, Run, path_up


def check(books: Books) -> None:
    """Raises InvariantError naming the first invariant that does not hold."""
    users = _users(books)
    runs = _runs(books, users)
    _check_shape(books, runs)
    _check_users(books, runs, users)
    _check_pages(books, runs)
    _check_tree(books)
    _check_routes(books)
    _check_slots(books)
    _check_copies(books)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise InvariantError(message)


def _users(books: Books) -> Counter[Run]:
    """How many routes and leases include each run."""
    users: Counter[Run] = Counter()
    for route in books.routes.values():
        users.update(path_up(route.end))
    for lease in books.leases.values():
        users.update(lease.runs)
    return users


def _runs(books: Books, users: Counter[Run]) -> list[Run]:
    """Every run that is kept or used, each once, without the root."""
    kept = [run for run in books.tree.nodes.values() if run.parent is not None]
    return kept + [run for run in users if run.number == NO_NUMBER]


def _check_shape(books: Books, runs: list[Run]) -> None:
    for run in runs:
        name = f"run {run.number} at column {run.start}"
        parent = run.parent
        _require(parent is not None and run.start == parent.end, f"{name} leaves a gap above it")
        _require(run.columns >= 1, f"{name} has no column")
        for group, ids in enumerate(run.pages):
            wanted = range(run.columns + 1) if group in books.windows else (run.columns,)
            _require(
                len(ids) in wanted,
                f"{name} of {run.columns} columns has {len(ids)} pages of group {group}",
            )
        if run.number != NO_NUMBER:
            _require(books.tree.nodes.get(run.number) is run, f"{name} is not in the table")
            _require(
                parent is not None and parent.number != NO_NUMBER,
                f"{name} is kept below a run that is not",
            )


def _check_users(books: Books, runs: list[Run], users: Counter[Run]) -> None:
    for run in runs:
        _require(
            run.holders == users[run],
            f"run {run.number} at column {run.start} counts {run.holders} holders and has "
            f"{users[run]}",
        )
        pins = sum(run in lease.runs for lease in books.leases.values())
        _require(run.pins == pins, f"run {run.number} counts {run.pins} pins and has {pins}")
        _require(run.holds >= 1, f"run {run.number} at column {run.start} has no holder")


def _check_pages(books: Books, runs: list[Run]) -> None:
    for group, pool in enumerate(books.pools):
        name = f"group {books.shape.pools[group].name!r}"
        owned = [page for run in runs for page in run.pages[group]]
        flying = [
            page
            for route in books.routes.values()
            if route.ahead is not None
            for page in route.ahead.pages[group]
        ]
        _require(
            pool.in_flight == len(flying),
            f"{name} counts {pool.in_flight} pages in flight and has {len(flying)}",
        )
        owned += flying
        owned += [page for copy in books.copies.values() for page in copy.pages[group]]
        held = set(owned)
        free = pool.free_pages()
        _require(len(held) == len(owned), f"{name}: a page lies in two runs")
        _require(len(set(free)) == len(free), f"{name}: a page is free twice")
        _require(held.isdisjoint(free), f"{name}: a page is both held and free")
        _require(
            len(held) + len(free) == pool.total, f"{name}: held and free pages are not all pages"
        )
        _require(
            all(pool.tenure(page) > 0 for page in owned)
            and all(pool.tenure(page) == 0 for page in free),
            f"{name}: a tenure contradicts who holds the page",
        )
        promised = sum(route.promised[group] for route in books.routes.values())
        _require(
            pool.promised == promised,
            f"{name} counts {pool.promised} promised pages and streams may take {promised}",
        )
        _require(
            all(route.promised[group] >= 0 for route in books.routes.values()),
            f"{name}: a promise is negative",
        )
        _require(pool.available >= 0, f"{name} has promised more pages than are free")


def _check_tree(books: Books) -> None:
    tree = books.tree
    nodes = [run for run in tree.nodes.values() if run.parent is not None]
    children = Counter(run.parent for run in nodes)
    for run in tree.nodes.values():
        _require(
            run.children == children[run],
            f"node {run.number} counts {run.children} children and has {children[run]}",
        )
        _require(run.number < tree.next_number, f"node {run.number} was never numbered")
    for run in nodes:
        parent = run.parent
        _require(
            0 <= run.durable <= run.columns
            and (run.durable == 0 or parent is None or parent.durable == parent.columns),
            f"node {run.number} is durable beyond its path",
        )
        _require(
            run.previous_access < run.last_access <= books.commands,
            f"node {run.number} was accessed out of time",
        )
        _require(
            parent is None or parent.parent is None or parent.last_access >= run.last_access,
            f"node {run.number} was accessed later than its parent",
        )
    _require(
        tree.columns == sum(run.columns for run in nodes)
        and tree.columns + books.copied_columns <= books.shape.kept_columns_max,
        f"{tree.columns} kept columns are counted",
    )
    order = [(run.last_access, run.number) for run in tree.order]
    _require(
        order == sorted((run.last_access, run.number) for run in nodes),
        "the order of last access is broken",
    )
    accounts = range(books.shape.accounts)
    _require(
        all(run.account in accounts for run in nodes)
        and all(route.account in accounts for route in books.routes.values()),
        f"a node or stream is charged to none of the {len(accounts)} accounts",
    )
    for account in accounts:
        own = [run for run in nodes if run.account == account]
        kept = [sum(len(run.pages[group]) for run in own) for group in range(len(books.pools))]
        _require(
            (tree.nodes_of[account], tree.kept[account]) == (len(own), kept),
            f"account {account} counts {tree.nodes_of[account]} nodes with {tree.kept[account]} "
            f"pages and keeps {len(own)} with {kept}",
        )
    peeled = _peel(nodes, len(books.pools), books.shape.accounts)
    _require(
        tree.idle == peeled,
        f"{tree.idle} pages are counted as reclaimable and {peeled} can be peeled off",
    )


def _peel(nodes: list[Run], groups: int, accounts: int) -> list[list[int]]:
    """Pages per account and group that come free when leaves that the tree alone holds go."""
    pages = [[0] * groups for _ in range(accounts)]
    left = set(nodes)
    while True:
        parents = {run.parent for run in left}
        leaves = [run for run in left if run.holders == 0 and run not in parents]
        if not leaves:
            return pages
        for run in leaves:
            left.remove(run)
            for group, ids in enumerate(run.pages):
                pages[run.account][group] += len(ids)


def _check_routes(books: Books) -> None:
    page_tokens = books.shape.page_tokens
    ahead_of = {stream for stream, route in books.routes.items() if route.ahead is not None}
    _require(books.ahead.keys() == ahead_of, "routes with pages in flight are miscounted")
    for stream, route in books.routes.items():
        _require(stream == route.stream >= 1, f"stream {stream} is filed under another number")
        _require(
            -(-route.rows // page_tokens) == route.columns,
            f"stream {stream} has {route.rows} rows in {route.columns} columns",
        )
        ahead = route.ahead
        if ahead is None:
            continue
        _require(
            all(
                len(ids) <= promised
                for ids, promised in zip(ahead.pages, route.promised, strict=True)
            ),
            f"stream {stream} has more pages in flight than it was promised",
        )
        rows = route.rows + ahead.committed_rows + ahead.pending_rows
        _require(
            -(-rows // page_tokens) == ahead.first_column + len(ahead.pages[0]),
            f"stream {stream} has pages in flight for other rows than it writes",
        )


def _check_slots(books: Books) -> None:
    taken = [run.slot for run in books.tree.nodes.values() if run.slot != NO_SLOT]
    taken += [slot for route in books.routes.values() for slot in route.marks.values()]
    free = [] if books.slots is None else books.slots.free_pages()
    _require(
        sorted(taken + free) == list(range(books.shape.snap_slots)),
        f"free slots {free} and taken slots {taken} are not all {books.shape.snap_slots}",
    )


def _check_copies(books: Books) -> None:
    copies = books.copies
    _require(
        books.copied_columns == sum(copy.columns for copy in copies.values()),
        f"{books.copied_columns} columns of copies are counted",
    )
    stamps = [copy.last_access for copy in copies.values()]
    _require(stamps == sorted(stamps), "copies are out of the order of their last access")
    for number, copy in copies.items():
        _require(
            number == copy.number < books.next_copy
            and copy.columns == -(-copy.rows // books.shape.page_tokens),
            f"copy {number} is not what it was filed as",
        )
