"""What replay knows of one client epoch while its transactions pass by.

Owns the count of its transactions, its first one, and a row for each decision, which later
outcomes name.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left

import msgspec

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.facts import KINDS, KindId, Role, decode_body

STARTS = frozenset(map(int, (KindId.WORKER_STARTED, KindId.ROUTER_STARTED)))

DECISIONS = frozenset(int(kind.id) for kind in KINDS.values() if kind.role is Role.DECISION)


class _Subject(msgspec.Struct, array_like=True):
    """The first field of a decision; the rest is left unread."""

    subject: int


_SUBJECT = msgspec.msgpack.Decoder(_Subject)


class Epoch:
    """One client epoch: at least one transaction, without gaps in client_seq."""

    __slots__ = ("_kinds", "_seqs", "_subjects", "client", "client_epoch", "count", "first")

    def __init__(self, client: str, client_epoch: int, first: Transaction) -> None:
        self.client = client
        self.client_epoch = client_epoch
        self.first = first
        self.count = 0
        # Of each decision: its number, kind and subject.
        self._seqs, self._kinds, self._subjects = array("q"), array("q"), array("q")

    def take(self, transaction: Transaction) -> None:
        """Count the next transaction."""
        self.count += 1
        wire = transaction.facts[0]
        if wire.kind in DECISIONS:
            try:
                subject = _SUBJECT.decode(wire.body).subject
                self._subjects.append(subject)
            except (msgspec.MsgspecError, OverflowError):
                return  # the fold reports it
            self._seqs.append(transaction.client_seq)
            self._kinds.append(wire.kind)

    @property
    def decides(self) -> bool:
        """Whether this client is a decider: its journal begins with a start fact."""
        return self.first.facts[0].kind in STARTS

    @property
    def start(self) -> msgspec.Struct | None:
        """The start fact, when this client is a decider. Raises PagetrailError when unreadable."""
        first = self.first.facts[0]
        return decode_body(first.kind, first.schema_v, first.body) if self.decides else None

    def has(self, client_seq: int) -> bool:
        """Whether the log has given the transaction of that number so far."""
        return 0 <= client_seq - self.first.client_seq < self.count

    def decision(self, client_seq: int) -> tuple[int, int] | None:
        """(kind, subject) of the decision of that number, when there is one."""
        place = bisect_left(self._seqs, client_seq)
        if place == len(self._seqs) or self._seqs[place] != client_seq:
            return None
        return self._kinds[place], self._subjects[place]
