"""A log taken apart for questions that one pass does not answer: journals that can be walked again.

Owns nothing but the gathering; see ``reading`` for the pass and ``journals`` for how they lie.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from .fold import Folder, Observer, SpanResult
from .history import CatalogHistory
from .journals import EpochJournal
from .reading import LogReading
from .spill import Spill


class Loaded(msgspec.Struct, frozen=True):
    """A log's journals, by client and epoch, and the catalog's history."""

    journals: list[EpochJournal]
    history: CatalogHistory

    @classmethod
    def read(cls, directory: Path) -> Loaded:
        """Read a run directory's log. Raises as ``LogReading`` does."""
        reading, spill = LogReading(directory), Spill()
        journals: dict[tuple[str, int], EpochJournal] = {}
        for run in reading.runs():
            key = (run.client, run.client_epoch)
            journal = journals.get(key)
            if journal is None:
                journal = journals[key] = EpochJournal(*key, run.transactions[0], spill)
            journal.take_run(run)
        return cls([journals[key] for key in sorted(journals)], reading.history)

    def fold(
        self, journal: EpochJournal, first: int, last: int, observer: Observer | None = None
    ) -> SpanResult:
        """Fold one of the spans of a decider's journal."""
        folder = Folder(journal, self.history, observer)
        located = journal.walk(first, last)
        opening = next(located)
        if first:
            folder.resume(opening.transaction, opening.encoded)
        else:
            folder.begin(opening.transaction, opening.encoded)
        for transaction, encoded, _ in located:
            folder.feed(transaction, encoded)
        return folder.end()

    def derive_all(self, observer: Observer) -> None:
        """Derive every decision of the log again, journal by journal."""
        for journal in self.journals:
            if journal.decides:
                for first, last in journal.spans():
                    self.fold(journal, first, last, observer)
