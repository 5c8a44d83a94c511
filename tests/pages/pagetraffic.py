"""Random traffic over one page owner, fast enough for millions of operations.

No model: what it shows is that nothing leaks. Prompts come from a small tree of contents, so that
most of them share; streams fork, append, fail, keep, finish; pressure evicts and preempts.
"""

from __future__ import annotations

import random

from pagetrail.catalog.kinds.worker import (
    AdoptionUndone,
    NodesEvicted,
    PagesAdopted,
    PagesPinned,
    PagesPromised,
    PagesUnpinned,
    PoolSpec,
    PromptKept,
    RouteForked,
    RowsAdvanced,
    StreamFinished,
    StreamPreempted,
)
from pagetrail.controlplane.pages.appends import Append
from pagetrail.controlplane.pages.index import PrefixIndex
from pagetrail.controlplane.pages.owner import PageOwner

PAGE_TOKENS = 4


class Traffic:
    """One owner and its index; ``operations`` counts commands and appends."""

    def __init__(self, pages: int, seed: int) -> None:
        self.random = random.Random(seed)
        self.owner = PageOwner((PoolSpec("kv", 0, pages, 1),), PAGE_TOKENS, 0, pages, pages)
        self.index = PrefixIndex(self.owner)
        self.contents: dict[int, list[tuple[int, ...]]] = {}  # stream -> digest per column
        self.forks = 0
        self.stream = 0
        self.lease = 0
        self.leases: list[int] = []
        self.operations = 0

    def run(self, operations: int) -> None:
        """At least that many operations; the identities of the counts hold after each step."""
        end = self.operations + operations
        owner = self.owner
        while self.operations < end:
            self._step()
            (available,), (promised,), (held,) = (
                owner.available(),
                owner.promised_in_all(),
                owner.held(),
            )
            (reclaimable,), (free,), (total,) = owner.reclaimable(), owner.free(), owner.total()
            assert available + promised + held == total
            assert free == available + promised
            assert 0 <= reclaimable <= held
            assert available >= 0

    def drain(self) -> None:
        """All streams end, all leases return, all kept prompts go."""
        owner = self.owner
        for stream in list(self.contents):
            self._finish(stream)
        for lease in self.leases:
            owner.apply(PagesUnpinned(lease))
        self.leases.clear()
        while owner.kept_nodes:
            leaves = [n for n in owner.oldest_nodes() if not n.children]
            owner.apply(NodesEvicted(tuple((n.number, n.columns) for n in leaves)))

    def _apply(self, *commands: object) -> None:
        for command in commands:
            self.owner.apply(command)  # type: ignore[arg-type]
            self.operations += 1

    def _step(self) -> None:
        choice = self.random.random()
        if choice < 0.3 or not self.contents:
            self._begin()
            return
        stream = self.random.choice(list(self.contents))
        if choice < 0.7:
            self._append(stream)
        elif choice < 0.75:
            self._fork(stream)
        elif choice < 0.78:
            self._pin(stream)
        else:
            self._finish(stream)

    def _begin(self) -> None:
        random_ = self.random
        symbols: tuple[int, ...] = ()
        digests = []
        for _ in range(1 + random_.randrange(12)):
            symbols = (*symbols, random_.randrange(3) if random_.random() < 0.3 else 0)
            digests.append(symbols)
        node, columns = self.index.match(digests, len(digests) - 1)
        self.stream += 1
        self._apply(PagesAdopted(self.stream, node, columns))
        need = len(digests) + 2 - columns
        if not self._reclaim(need):
            self._apply(AdoptionUndone(self.stream))
            if self.contents and random_.random() < 0.5:
                victim = random_.choice(list(self.contents))
                self._end(victim, StreamPreempted(victim, False))
            return
        self._apply(PagesPromised(self.stream, (need,)))
        self.contents[self.stream] = digests

    def _reclaim(self, need: int) -> bool:
        """Evict oldest leaves until ``need`` pages are available; nothing when it cannot be."""
        owner = self.owner
        short = need - owner.available()[0]
        if short > owner.reclaimable()[0]:
            return False
        while short > 0:
            leaf = next(n for n in owner.oldest_nodes() if not n.children and not n.holders)
            columns = min(short, leaf.columns)
            self._apply(NodesEvicted(((leaf.number, columns),)))
            short -= columns
        return True

    def _append(self, stream: int) -> None:
        append = self.owner.reserve(stream, 1 + self.random.randrange(12))
        self.operations += 1
        if not isinstance(append, Append):
            if self._reclaim(append.pages[0]):
                self._apply(PagesPromised(stream, append.pages))
            return
        self.owner.commit(append, self.random.randrange(append.rows + 1))
        self.operations += 1
        if self.random.random() < 0.5:
            self._settle()

    def _settle(self) -> None:
        entries = self.owner.committed()
        if entries:
            self._apply(RowsAdvanced(entries))

    def _fork(self, stream: int) -> None:
        self._settle()
        rows = self.owner.rows(stream)
        if not rows:
            return
        rows = 1 + self.random.randrange(rows)
        self.stream += 1
        self._apply(RouteForked(self.stream, stream, rows))
        full = rows // PAGE_TOKENS
        self.forks += 1
        own = (*self.contents[stream][: full + 1][-1], -self.forks)
        self.contents[self.stream] = [*self.contents[stream][:full], own]

    def _pin(self, stream: int) -> None:
        if self.leases and self.random.random() < 0.6:
            self._apply(PagesUnpinned(self.leases.pop(0)))
            return
        self._settle()
        columns = self.owner.route(stream).columns
        if columns:
            self.lease += 1
            self._apply(PagesPinned(self.lease, stream, 0, 1 + self.random.randrange(columns)))
            self.leases.append(self.lease)

    def _finish(self, stream: int) -> None:
        self._settle()
        digests = self.contents[stream]
        columns = min(self.owner.rows(stream) // PAGE_TOKENS, len(digests))
        if columns and self.random.random() < 0.8:
            node, shared = self.index.match(digests[:columns])
            path = self.owner.kept_path(stream)
            held = path[-1][1] + path[-1][2] if path else 0
            if shared >= held and columns >= held:
                self._apply(PromptKept(stream, node, shared, columns))
                self.index.record(stream, digests[:columns])
        self._end(stream, StreamFinished(stream, 0))

    def _end(self, stream: int, command: object) -> None:
        self._settle()
        self._apply(command)
        del self.contents[stream]
