"""A second page owner that is slow on purpose: an oracle for the real one.

It knows nothing of runs, radix trees, numbers or slices. Every page is an object with a set of
holders; what is kept is a table from content (the tuple of all symbols up to a column) to pages;
each count is taken anew over all pages whenever it is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field

TREE = "tree"


@dataclass(eq=False)
class Page:
    holders: set[str] = field(default_factory=set)


@dataclass
class Column:
    """One page per group; None where it was given back."""

    pages: list[Page | None]


@dataclass
class Stream:
    name: str
    rows: int
    columns: list[Column]
    promised: list[int]


@dataclass
class Kept:
    column: Column
    last_access: int
    previous_access: int = -1
    accesses: int = 1
    resumed: bool = False
    durable: bool = False


Content = tuple[object, ...]


class PageModel:
    def __init__(self, pages: list[int], windows: list[int], page_tokens: int) -> None:
        self.total = pages
        self.windows = windows
        self.page_tokens = page_tokens
        self.streams: dict[int, Stream] = {}
        self.kept: dict[Content, Kept] = {}
        self.leased: dict[int, list[list[Page]]] = {}  # lease -> per group
        self.snapshots: set[Content] = set()
        self.marks: dict[int, set[int]] = {}  # stream -> columns
        self.copies: dict[
            int, tuple[int, list[int], int]
        ] = {}  # number -> rows, pages, last access
        self.now = 0

    # ---------------------------------------------------------------- counts

    def live_pages(self, group: int) -> set[Page]:
        columns = [column for stream in self.streams.values() for column in stream.columns]
        columns += [kept.column for kept in self.kept.values()]
        found = {column.pages[group] for column in columns}
        pages = {page for page in found if page is not None and page.holders}
        return pages | {
            page for leased in self.leased.values() for page in leased[group] if page.holders
        }

    def free(self) -> list[int]:
        return [
            total - len(self.live_pages(g)) - sum(pages[g] for _, pages, _ in self.copies.values())
            for g, total in enumerate(self.total)
        ]

    def promised(self) -> list[int]:
        return [
            sum(stream.promised[g] for stream in self.streams.values())
            for g in range(len(self.total))
        ]

    def available(self) -> list[int]:
        return [f - p for f, p in zip(self.free(), self.promised(), strict=True)]

    def reclaimable(self) -> list[int]:
        left = dict(self.kept)
        counts = [0] * len(self.total)
        while True:
            inner = {content[:-1] for content in left}
            loose = [
                content
                for content, kept in left.items()
                if content not in inner
                and all(page is None or page.holders == {TREE} for page in kept.column.pages)
            ]
            if not loose:
                return counts
            for content in loose:
                for group, page in enumerate(left.pop(content).column.pages):
                    counts[group] += page is not None

    def floor(self, group: int, rows: int) -> int:
        window = self.windows[group]
        return max(0, rows - window + 1) // self.page_tokens if window else 0

    # ---------------------------------------------------------------- holds

    def _hold(self, name: str, columns: list[Column], rows: int) -> None:
        """A holder at ``rows`` rows takes all pages of the columns that it may still read."""
        for group in range(len(self.total)):
            for place, column in enumerate(columns):
                page = column.pages[group]
                if page is not None and place >= self.floor(group, rows):
                    page.holders.add(name)

    def _release(self, name: str) -> None:
        columns = [c for stream in self.streams.values() for c in stream.columns]
        columns += [kept.column for kept in self.kept.values()]
        for column in columns:
            for page in column.pages:
                if page is not None:
                    page.holders.discard(name)
        for leased in self.leased.values():
            for pages in leased:
                for page in pages:
                    page.holders.discard(name)
        self._sweep()

    def _sweep(self) -> None:
        """A page that nobody holds is gone from wherever it stood."""
        columns = [c for stream in self.streams.values() for c in stream.columns]
        columns += [kept.column for kept in self.kept.values()]
        for column in columns:
            column.pages = [p if p is not None and p.holders else None for p in column.pages]

    # ---------------------------------------------------------------- commands

    def adopt(self, number: int, content: Content, rows: int) -> None:
        self.now += 1
        name = f"s{number}"
        columns = []
        for end in range(1, len(content) + 1):
            kept = self.kept[content[:end]]
            kept.previous_access, kept.last_access = kept.last_access, self.now
            kept.accesses += 1
            kept.resumed = True
            columns.append(Column(list(kept.column.pages)))
        self._hold(name, columns, rows)
        self.streams[number] = Stream(name, rows, columns, [0] * len(self.total))

    def promise(self, number: int, pages: tuple[int, ...]) -> None:
        self.now += 1
        promised = self.streams[number].promised
        for group, count in enumerate(pages):
            promised[group] += count

    def leave(self, number: int) -> None:
        self.now += 1
        self._release(self.streams.pop(number).name)
        self.marks.pop(number, None)

    def slots_taken(self) -> int:
        return len(self.snapshots) + sum(len(marks) for marks in self.marks.values())

    def arm(self, number: int, column: int) -> None:
        self.now += 1
        self.marks.setdefault(number, set()).add(column)

    def disarm(self, number: int, column: int) -> None:
        self.now += 1
        self.marks[number].remove(column)

    def drop_snapshot(self, content: Content) -> None:
        self.now += 1
        self.snapshots.remove(content)

    def copy(self, number: int, stream: int, rows: int) -> None:
        self.now += 1
        end = -(-rows // self.page_tokens)
        pages = [end - self.floor(group, rows) for group in range(len(self.total))]
        self.copies[number] = (rows, pages, self.now)

    def touch_copy(self, number: int) -> None:
        self.now += 1
        self.copies[number] = (*self.copies[number][:2], self.now)

    def drop_copies(self, numbers: tuple[int, ...]) -> None:
        self.now += 1
        for number in numbers:
            del self.copies[number]

    def advance(self, entries: tuple[tuple[int, int], ...]) -> None:
        self.now += 1
        for number, rows in entries:
            self._advance(self.streams[number], rows)

    def _advance(self, stream: Stream, rows: int) -> None:
        name = stream.name
        after = stream.rows + rows
        if stream.rows % self.page_tokens:
            last = stream.columns[-1]
            token_page = next(p for g, p in enumerate(last.pages) if not self.windows[g])
            assert token_page is not None
            if token_page.holders != {name}:
                for page in last.pages:
                    if page is not None:
                        page.holders.discard(name)
                stream.columns.pop()
        first = len(stream.columns)
        end = -(-after // self.page_tokens)
        for group in range(len(self.total)):
            floor = self.floor(group, after)
            for column in stream.columns[:floor]:
                page = column.pages[group]
                if page is not None and name in page.holders:
                    page.holders.discard(name)
                    stream.promised[group] += not page.holders
        stream.columns += [Column([None] * len(self.total)) for _ in range(first, end)]
        for group in range(len(self.total)):
            for place in range(max(first, self.floor(group, after)), end):
                stream.columns[place].pages[group] = Page({name})
                stream.promised[group] -= 1
        stream.rows = after
        self._sweep()

    def fork(self, number: int, source: int, rows: int) -> None:
        self.now += 1
        end = -(-rows // self.page_tokens)
        columns = [Column(list(c.pages)) for c in self.streams[source].columns[:end]]
        self._hold(f"s{number}", columns, rows)
        self.streams[number] = Stream(f"s{number}", rows, columns, [0] * len(self.total))

    def keep(self, number: int, content: Content) -> None:
        self.now += 1
        stream = self.streams[number]
        token = next(g for g, window in enumerate(self.windows) if not window)
        shared = 0
        while shared < len(content) and content[: shared + 1] in self.kept:
            shared += 1
        moved = [stream]
        leases: list[str] = []
        if shared < len(stream.columns):
            page = stream.columns[shared].pages[token]
            assert page is not None
            moved = [s for s in self.streams.values() if s.name in page.holders]
            leases = [holder for holder in page.holders if holder.startswith("l")]
        for place in range(shared):
            kept = self.kept[content[: place + 1]]
            for group, ours in enumerate(kept.column.pages):
                for other in moved:
                    theirs = other.columns[place].pages[group]
                    if theirs is ours:
                        continue
                    if theirs is not None:
                        theirs.holders.discard(other.name)
                    other.columns[place].pages[group] = ours
                    if ours is not None and place >= self.floor(group, other.rows):
                        ours.holders.add(other.name)
                for lease in leases:
                    if ours is not None:
                        ours.holders.add(lease)
                        pages = self.leased[int(lease[1:])][group]
                        if ours not in pages:
                            pages.append(ours)
        for place in range(shared, len(content)):
            column = stream.columns[place]
            for page in column.pages:
                if page is not None:
                    page.holders.add(TREE)
            self.kept[content[: place + 1]] = Kept(Column(list(column.pages)), self.now)
        for end in range(1, len(content) + 1):
            self.kept[content[:end]].last_access = self.now
        for mark in sorted(self.marks.get(number, ())):
            if mark <= len(content) and mark * self.page_tokens <= stream.rows:
                self.marks[number].remove(mark)
                self.snapshots.add(content[:mark])
        self._sweep()

    def evict(self, contents: list[Content]) -> None:
        self.now += 1
        for content in contents:
            self.snapshots.discard(content)
            for page in self.kept.pop(content).column.pages:
                if page is not None:
                    assert page.holders == {TREE}
                    page.holders.clear()

    def durable(self, content: Content) -> None:
        self.now += 1
        for end in range(1, len(content) + 1):
            self.kept[content[:end]].durable = True

    def pin(self, number: int, columns: list[Column]) -> None:
        self.now += 1
        self.leased[number] = [[] for _ in self.total]
        for column in columns:
            for group, page in enumerate(column.pages):
                if page is not None and page.holders:
                    page.holders.add(f"l{number}")
                    self.leased[number][group].append(page)

    def unpin(self, number: int) -> None:
        self.now += 1
        self._release(f"l{number}")
        del self.leased[number]
        self._sweep()
