"""The log in the simulator: the production sequencer, frames that survive a crash, spools.

Owns what is durable: the writer's sealed frames and each client's spool. A writer that crashes
loses what it had gathered and not sealed; a client that crashes loses nothing it had spooled.
Shipping, acknowledging, following and fetching are messages on the simulated network.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pagetrail.catalog.envelope import Run, Transaction
from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.index import LiveIndex
from pagetrail.controlplane.journal import Journal
from pagetrail.controlplane.log.cursor import StreamCursor
from pagetrail.controlplane.log.frames import CHAIN_START, Frame
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.sequencer import NotTaken, Sequencer
from pagetrail.controlplane.log.transactions import encode_transactions
from pagetrail.controlplane.log.wire import Head

from .network import Network
from .timeline import Timeline

WRITER = "writer"
SYNC_US = 800
HEARTBEAT_US = 100_000
RETRY_US = 150_000
SHIP_MAX = 256  # transactions a message carries at most


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
class Live:
    """A sealed frame, or the bare head."""

    frame: Frame | None
    head: Head


@dataclass(frozen=True, slots=True)
class Fetch:
    """Frames from a position on."""

    from_seq: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """The answer to a fetch."""

    frames: tuple[Frame, ...]
    head: Head


@dataclass(slots=True)
class SimWriter:
    """The one writer. ``frames`` is its disk."""

    timeline: Timeline
    network: Network
    followers: list[str]
    frames: list[Frame] = field(default_factory=list)
    up: bool = False
    _epoch: int = 0
    _incarnation: int = 0
    _sequencer: Sequencer | None = None
    _sealing: bool = False
    _answers: list[tuple[str, str, int]] = field(default_factory=list)

    def start(self) -> None:
        """Recover from the frames and serve."""
        self._epoch += 1
        self._incarnation += 1
        self._sequencer = Sequencer(LogLimits())
        self._sequencer.replay(self.frames)
        self._sequencer.start_epoch(self._epoch, "logical")
        self._answers = []
        self._sealing = False
        self.up = True
        self.network.attach(WRITER, self._heard)
        self._seal_soon()
        self._beat(self._incarnation)

    def crash(self) -> None:
        """Lose everything but the frames."""
        self.up = False
        self._sequencer = None
        self.network.detach(WRITER)

    def head(self) -> Head:
        """Where the durable log stands."""
        last = self.frames[-1] if self.frames else None
        if last is None:
            return Head(self._epoch, 0, CHAIN_START)
        return Head(self._epoch, last.next_seq, last.chain)

    def _heard(self, sender: str, message: object) -> None:
        match message:
            case Ship():
                self._take(sender, message)
            case Fetch():
                frames = tuple(frame for frame in self.frames if frame.next_seq > message.from_seq)
                self.network.send(WRITER, sender, Fetched(frames, self.head()))
            case _:
                raise InvariantError(f"the writer was sent {type(message).__name__}")

    def _take(self, sender: str, ship: Ship) -> None:
        sequencer = self._sequencer
        if sequencer is None:
            return
        answer = sequencer.admit(
            ship.client,
            ship.client_epoch,
            ship.transactions,
            encode_transactions(ship.transactions),
        )
        if isinstance(answer, NotTaken):
            next_seq, _ = sequencer.expected(ship.client, ship.client_epoch)
            refusal = ShipAnswer(ship.client_epoch, next_seq, taken=False)
            self.network.send(WRITER, sender, refusal)
            return
        self._answers.append((sender, ship.client, ship.client_epoch))
        self._seal_soon()

    def _seal_soon(self) -> None:
        if not self._sealing:
            self._sealing = True
            incarnation = self._incarnation
            self.timeline.after(SYNC_US, lambda: self._seal(incarnation))

    def _seal(self, incarnation: int) -> None:
        sequencer = self._sequencer
        if sequencer is None or incarnation != self._incarnation:
            return
        self._sealing = False
        frame = sequencer.seal(self.timeline.now_us)
        if frame is not None:
            self.frames.append(frame)
            for follower in self.followers:
                self.network.send(WRITER, follower, Live(frame, self.head()))
        answers, self._answers = self._answers, []
        for sender, client, client_epoch in answers:
            next_seq, _ = sequencer.expected(client, client_epoch)
            self.network.send(WRITER, sender, ShipAnswer(client_epoch, next_seq))

    def _beat(self, incarnation: int) -> None:
        if not self.up or incarnation != self._incarnation:
            return
        for follower in self.followers:
            self.network.send(WRITER, follower, Live(None, self.head()))
        self.timeline.after(HEARTBEAT_US, lambda: self._beat(incarnation))


@dataclass(slots=True)
class SimSpool:
    """A client's spool: every epoch's transactions, durable when they are appended."""

    client: str
    epochs: dict[int, list[Transaction]] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)

    def begin(self) -> tuple[int, Journal | None]:
        """A new epoch, and where the one before ended."""
        previous = max(self.epochs, default=0)
        journal = None
        if previous:
            journal = Journal(self.client, previous)
            for transaction in self.epochs[previous]:
                journal.fold(transaction)
        epoch = previous + 1
        self.epochs[epoch] = []
        self.acknowledged[epoch] = 0
        return epoch, journal

    def append(self, epoch: int, transactions: list[Transaction]) -> None:
        """Spool; the transactions must be the epoch's next."""
        spooled = self.epochs[epoch]
        for transaction in transactions:
            if transaction.client_seq != len(spooled):
                raise InvariantError(
                    f"{self.client} spools {transaction.client_seq} after {len(spooled)}"
                )
            spooled.append(transaction)

    def next_to_ship(self) -> Ship | None:
        """The oldest epoch's transactions that are not known to be in the log."""
        for epoch in sorted(self.epochs):
            spooled, known = self.epochs[epoch], self.acknowledged[epoch]
            if known < len(spooled):
                return Ship(self.client, epoch, tuple(spooled[known : known + SHIP_MAX]))
        return None

    def answered(self, answer: ShipAnswer) -> None:
        """The log holds everything of an epoch below a number."""
        known = self.acknowledged.get(answer.client_epoch)
        if not answer.taken and known is not None and answer.next_client_seq < known:
            raise InvariantError(
                f"the log holds {answer.next_client_seq} transactions of {self.client} epoch "
                f"{answer.client_epoch}, and {known} were acknowledged"
            )
        if known is not None and answer.next_client_seq > known:
            if answer.next_client_seq > len(self.epochs[answer.client_epoch]):
                raise InvariantError(f"the log holds more of {self.client} than it spooled")
            self.acknowledged[answer.client_epoch] = answer.next_client_seq


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
        frames = message.frames if isinstance(message, Fetched) else (message.frame,)
        runs: list[Run] = []
        for frame in frames:
            if frame is not None and self._cursor.take(frame):
                self.index.apply(frame.facts())
                runs += frame.runs()
        if message.head.head >= self._cursor.next_seq:
            self._cursor.hear(message.head)
        return runs

    @property
    def behind(self) -> bool:
        """Whether frames exist that it does not have."""
        return self._cursor.behind
