"""How many pages rows need: the one arithmetic that admission, router and worker share."""

from __future__ import annotations

from pagetrail.catalog.errors import BadInputError

from .books import Shape


def need(shape: Shape, rows: int, step_rows: int) -> tuple[int, ...]:
    """Pages per group that a stream of up to ``rows`` rows may hold at once.

    A window group holds the window before the next row and the rows of the step being written,
    and these may begin anywhere inside a page.
    """
    if rows < 0 or step_rows < 1:
        raise BadInputError(
            f"a need is of at least 0 rows in steps of at least 1, not {rows} in {step_rows}"
        )
    page_tokens = shape.page_tokens
    columns = -(-rows // page_tokens)
    return tuple(
        [
            columns
            if pool.window_tokens == 0
            else min(columns, span_pages(pool.window_tokens - 1 + step_rows, page_tokens))
            for pool in shape.pools
        ]
    )


def saved(shape: Shape, adopted_columns: int, rows: int, step_rows: int) -> tuple[int, ...]:
    """Pages of ``need`` that a stream never takes because it adopted columns."""
    own_columns = max(0, -(-rows // shape.page_tokens) - adopted_columns)
    return tuple([count - min(count, own_columns) for count in need(shape, rows, step_rows)])


def span_pages(rows: int, page_tokens: int) -> int:
    """Most pages that ``rows`` consecutive rows can lie in."""
    return (rows + page_tokens - 2) // page_tokens + 1 if rows else 0
