"""How many pages rows need in each of an owner's groups, and on whom pages are charged."""

from __future__ import annotations

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.layout import pages_needed

from .books import Books, Shape
from .growing import shared
from .routes import Route
from .runs import NO_NUMBER, Run, path_up


def need(shape: Shape, rows: int, step_rows: int) -> tuple[int, ...]:
    """Pages per group that a stream of up to ``rows`` rows may hold at once."""
    if rows < 0 or step_rows < 1:
        raise BadInputError(
            f"a need is of at least 0 rows in steps of at least 1, not {rows} in {step_rows}"
        )
    return tuple(
        [
            pages_needed(rows, pool.window_tokens, shape.page_tokens, step_rows)
            for pool in shape.pools
        ]
    )


def saved(shape: Shape, adopted_columns: int, rows: int, step_rows: int) -> tuple[int, ...]:
    """Pages of ``need`` that a stream never takes because it adopted columns."""
    own_columns = max(0, -(-rows // shape.page_tokens) - adopted_columns)
    return tuple([count - min(count, own_columns) for count in need(shape, rows, step_rows)])


def growth(books: Books, route: Route, rows: int, step_rows: int) -> tuple[int, ...]:
    """Pages per group that a route takes to reach ``rows`` rows, a copy on write included.

    Counted from its advanced rows, whatever is in flight. A window group takes no more than what
    its window needs beyond the pages that the route alone holds, for only those come back.
    """
    shape = books.shape
    columns = route.columns
    copied = route.rows < columns * shape.page_tokens and shared(route.end)
    more = 0
    if rows > route.rows:
        more = max(0, -(-rows // shape.page_tokens) - columns) + copied
    pages = []
    for group, pool in enumerate(shape.pools):
        count = more
        if pool.window_tokens:
            own = 0
            for run in path_up(route.end):
                if shared(run):
                    break
                own += len(run.pages[group])
            bound = pages_needed(rows, pool.window_tokens, shape.page_tokens, step_rows)
            count = min(more, max(0, bound - own))
        pages.append(count)
    return tuple(pages)


def charged(books: Books, account: int) -> tuple[int, ...]:
    """Pages per group that an account's streams hold themselves or may still take.

    What forks share counts once; kept pages count for who kept them, not for who reads them.
    """
    pages = [0] * len(books.pools)
    seen: set[Run] = set()
    for route in books.routes.values():
        if route.account != account:
            continue
        for group, count in enumerate(route.promised):
            pages[group] += count
        for run in path_up(route.end):
            if run.number != NO_NUMBER or run in seen:
                break
            seen.add(run)
            for group, ids in enumerate(run.pages):
                pages[group] += len(ids)
    return tuple(pages)
