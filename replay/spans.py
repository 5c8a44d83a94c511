"""Folding a whole log as it is read, or this process's share of its spans.

A span begins with an epoch's start or with a keyframe. Spans are numbered in the order in which
the log begins them, so every process that reads the same log numbers them alike and can take every
n-th. Owns the folders of the spans that are open: one for each decider, however long the log is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.facts import KindId
from pagetrail.controlplane.twins import Twins

from .epochs import Epoch
from .fold import Folder, Observer, SpanResult
from .history import CatalogHistory
from .reading import RunRead

_KEYFRAME = int(KindId.KEYFRAME)  # a plain integer: members of an enumeration compare slower


class Span(msgspec.Struct, frozen=True):
    """A span that was folded. ``number``: its place among the log's spans."""

    client: str
    client_epoch: int
    number: int
    result: SpanResult


@dataclass(slots=True)
class _Open:
    """The span of a journal that the log is in; without a folder where another process folds it.

    ``opening``: the keyframe that closed the span before, until something follows it.
    """

    epoch: Epoch
    number: int
    folder: Folder | None
    opening: tuple[Transaction, msgspec.Raw] | None = None


@dataclass(slots=True)
class SpanFolds:
    """Folds the spans whose number leaves ``share`` when divided by ``shares``."""

    history: CatalogHistory
    share: int
    shares: int
    twins: Twins
    observer: Observer | None = None
    folded: list[Span] = field(default_factory=list)
    begun: int = 0
    _open: dict[tuple[str, int], _Open] = field(default_factory=dict)

    def feed(self, epoch: Epoch, run: RunRead) -> None:
        """Take the next run of a decider's epoch."""
        key = (run.client, run.client_epoch)
        transactions, encoded = run.transactions, run.encoded
        span, first = self._open.get(key), 0
        if span is None:
            span = self._open[key] = self._begin(epoch)
            first = 1
            if span.folder is not None:
                span.folder.begin(transactions[0], encoded[0])
        ends = [place for place, one in enumerate(transactions) if one.facts[0].kind == _KEYFRAME]
        for end in (*ends, len(transactions) - 1):
            if end < first:
                continue  # the run ends with a keyframe, or with the start
            if span.opening is not None:
                opening, span.opening = span.opening, None
                self._close(span)
                span = self._open[key] = self._begin(epoch)
                if span.folder is not None:
                    span.folder.resume(*opening)
            if span.folder is not None:
                span.folder.feed_all(transactions[first : end + 1], encoded[first : end + 1])
            if transactions[end].facts[0].kind == _KEYFRAME:
                span.opening = (transactions[end], encoded[end])
            first = end + 1

    def end(self) -> list[Span]:
        """Every span that was folded, once the log has ended."""
        for span in self._open.values():
            self._close(span)
        return self.folded

    def _begin(self, epoch: Epoch) -> _Open:
        number = self.begun
        self.begun += 1
        ours = number % self.shares == self.share
        folder = Folder(epoch, self.history, self.observer, self.twins) if ours else None
        return _Open(epoch, number, folder)

    def _close(self, span: _Open) -> None:
        if span.folder is not None:
            epoch = span.epoch
            result = span.folder.end()
            self.folded.append(Span(epoch.client, epoch.client_epoch, span.number, result))
