"""The book of one group's pool: which pages are free, which are promised, who took a page when.

Owns page ids. A page is free or held; of the free pages some are *promised* to streams that may
still take them, and some may be *in flight*: handed out for an append that has not been settled,
so that they still count as free and promised to every policy. How many hold a page is written in
the runs (runs.py), not here: a run's pages always have the same holders.

Allocation takes the lowest free id first. Free ids lie in blocks of ``_BLOCK_PAGES``, each a list
in descending order, so that taking and giving thousands of pages are list slices.

A *tenure* is the number of the take that handed a page out; it is never used twice. It is the
page's generation: a completion that carries the tenure of an earlier take names nothing any more.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from itertools import pairwise

from pagetrail.catalog.errors import BadInputError, InvariantError

PAGES_MAX = 2**31 - 1  # page ids travel to the device as int32
_BLOCK_SHIFT = 12
_BLOCK_PAGES = 1 << _BLOCK_SHIFT


class Pool:
    """Pages ``0 .. total - 1`` of one group."""

    __slots__ = (
        "_blocks",
        "_held",
        "_ids",
        "_nonempty",
        "_takes",
        "_tenures",
        "_unsorted",
        "_untaken",
        "in_flight",
        "promised",
        "released",
        "total",
    )

    def __init__(self, total_pages: int) -> None:
        if not 1 <= total_pages <= PAGES_MAX:
            raise BadInputError(
                f"a pool holds 1 to {PAGES_MAX} pages, not {total_pages}; give the group more room "
                "or larger pages"
            )
        self.total = total_pages
        self.promised = 0
        self.in_flight = 0
        self.released: Callable[[list[int]], None] | None = None  # told of pages that come free
        self._untaken = total_pages
        self._takes = 0
        self._tenures = array("Q", [0]) * total_pages
        self._held = bytearray(total_pages)  # 1 where the tenure is not 0: searched in no time
        # Every id that is handed out is one of these objects, so that comparing a list of pages
        # with a slice of it compares pointers.
        self._ids = list(range(total_pages))
        self._blocks = [
            self._ids[start : start + _BLOCK_PAGES][::-1]
            for start in range(0, total_pages, _BLOCK_PAGES)
        ]
        self._nonempty = (1 << len(self._blocks)) - 1
        self._unsorted = 0

    @property
    def free(self) -> int:
        """Pages nobody holds, those in flight among them."""
        return self._untaken + self.in_flight

    @property
    def available(self) -> int:
        """Pages neither held nor promised."""
        return self._untaken + self.in_flight - self.promised

    @property
    def held(self) -> int:
        """Pages with at least one holder."""
        return self.total - self._untaken - self.in_flight

    def take(self, count: int) -> list[int]:
        """The ``count`` lowest free pages, ascending. The caller has checked that they exist."""
        if not 0 <= count <= self._untaken:
            raise InvariantError(
                f"the pool was asked for {count} pages and has {self._untaken}; a promise was "
                "given without pages behind it"
            )
        taken: list[int] = []
        left = count
        while left:
            lowest = self._nonempty & -self._nonempty
            block_number = lowest.bit_length() - 1
            block = self._blocks[block_number]
            if self._unsorted & lowest:
                block.sort(reverse=True)
                self._unsorted ^= lowest
            if len(block) <= left:
                taken += reversed(block)
                left -= len(block)
                block.clear()
                self._nonempty ^= lowest
            else:
                taken += block[: -left - 1 : -1]
                del block[-left:]
                left = 0
        self._untaken -= count
        self._takes += 1
        self._stamp(taken, self._takes)
        return taken

    def give(self, pages: list[int]) -> None:
        """Make pages free.

        Raises BadInputError, with nothing changed, for a page that nobody holds or that stands
        twice in ``pages``.
        """
        span = self._is_span(pages)
        ordered = pages if span else sorted(pages)
        self._check_held(ordered, span)
        self._stamp(ordered, 0)
        self._untaken += len(ordered)
        at = 0
        while at < len(ordered):
            block_number = ordered[at] >> _BLOCK_SHIFT
            end = bisect_left(ordered, (block_number + 1) << _BLOCK_SHIFT, at)
            block = self._blocks[block_number]
            bit = 1 << block_number
            if block and block[-1] < ordered[end - 1]:
                self._unsorted |= bit
            block += reversed(ordered[at:end])
            self._nonempty |= bit
            at = end
        if self.released is not None and ordered:
            self.released(list(ordered))

    def tenure(self, page: int) -> int:
        """The number of the take that handed this page out; 0 when it is free."""
        if not 0 <= page < self.total:
            raise BadInputError(f"page {page} is not one of the pool's {self.total}")
        return self._tenures[page]

    def free_pages(self) -> list[int]:
        """Every page that is not handed out, ascending. For checks: it walks the whole pool."""
        return sorted(page for block in self._blocks for page in block)

    def _check_held(self, ordered: list[int], span: bool) -> None:
        if not ordered:
            return
        if ordered[0] < 0 or ordered[-1] >= self.total:
            wrong = ordered[0] if ordered[0] < 0 else ordered[-1]
            raise BadInputError(f"page {wrong} is not one of the pool's {self.total}")
        if span:
            if self._held.find(0, ordered[0], ordered[-1] + 1) < 0:
                return
        elif len(set(ordered)) != len(ordered):
            twice = next(a for a, b in pairwise(ordered) if a == b)
            raise BadInputError(f"page {twice} is released twice in one call; release it once")
        for page in ordered:
            if not self._held[page]:
                raise BadInputError(f"page {page} is released and nobody holds it")

    def _is_span(self, pages: list[int]) -> bool:
        """Whether the pages are consecutive ids, ascending."""
        return bool(pages) and pages[0] >= 0 and pages == self._ids[pages[0] : pages[-1] + 1]

    def _stamp(self, ascending: list[int], tenure: int) -> None:
        """Ids without repetition."""
        if not ascending:
            return
        held = 1 if tenure else 0
        first, end, count = ascending[0], ascending[-1] + 1, len(ascending)
        if end - first == count:
            self._tenures[first:end] = array("Q", [tenure]) * count
            self._held[first:end] = bytes([held]) * count
        else:
            tenures, flags = self._tenures, self._held
            for page in ascending:
                tenures[page] = tenure
                flags[page] = held
