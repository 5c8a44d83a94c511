"""Clients of the log in the simulator: spools that outlive their process, followers of the stream.

Shipping, acknowledging, following and fetching are messages on the simulated network. A client
that crashes loses nothing it had spooled; one whose machine loses power loses at most what its
spool had not synced, and never what was acknowledged. The writer is in ``writer``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pagetrail.catalog.envelope import Run, Transaction
from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.index import CatalogChanges, LiveIndex
from pagetrail.controlplane.log.cursor import StreamCursor
from pagetrail.controlplane.log.frames import CHAIN_START, Frame
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.wire import Head

WRITER = "writer"
RETRY_US = 300_000
SHIP_MAX = 256  # transactions a message carries at most
SPOOL_SYNC_US = LogLimits().spool_sync_after_ns // 1_000


@dataclass(frozen=True, slots=True)
class Ship:
    """Transactions of one client epoch, in order."""

    client: str
    client_epoch: int
    transactions: tuple[Transaction, ...]


@dataclass(frozen=True, slots=True)
class ShipAnswer:
    """What the log holds of the epoch: every transaction below ``next_client_seq``."""

    client_epoch: int
    next_client_seq: int
    taken: bool = True


@dataclass(frozen=True, slots=True)
class ReadFrame:
    """A frame with what it says; the same for whoever reads it, so it is decoded once."""

    frame: Frame
    runs: tuple[Run, ...]
    changes: CatalogChanges

    @classmethod
    def of(cls, frame: Frame) -> ReadFrame:
        """Decode a frame."""
        runs = frame.runs()
        return cls(frame, runs, CatalogChanges.of_runs(frame.first_seq, runs))


@dataclass(frozen=True, slots=True)
class Live:
    """A sealed frame, or the bare head."""

    read: ReadFrame | None
    head: Head


@dataclass(frozen=True, slots=True)
class Fetch:
    """Frames from a position on."""

    from_seq: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a fetch."""

    reads: tuple[ReadFrame, ...]
    head: Head


@dataclass(slots=True)
class SpooledEpoch:
    """One epoch: all that was ever spooled, of which only the first ``end`` are still there."""

    transactions: list[Transaction] = field(default_factory=list)
    spooled_us: list[int] = field(default_factory=list)
    acknowledged: int = 0
    end: int = 0

    @property
    def cut(self) -> bool:
        """Whether something was lost; it may have reached the log all the same."""
        return self.end < len(self.transactions)


@dataclass(slots=True)
class SimSpool:
    """A client's spool: every epoch's transactions, safe from a crash when they are appended."""

    client: str
    full: bool = False  # no room for another request
    epochs: dict[int, SpooledEpoch] = field(default_factory=dict)

    def begin(self) -> int:
        """A new epoch; durable at once."""
        epoch = max(self.epochs, default=0) + 1
        self.epochs[epoch] = SpooledEpoch()
        return epoch

    def append(self, epoch: int, transactions: list[Transaction], now_us: int) -> None:
        """Spool; the transactions must be the epoch's next."""
        book = self.epochs[epoch]
        for transaction in transactions:
            if transaction.client_seq != book.end:
                raise InvariantError(
                    f"{self.client} spools {transaction.client_seq} after {book.end}"
                )
            book.transactions.append(transaction)
            book.spooled_us.append(now_us)
            book.end += 1

    def lose_unsynced(self, now_us: int) -> None:
        """The machine loses power, and what its spool had not synced."""
        for book in self.epochs.values():
            kept = book.acknowledged
            while kept < book.end and book.spooled_us[kept] + SPOOL_SYNC_US <= now_us:
                kept += 1
            book.end = min(book.end, kept)

    def next_to_ship(self) -> Ship | None:
        """The oldest epoch's transactions that are not known to be in the log."""
        for epoch, book in self.epochs.items():  # epochs are begun in order
            known = book.acknowledged
            if known < book.end:
                some = book.transactions[known : min(book.end, known + SHIP_MAX)]
                return Ship(self.client, epoch, tuple(some))
        return None

    def answered(self, answer: ShipAnswer) -> None:
        """The log holds everything of an epoch below a number."""
        book = self.epochs[answer.client_epoch]
        if not answer.taken and answer.next_client_seq < book.acknowledged:
            raise InvariantError(
                f"the log holds {answer.next_client_seq} transactions of {self.client} epoch "
                f"{answer.client_epoch}, and {book.acknowledged} were acknowledged"
            )
        if answer.next_client_seq > len(book.transactions):
            raise InvariantError(f"the log holds more of {self.client} than it spooled")
        book.acknowledged = max(book.acknowledged, answer.next_client_seq)


class Follower:
    """A node's copy of the catalog: contiguous frames, whatever the network loses."""

    def __init__(self) -> None:
        self.index = LiveIndex()
        self._cursor = StreamCursor(0, CHAIN_START)

    @property
    def next_seq(self) -> int:
        """The position it stands at."""
        return self._cursor.next_seq

    def heard(self, message: Live | Fetched) -> list[Run]:
        """Take frames in; the runs of those that were new."""
        reads = message.reads if isinstance(message, Fetched) else (message.read,)
        runs: list[Run] = []
        for read in reads:
            if read is not None and self._cursor.take(read.frame):
                self.index.fold(read.changes)
                runs += read.runs
        if message.head.head >= self._cursor.next_seq:
            self._cursor.hear(message.head)
        return runs

    @property
    def behind(self) -> bool:
        """Whether frames exist that it does not have."""
        return self._cursor.behind
