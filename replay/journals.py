"""A log as journals that can be read at any place, for what is not answered in one pass.

A span begins with the epoch's start fact or with a keyframe, so it can be folded without what came
before; neighbours overlap in the keyframe, where the fold of one must equal the start of the next.

Owns how a journal lies: encoded, in blocks of one run of a frame each, in a ``Spill``. Only the
block that is being read is decoded, so a journal of any length takes a few bytes a block of memory.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.facts import KindId
from pagetrail.controlplane.log.frames import encode_array

from .epochs import Epoch
from .reading import RunRead
from .spill import Spill

_KEYFRAME = int(KindId.KEYFRAME)  # a plain integer: members of an enumeration compare slower


class Located(NamedTuple):
    """A transaction, its encoding, and the position of its first fact in the log."""

    transaction: Transaction
    encoded: msgspec.Raw
    position: int


class EpochJournal(Epoch):
    """One client epoch as the log holds it. A *place* counts its transactions from 0."""

    __slots__ = (
        "_begins",
        "_decoded",
        "_first_seqs",
        "_keyframes",
        "_number",
        "_places",
        "_sizes",
        "_spill",
    )

    def __init__(self, client: str, client_epoch: int, first: Transaction, spill: Spill) -> None:
        super().__init__(client, client_epoch, first)
        self._spill = spill
        # Of each block: its first transaction's place, where and how long it lies in the spill,
        # and the position of its first fact in the log.
        self._places, self._begins, self._sizes, self._first_seqs = (array("q") for _ in range(4))
        self._keyframes = array("q")
        # The block that was decoded last: neighbours are nearly always asked for together.
        self._number = -1
        self._decoded: list[Located] = []

    def take_run(self, run: RunRead) -> None:
        """Take in the next run of this epoch."""
        data = encode_array(run.encoded)
        self._places.append(self.count)
        self._begins.append(self._spill.write(memoryview(data)))
        self._sizes.append(len(data))
        self._first_seqs.append(run.first_seq)
        for transaction in run.transactions:
            if transaction.facts[0].kind == _KEYFRAME:
                self._keyframes.append(self.count)
            self.take(transaction)

    def at(self, client_seq: int) -> Located | None:
        """The transaction of that number, when the log holds it."""
        place = client_seq - self.first.client_seq
        if not 0 <= place < self.count:
            return None
        number = bisect_right(self._places, place) - 1
        return self._block(number)[place - self._places[number]]

    def walk(self, first: int = 0, last: int | None = None) -> Iterator[Located]:
        """The transactions at places ``first`` to ``last``, both included; all by default."""
        last = self.count - 1 if last is None else last
        number = bisect_right(self._places, first) - 1
        while number < len(self._places) and self._places[number] <= last:
            place = self._places[number]
            yield from self._block(number)[max(0, first - place) : last + 1 - place]
            number += 1

    def spans(self) -> list[tuple[int, int]]:
        """Places ``(first, last)`` of transactions: from a start or keyframe to the next one.

        ``last`` is the keyframe that closes the span, inclusive, or the last transaction.
        """
        edges = [0, *(place for place in self._keyframes if place)]
        last = self.count - 1
        return [
            (first, following)
            for first, following in zip(edges, [*edges[1:], last], strict=True)
            if following > first or first == 0
        ]

    def _block(self, number: int) -> list[Located]:
        if self._number != number:
            data = self._spill.read(self._begins[number], self._sizes[number])
            position = self._first_seqs[number]
            run = RunRead.again(self.client, self.client_epoch, position, data)
            self._decoded = []
            for transaction, encoded in zip(run.transactions, run.encoded, strict=True):
                self._decoded.append(Located(transaction, encoded, position))
                position += len(transaction.facts)
            self._number = number
        return self._decoded
