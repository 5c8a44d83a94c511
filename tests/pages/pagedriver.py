"""Drives three owners through the same commands: a live one (with appends in flight), a replayed
one that sees commands only, and the page-by-page model; and compares them after each command.

Choices come from ``pick(n)``, a number below n, so that Hypothesis, an enumeration and a seeded
generator can all drive it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import pytest
from pagemodel import Content, PageModel

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.worker import (
    AdoptionUndone,
    CopiesDropped,
    CopyKept,
    CopyRestored,
    FinishReason,
    MarkArmed,
    MarkDisarmed,
    NodeDurable,
    NodesEvicted,
    PagesAdopted,
    PagesPinned,
    PagesPromised,
    PagesUnpinned,
    PoolSpec,
    PromptKept,
    RamKeepBegun,
    RamKeepEnded,
    RouteForked,
    RowsAdvanced,
    SnapshotDropped,
    StreamFinished,
    StreamPreempted,
)
from pagetrail.controlplane.pages.appends import Append, Shortfall
from pagetrail.controlplane.pages.index import PrefixIndex
from pagetrail.controlplane.pages.owner import PageOwner

LIMIT = 10_000
ACCOUNTS = 2


@dataclass
class Live:
    symbols: list[object]  # one a column; what a column holds follows from all up to it
    planned: int  # leading columns whose symbols are given, however many rows of them exist
    pending: Append | None = None
    fresh: bool = True  # may still be undone
    appended: int = 0  # committed rows that are not advanced yet


@dataclass
class Driver:
    pools: tuple[PoolSpec, ...]
    page_tokens: int
    pick: Callable[[int], int]
    slots: int = 0
    streams: dict[int, Live] = field(default_factory=dict)
    number: int = 0
    lease: int = 0
    leases: list[int] = field(default_factory=list)
    to_ram: set[int] = field(default_factory=set)
    copies: int = 0

    def __post_init__(self) -> None:
        shape = (self.pools, self.page_tokens, 0, LIMIT, LIMIT, self.slots, ACCOUNTS)
        self.live, self.replayed = PageOwner(*shape), PageOwner(*shape)
        self.index = PrefixIndex(self.live)
        self.model = PageModel(
            [pool.pages for pool in self.pools],
            [pool.window_tokens for pool in self.pools],
            self.page_tokens,
        )

    # ---------------------------------------------------------------- content

    def content(self, stream: int, columns: int, rows: int) -> Content:
        """What the first columns hold; a partly filled one is told from a full one."""
        symbols: list[object] = list(self.streams[stream].symbols[:columns])
        filled = rows - (columns - 1) * self.page_tokens
        if columns and filled < self.page_tokens:
            symbols[-1] = (symbols[-1], filled)
        return tuple(symbols)

    @staticmethod
    def digests(content: Content) -> list[Content]:
        return [content[: end + 1] for end in range(len(content))]

    def kept_contents(self, node: int) -> list[Content]:
        """Contents of a node's columns, found through the index."""
        contents = sorted(self.model.kept, key=len)
        return [c for c in contents if self.index.match(self.digests(c)) == (node, len(c))]

    # ---------------------------------------------------------------- applying

    def apply(self, command: msgspec.Struct) -> None:
        self.live.apply(command)
        self.replayed.apply(command)

    def refused(self, command: msgspec.Struct) -> None:
        """The command is refused by both, and neither changes."""
        for owner in (self.live, self.replayed):
            before = owner.encode()
            with pytest.raises(BadInputError):
                owner.apply(command)
            assert owner.encode() == before

    def settle(self, stream: int | None = None) -> None:
        """Advance committed rows, as is done before a decision; all streams or one."""
        committed = self.live.committed()
        assert dict(committed) == {
            n: one.appended for n, one in self.streams.items() if one.appended
        }
        entries = tuple(e for e in committed if stream in (None, e[0]))
        if not entries:
            return
        self.apply(RowsAdvanced(entries))
        self._advanced(entries)

    def _advanced(self, entries: tuple[tuple[int, int], ...]) -> None:
        for number, rows in entries:
            live = self.streams[number]
            before = self.model.streams[number].rows
            place = before // self.page_tokens
            if before % self.page_tokens and place >= live.planned:
                live.symbols[place] = (number, before, rows)  # no longer what a fork calls it
            end = -(-(before + rows) // self.page_tokens)
            start = len(live.symbols)
            live.symbols += [(number, place) for place in range(start, end)]
            live.appended = 0
            live.fresh = False
        self.model.advance(entries)

    # ---------------------------------------------------------------- steps

    def step(self) -> None:
        steps = [
            self.begin,
            self.begin,
            self.append,
            self.append,
            self.append,
            self.end_append,
            self.end_append,
            self.advance_at_once,
            self.settle_all,
            self.keep,
            self.keep,
            self.finish,
            self.fork,
            self.evict,
            self.pin,
            self.unpin,
            self.more,
            self.durable,
            self.nonsense,
            self.copy,
            self.restore_copy,
            self.drop_copies,
        ]
        if self.slots:
            steps += [self.arm, self.arm, self.arm, self.disarm, self.drop_snapshot]
        steps[self.pick(len(steps))]()
        self.compare()

    def _stream(self) -> int | None:
        numbers = sorted(self.streams)
        return numbers[self.pick(len(numbers))] if numbers else None

    def _settled(self) -> int | None:
        """A stream without anything pending; its rows are advanced first."""
        number = self._stream()
        if number is None or self.streams[number].pending is not None:
            return None
        self.settle(number)
        return number

    def begin(self) -> None:
        wanted = [self.pick(2) for _ in range(self.pick(5))]
        found, columns = self.index.match(self.digests(tuple(wanted)))
        if self.slots and columns and self.pick(4):
            found, columns = self.live.resume_point(found, columns)
        rows = columns * self.page_tokens
        if not self.slots and columns and self.page_tokens > 1 and self.pick(4) == 0:
            rows -= 1  # row-granular reuse: the last token stays to be computed
        self.number += 1
        command = PagesAdopted(self.number, found, columns, rows, self.number % ACCOUNTS)
        try:
            self.live.apply(command)
        except BadInputError:  # a window has given back what would be read, or no snapshot there
            unsaved = self.slots and tuple(wanted[:columns]) not in self.model.snapshots
            assert unsaved or any(pool.window_tokens for pool in self.pools)
            self.number -= 1
            return
        assert not self.slots or not columns or tuple(wanted[:columns]) in self.model.snapshots
        self.replayed.apply(command)
        self.model.adopt(self.number, tuple(wanted[:columns]), rows)
        self.streams[self.number] = Live(list(wanted), len(wanted))
        self.more(self.number)

    def more(self, number: int | None = None) -> None:
        number = number if number is not None else self._stream()
        if number is None:
            return
        pages = tuple(self.pick(min(4, count) + 1) for count in self.live.available())
        self.apply(PagesPromised(number, pages))
        self.model.promise(number, pages)
        self.streams[number].fresh &= not any(pages)

    def append(self) -> None:
        number = self._stream()
        if number is None or self.streams[number].pending is not None:
            return
        rows = 1 + self.pick(2 * self.page_tokens)
        answer = self.live.reserve(number, rows)
        if isinstance(answer, Shortfall):
            assert any(answer.pages)
            return
        assert answer.rows == len(answer.slots(0))
        assert len(set(answer.slots(0))) == rows
        self.streams[number].pending = answer
        self.streams[number].fresh = False

    def end_append(self) -> None:
        number = self._stream()
        if number is None:
            return
        live = self.streams[number]
        append = live.pending
        if append is None:
            return
        rows = self.pick(append.rows + 1)
        assert self.live.commit(append, rows)
        assert not self.live.abort(append)  # it has ended: nothing happens
        live.pending = None
        live.appended += rows

    def advance_at_once(self) -> None:
        """Rows without an append before, as a replay sees them; refused beyond the promise."""
        number = self._settled()
        if number is None:
            return
        rows = 1 + self.pick(3 * self.page_tokens)
        command = RowsAdvanced(((number, rows),))
        before = self.live.encode()
        try:
            self.live.apply(command)
        except BadInputError:
            assert self.live.encode() == before
            self.refused(command)
            return
        self.replayed.apply(command)
        self._advanced(((number, rows),))

    def settle_all(self) -> None:
        self.settle()

    def keep(self) -> None:
        number = self._settled()
        if number is None:
            return
        rows = self.live.rows(number)
        columns = rows // self.page_tokens
        if rows % self.page_tokens and self.live.route(number).end.holders == 1 and self.pick(2):
            columns += 1
        if not columns:
            return
        columns = 1 + self.pick(columns)
        content = self.content(number, columns, rows)
        digests = self.digests(content)
        node, shared = self.index.match(digests)
        held = max([0, *(start + count for _, start, count in self.live.kept_path(number))])
        if held > shared or held > columns:
            return
        command = PromptKept(number, node, shared, columns)
        try:
            self.live.apply(command)
        except BadInputError:
            assert any(pool.window_tokens for pool in self.pools)
            return
        self.replayed.apply(command)
        self.index.record(number, digests)
        self.model.keep(number, content)
        self.streams[number].fresh = False

    def finish(self) -> None:
        number = self._settled()
        if number is None:
            return
        how = self.pick(3)
        if how == 0 and self.streams[number].fresh:
            self.apply(AdoptionUndone(number))
        elif how == 1:
            self.apply(StreamPreempted(number, False))
        else:
            self.apply(StreamFinished(number, int(FinishReason.STOP)))
        self.model.leave(number)
        del self.streams[number]

    def fork(self) -> None:
        source = self._settled()
        if source is None or not self.live.rows(source):
            return
        rows = 1 + self.pick(self.live.rows(source))
        command = RouteForked(self.number + 1, source, rows)
        try:
            self.live.apply(command)
        except BadInputError:
            assert any(pool.window_tokens for pool in self.pools)
            return
        self.replayed.apply(command)
        self.number += 1
        self.model.fork(self.number, source, rows)
        columns = -(-rows // self.page_tokens)
        planned = self.streams[source].planned
        self.streams[self.number] = Live(
            self.streams[source].symbols[: max(columns, planned)], planned, fresh=False
        )
        self.streams[source].fresh = False

    def evict(self) -> None:
        victims: list[tuple[int, int]] = []
        contents: list[Content] = []
        left: dict[int, int] = {}
        for node in list(self.live.oldest_nodes()):
            if self.pick(3) == 0:
                continue
            gone = sum(1 for number, cut in victims if left.get(number) == 0)
            children = [
                n.number
                for n in self.live.oldest_nodes()
                if n.parent is node and left.get(n.number) != 0
            ]
            if children or node.holders or gone > 3:
                continue
            columns = 1 + self.pick(node.columns)
            victims.append((node.number, columns))
            left[node.number] = node.columns - columns
            contents += self.kept_contents(node.number)[::-1][:columns]
        if victims:
            self.apply(NodesEvicted(tuple(victims)))
            self.model.evict(contents)

    def pin(self) -> None:
        self.lease += 1
        if self.pick(2):
            number = self._settled()
            if number is None or not self.live.route(number).columns:
                return
            columns = 1 + self.pick(self.live.route(number).columns)
            to_ram = self.pick(2)
            if to_ram:
                self.apply(RamKeepBegun(self.lease, number, columns))
                self.to_ram.add(self.lease)
            else:
                self.apply(PagesPinned(self.lease, number, 0, columns))
            for _, start, count in self.live.kept_path(number):  # a node is pinned whole
                if start < columns:
                    columns = max(columns, start + count)
            pinned = self.model.streams[number].columns[:columns]
            self.streams[number].fresh = False
        else:
            contents = sorted(self.model.kept, key=lambda c: (len(c), repr(c)))
            if not contents:
                return
            content = contents[self.pick(len(contents))]
            node, columns = self.index.match(self.digests(content))
            self.apply(PagesPinned(self.lease, 0, node, columns))
            whole = self.kept_contents(node)[-1]
            pinned = [self.model.kept[whole[: end + 1]].column for end in range(len(whole))]
        self.model.pin(self.lease, pinned)
        self.leases.append(self.lease)

    def unpin(self) -> None:
        if self.leases:
            lease = self.leases.pop(self.pick(len(self.leases)))
            if lease in self.to_ram:
                self.refused(PagesUnpinned(lease))
                self.refused(RamKeepEnded(lease, 10**9))
                self.apply(RamKeepEnded(lease, 0))
            else:
                self.refused(RamKeepEnded(lease, 0))
                self.apply(PagesUnpinned(lease))
            self.model.unpin(lease)

    def durable(self) -> None:
        contents = sorted(self.model.kept, key=lambda c: (len(c), repr(c)))
        if contents:
            content = contents[self.pick(len(contents))]
            node, columns = self.index.match(self.digests(content))
            self.apply(NodeDurable(node, columns))
            self.model.durable(content)

    def copy(self) -> None:
        number = self._settled()
        if number is None or not self.live.rows(number):
            return
        rows = 1 + self.pick(self.live.rows(number))
        command = CopyKept(number, rows, tuple(self.model.copies)[:1])
        try:
            self.live.apply(command)
        except BadInputError:  # no room, or a window group has given back what it takes
            return
        self.replayed.apply(command)
        self.copies += 1
        self.model.copy(self.copies, number, rows)
        self.streams[number].fresh = False

    def restore_copy(self) -> None:
        number = self._settled()
        if number is None or not self.model.copies:
            return
        copies = sorted(self.model.copies)
        copy = copies[self.pick(len(copies))]
        rows = self.model.copies[copy][0] - self.live.rows(number)
        command = CopyRestored(number, copy, rows)
        if rows < 1:
            self.refused(command)
            return
        try:
            self.live.apply(command)
        except BadInputError:  # not promised enough
            return
        self.replayed.apply(command)
        now = self.model.now
        self._advanced(((number, rows),))
        self.model.now = now
        self.model.touch_copy(copy)

    def drop_copies(self) -> None:
        if self.model.copies and self.pick(2):
            numbers = tuple(self.model.copies)[: 1 + self.pick(2)]
            self.apply(CopiesDropped(numbers))
            self.model.drop_copies(numbers)

    def arm(self) -> None:
        number = self._stream()
        if number is None:
            return
        column = self.live.rows(number) // self.page_tokens + 1 + self.pick(2)
        command = MarkArmed(number, column)
        taken = column in self.model.marks.get(number, ())
        if taken or self.model.slots_taken() == self.slots:
            self.refused(command)
            return
        self.apply(command)
        self.model.arm(number, column)
        self.streams[number].fresh = False

    def disarm(self) -> None:
        number = self._stream()
        if number is None or not self.model.marks.get(number):
            return
        column = min(self.model.marks[number])
        self.apply(MarkDisarmed(number, column))
        self.model.disarm(number, column)

    def drop_snapshot(self) -> None:
        contents = sorted(self.model.snapshots, key=lambda c: (len(c), repr(c)))
        if not contents:
            return
        content = contents[self.pick(len(contents))]
        node, columns = self.index.match(self.digests(content))
        run = self.live.node(node)
        assert run.depth_columns == columns == len(content)
        command = SnapshotDropped(node)
        if run.pins:
            self.refused(command)
            return
        self.apply(command)
        self.model.drop_snapshot(content)

    def nonsense(self) -> None:
        """Commands that fit no book."""
        number = self._stream() or 1
        live = self.streams.get(number)
        held = [n for n in self.live.oldest_nodes() if n.holders or n.children]
        wrong: list[msgspec.Struct] = [
            PagesAdopted(number, 0, 1),
            PagesAdopted(0, 0, 0),
            PagesPromised(number, tuple(count + 1 for count in self.live.available())),
            RowsAdvanced(((number, 10**9),)),
            RowsAdvanced(((number, 1), (number, 1))),
            NodesEvicted(((0, 1),)),
            NodesEvicted(()),
            PagesUnpinned(self.lease + 1),
            PromptKept(number, 0, 0, 10**6),
            RouteForked(number, number, 1),
            RouteForked(self.number + 1, number, 10**9),
            StreamFinished(self.number + 1, 0),
        ]
        if held:
            wrong.append(NodesEvicted(((held[0].number, 1),)))
        if live is not None:
            wrong.append(PagesAdopted(number, 0, 0))
        self.refused(wrong[self.pick(len(wrong))])

    # ---------------------------------------------------------------- comparing

    def compare(self) -> None:
        live, model = self.live, self.model
        live.check()
        self.replayed.check()
        state = live.encode()
        assert self.replayed.encode() == state
        copy = PageOwner.decode(state)
        assert copy.encode() == state
        self.replayed = copy  # goes on with other page ids
        assert list(live.free()) == model.free()
        assert list(live.promised_in_all()) == model.promised()
        assert list(live.available()) == model.available()
        assert list(live.reclaimable()) == model.reclaimable()
        copied = sum(-(-rows // self.page_tokens) for rows, _, _ in model.copies.values())
        assert live.kept_columns == len(model.kept) + copied
        assert live.free_slots() == self.slots - model.slots_taken()
        assert [copy.number for copy in live.copies()] == sorted(
            model.copies, key=lambda number: model.copies[number][2]
        )
        assert live.commands == model.now
        for number, stream in model.streams.items():
            assert live.rows(number) == stream.rows
            assert list(live.promised(number)) == stream.promised
        for content, kept in model.kept.items():
            node, columns = self.index.match(self.digests(content))
            assert columns == len(content)
            run = live.node(node)
            assert run.last_access == kept.last_access
            assert run.previous_access == kept.previous_access
            assert run.accesses == kept.accesses
            assert run.resumed == kept.resumed
            assert (run.start + run.durable >= columns) == kept.durable
        self.compare_sharing()

    def compare_sharing(self) -> None:
        """The same columns of the same streams lie in the same pages."""
        for group in range(len(self.pools)):
            pages: dict[int, object] = {}
            for number, stream in self.model.streams.items():
                if self.live.route(number).ahead is not None:
                    continue
                table = self.live.page_table(number, group)
                for place, column in enumerate(stream.columns):
                    ours, theirs = table[place], column.pages[group]
                    needed = place >= self.model.floor(group, stream.rows)
                    if needed:
                        assert ours >= 0
                        assert theirs is not None
                    if ours >= 0 and theirs is not None:
                        assert pages.setdefault(ours, theirs) is theirs
            assert len(set(map(id, pages.values()))) == len(pages)
