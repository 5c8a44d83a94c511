"""The page owner: one book of pages for every stream and every kept prompt of a worker.

It folds commands (``apply``); nothing else changes what a policy can see. The same class serves
production and replay. Page ids exist, lowest free first, but are no part of the state: two owners
that differ in ids alone encode equally.

What it does: keeps who holds which pages, checks every command before it changes anything, and
answers what a policy or an engine asks of the book. What it never does: decide, read a clock, do
I/O, know a token.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.worker import PoolSpec

from . import appends
from .appends import Append, Shortfall
from .books import Books, Shape
from .check import check
from .commands import OPERATIONS
from .demand import charged, growth, need, saved
from .kept import KeptObserver
from .routes import Copy, Route
from .runs import NO_NUMBER, NO_SLOT, Run, path_down, path_up
from .state import decode, encode


class PageOwner:
    """See the module. Tuples of counts stand per group, in the order of ``pools``."""

    __slots__ = ("_books",)

    def __init__(
        self,
        pools: tuple[PoolSpec, ...],
        page_tokens: int,
        verify_rows: int,
        kept_columns_max: int,
        kept_nodes_max: int,
        snap_slots: int = 0,
        accounts: int = 1,
    ) -> None:
        """Raises BadInputError for a shape that cannot be."""
        self._books = Books(
            Shape(
                pools,
                page_tokens,
                verify_rows,
                kept_columns_max,
                kept_nodes_max,
                snap_slots,
                accounts,
            )
        )

    def apply(self, command: msgspec.Struct) -> None:
        """Carry one command out.

        Raises BadInputError, with nothing changed, when the command does not fit the book.
        """
        operation = OPERATIONS.get(type(command))
        if operation is None:
            raise BadInputError(
                f"{type(command).__name__} is no command to a page owner; see docs/pages.md"
            )
        books = self._books
        books.commands += 1
        try:
            operation(books, command)
        except BadInputError:
            books.commands -= 1
            raise

    # ------------------------------------------------------------ what a policy sees

    @property
    def shape(self) -> Shape:
        """What the owner was built from."""
        return self._books.shape

    @property
    def commands(self) -> int:
        """Commands applied so far."""
        return self._books.commands

    @property
    def windows(self) -> tuple[int, ...]:
        """Groups whose runs may hold fewer pages than columns; in the others it is one a column."""
        return self._books.windows

    def total(self) -> tuple[int, ...]:
        """All pages."""
        return tuple([pool.total for pool in self._books.pools])

    def free(self) -> tuple[int, ...]:
        """Pages nobody holds, promised ones among them."""
        return tuple([pool.free for pool in self._books.pools])

    def held(self) -> tuple[int, ...]:
        """Pages with a holder."""
        return tuple([pool.held for pool in self._books.pools])

    def available(self) -> tuple[int, ...]:
        """Pages neither held nor promised."""
        return tuple([pool.available for pool in self._books.pools])

    def promised_in_all(self) -> tuple[int, ...]:
        """Free pages that streams may still take."""
        return tuple([pool.promised for pool in self._books.pools])

    def promised(self, stream: int) -> tuple[int, ...]:
        """Pages that one stream may still take."""
        return tuple(self._books.route(stream).promised)

    def rows(self, stream: int) -> int:
        """Rows of a stream's route."""
        return self._books.route(stream).rows

    def reclaimable(self) -> tuple[int, ...]:
        """Pages that evicting all that may be evicted would free."""
        return self._books.tree.reclaimable()

    def reclaimable_after_adopting(self, node: int, columns: int) -> tuple[int, ...]:
        """The same, as if a stream held the path of ``columns`` columns that ends in ``node``."""
        taken = self.idle_adopted(node, columns)
        return tuple(
            [
                pages - sum([by_account[group] for by_account in taken.values()])
                for group, pages in enumerate(self.reclaimable())
            ]
        )

    def idle_adopted(self, node: int, columns: int) -> dict[int, list[int]]:
        """Reclaimable pages per account and group that adopting the path would take away."""
        tree = self._books.tree
        taken: dict[int, list[int]] = {}
        for run in path_up(tree.locate(node, columns)):
            if run.holders == 0:
                pages = taken.setdefault(run.account, [0] * len(run.pages))
                beyond = max(0, run.end - columns)
                for group, ids in enumerate(run.pages):
                    pages[group] += max(0, len(ids) - beyond)
        return taken

    def need(self, rows: int, step_rows: int = 1) -> tuple[int, ...]:
        """Pages that a stream of up to ``rows`` rows may ever hold at once.

        ``step_rows``: most rows that it writes before what fell behind a window is given back.
        """
        return need(self._books.shape, rows, step_rows)

    def adoption_pages(
        self, node: int, columns: int, rows: int, step_rows: int = 1
    ) -> tuple[int, ...]:
        """Pages of that need which adopting the path saves; the rest is to be promised.

        A page that was adopted does not come back to the stream when it falls behind a window,
        so a window group saves only what the stream would not have to replace.
        """
        self._books.tree.locate(node, columns)
        return saved(self._books.shape, columns, rows, step_rows)

    def growth(self, stream: int, rows: int, step_rows: int = 1) -> tuple[int, ...]:
        """Pages that a stream takes to reach ``rows`` rows, a copy on write included.

        What exceeds ``promised(stream)`` must be promised first: if too little is available, kept
        prompts go, then another stream is preempted.
        """
        return growth(self._books, self._books.route(stream), rows, step_rows)

    @property
    def kept_columns(self) -> int:
        """Columns that kept nodes and copies hold."""
        return self._books.tree.columns + self._books.copied_columns

    @property
    def next_node(self) -> int:
        """The number that the next new node gets."""
        return self._books.tree.next_number

    @property
    def kept_nodes(self) -> int:
        """Kept nodes, without the root."""
        return len(self._books.tree)

    def charged(self, account: int) -> tuple[int, ...]:
        """Pages that an account's streams hold themselves or may still take."""
        return charged(self._books, account)

    def kept_nodes_of(self, account: int) -> int:
        """Kept nodes that are charged to an account."""
        return self._books.tree.nodes_of[account]

    def kept_pages_of(self, account: int) -> tuple[int, ...]:
        """Pages of an account's kept nodes."""
        return tuple(self._books.tree.kept[account])

    def reclaimable_of(self, account: int) -> tuple[int, ...]:
        """Pages that evicting all that may be evicted of one account's nodes would free."""
        return tuple(self._books.tree.idle[account])

    def streams(self) -> list[int]:
        """Streams that hold a route, ascending."""
        return sorted(self._books.routes)

    def route(self, stream: int) -> Route:
        """A stream's route, to read. Raises BadInputError when it has none."""
        return self._books.route(stream)

    def has_route(self, stream: int) -> bool:
        """Whether the stream holds a route."""
        return stream in self._books.routes

    def leases(self) -> list[int]:
        """Leases that are out, ascending."""
        return sorted(self._books.leases)

    def node(self, number: int) -> Run:
        """A kept node, to read. Raises BadInputError when it is not kept."""
        return self._books.tree.node(number)

    def oldest_nodes(self) -> Iterator[Run]:
        """Kept nodes in order of (last access, number), lazily; apply nothing meanwhile."""
        return iter(self._books.tree.order)

    def resume_point(self, node: int, columns: int) -> tuple[int, int]:
        """The longest part of a kept path that can be resumed: (node, columns).

        The path itself without snapshot slots; with them, its last snapshot, (0, 0) without one.
        """
        tree = self._books.tree
        run = tree.locate(node, columns)
        if self._books.slots is None:
            return node, columns
        while run.parent is not None and (run.slot == NO_SLOT or run.end > columns):
            run = run.parent
        return run.number, run.end

    def free_slots(self) -> int:
        """Snapshot slots that neither a mark nor a node has."""
        return 0 if self._books.slots is None else self._books.slots.free

    def copies(self) -> tuple[Copy, ...]:
        """Kept copies in order of last access, to read."""
        return tuple(self._books.copies.values())

    def copy(self, number: int) -> Copy:
        """A kept copy, to read. Raises BadInputError when it is not kept."""
        return self._books.copy(number)

    def kept_path(self, stream: int) -> tuple[tuple[int, int, int], ...]:
        """(node, first column, columns) of each kept node on a stream's route, from the top."""
        return tuple(
            (run.number, run.start, run.columns)
            for run in path_down(self._books.route(stream).end)
            if run.number != NO_NUMBER
        )

    def freed_by(self, stream: int) -> tuple[int, ...]:
        """Pages that would become available if the stream left: its own and its promise."""
        route = self._books.route(stream)
        pages = list(route.promised)
        for run in path_up(route.end):
            if run.number != NO_NUMBER or run.holders > 1:
                break
            for group, ids in enumerate(run.pages):
                pages[group] += len(ids)
        return tuple(pages)

    # ------------------------------------------------------------ what an engine asks

    def reserve(self, stream: int, rows: int) -> Append | Shortfall:
        """Take the pages of a stream's next rows before they are written; see appends.py."""
        return appends.reserve(self._books, stream, rows)

    def commit(self, append: Append, rows: int) -> bool:
        """The append's first ``rows`` rows are written; False: it had ended before."""
        return appends.commit(self._books, append, rows)

    def abort(self, append: Append) -> bool:
        """No row of the append counts; False: it had ended before."""
        return appends.abort(self._books, append)

    def shortfall(self, stream: int, rows: int) -> tuple[int, ...]:
        """Pages per group to promise before ``rows`` more rows can be reserved; zeros: none."""
        return appends.shortfall(self._books, stream, rows)

    def committed(self) -> tuple[tuple[int, int], ...]:
        """(stream, rows) written and not yet advanced, by stream: the next RowsAdvanced."""
        return appends.committed(self._books)

    def page_table(self, stream: int, group: int, first_column: int = 0) -> list[int]:
        """Page ids of a stream's columns from ``first_column`` on, those in flight included.

        -1 stands where a window group has given its page back.
        """
        return appends.page_table(self._books.route(stream), group, first_column)

    def dirty_from(self, stream: int) -> int:
        """The first column of the stream's page tables that has changed since ``uploaded``."""
        return self._books.route(stream).dirty_from

    def uploaded(self, stream: int) -> None:
        """The device has the stream's page tables as they are now."""
        route = self._books.route(stream)
        ahead = route.ahead
        route.dirty_from = (
            route.columns if ahead is None else ahead.first_column + len(ahead.pages[0])
        )

    def tenure(self, group: int, page: int) -> int:
        """The generation of a page: it differs after every release; 0 when nobody holds it."""
        return self._books.pools[group].tenure(page)

    def observe_released(self, observer: Callable[[int, list[int]], None] | None) -> None:
        """Tell ``observer(group, pages)`` of all pages that come free from now on, before they can
        be taken again (None: nobody)."""
        for group, pool in enumerate(self._books.pools):
            pool.released = None if observer is None else partial(observer, group)

    def observe_kept(self, observer: KeptObserver | None) -> None:
        """Tell ``observer`` of every later split and cut of nodes (None: nobody)."""
        self._books.tree.observer = observer

    # ------------------------------------------------------------ state

    def encode(self) -> bytes:
        """The whole state without page ids; equal states, and only those, encode equally."""
        return encode(self._books)

    @classmethod
    def decode(cls, state: bytes) -> PageOwner:
        """An owner of the encoded state, with fresh page ids, lowest first.

        Raises CorruptionError when the bytes are not such a state.
        """
        owner = cls.__new__(cls)
        owner._books = decode(state)
        return owner

    def check(self) -> None:
        """Verify every invariant by brute force. Raises InvariantError naming the first broken."""
        check(self._books)
