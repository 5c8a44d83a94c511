"""What the writer decides: order, exactly-once, registers. Pure; no clock, no I/O.

Theory of operation. The sequencer is a fold over the log: the same frames give the same state, so
a restarted writer knows what its predecessor acknowledged. ``admit`` takes one client message and
either appends its new transactions to the frame being gathered, or says why not. ``seal`` turns
what was gathered into a frame. The state already includes gathered transactions; if the frame
cannot be made durable the writer stops for good and the state is thrown away.

Per client: transactions of one epoch come contiguously from 0. A newer epoch is accepted from its
0 on; from then on older epochs only get the answers to what they had already appended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import msgspec

from pagetrail.catalog.envelope import CompareAndSet, Transaction
from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.controlplane.log.books import (
    ClientBooks,
    facts_in,
    refusals_among,
    span_of,
    spans_of_frame,
)
from pagetrail.controlplane.log.frames import (
    FLAG_REGISTERS,
    FORMAT_VERSION,
    LOG_START,
    Frame,
    LogPosition,
    encode_frame,
    encode_runs,
    position_after,
)
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.segment_index import ClientRange, SegmentIndex, index_of
from pagetrail.controlplane.log.transactions import (
    SYSTEM_CLIENT,
    check_client_name,
    check_references,
    encode_transactions,
    epoch_started_transaction,
    refused_transaction,
)
from pagetrail.controlplane.log.wire import AnswerSpan, Refusal


@dataclass(frozen=True, slots=True)
class Taken:
    """The message's transactions are in the log or in the frame being gathered.

    ``missing`` is (first_client_seq, count) of older answers that must be read from the log.
    """

    spans: tuple[AnswerSpan, ...]
    missing: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class NotTaken:
    """Nothing of the message was taken."""

    reason: Refusal
    expected: int
    message: str


@dataclass(frozen=True, slots=True)
class Sealed:
    """What the frame sealed last did: who appended which transactions, and to the registers."""

    ranges: tuple[ClientRange, ...]
    changes: tuple[CompareAndSet, ...]


class SequencerState(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The fold as a value: what a writer must know of the log before a position.

    ``client_ends`` are (client, epoch, next client_seq), ``registers`` (name, value), both sorted.
    """

    next_seq: int
    chain: bytes
    last_t_us: int
    writer_epoch: int
    client_ends: tuple[tuple[str, int, int], ...]
    registers: tuple[tuple[bytes, bytes], ...]


class Sequencer:
    """The fold, and the frame being gathered. ``position`` is where the sealed log ends, ``sealed``
    what its last frame did."""

    def __init__(self, limits: LogLimits, position: LogPosition = LOG_START) -> None:
        self._answers = limits.answers
        self._books = ClientBooks(limits.answers)
        self._registers: dict[bytes, bytes] = {}
        self._registers_max = limits.registers
        self._runs: list[tuple[str, int, bytes]] = []
        self._ranges: list[ClientRange] = []
        self._changes: list[CompareAndSet] = []
        self.sealed = Sealed((), ())
        self._fact_count = 0
        self._transaction_count = 0
        self._flags = 0
        self.gathered_bytes = 0
        self.position = position
        self.writer_epoch = 0

    @property
    def clients(self) -> int:
        return len(self._books)

    @property
    def registers(self) -> int:
        return len(self._registers)

    def register(self, name: bytes) -> bytes | None:
        """What a register holds; None when it was never set, or was cleared."""
        return self._registers.get(name)

    def expected(self, client: str, client_epoch: int) -> tuple[int, int]:
        """(next client_seq of this epoch, newest epoch of this client; -1 when unknown)."""
        return self._books.expected(client, client_epoch)

    def start_epoch(self, writer_epoch: int, clock: str) -> None:
        """Gather the first transaction of a new writer epoch."""
        if writer_epoch <= self.writer_epoch:
            raise BadInputError(
                f"writer epoch {writer_epoch} is not above {self.writer_epoch}, which is in the log"
            )
        transaction = epoch_started_transaction(writer_epoch, FORMAT_VERSION, clock)
        self.writer_epoch = writer_epoch
        started = (transaction,)
        self._gather(SYSTEM_CLIENT, writer_epoch, started, encode_transactions(started))

    def admit(
        self,
        client: str,
        client_epoch: int,
        transactions: Sequence[Transaction],
        payload: bytes,
    ) -> Taken | NotTaken:
        """Take what is new of a message; ``payload`` is its encoding, ``transactions`` come from
        ``decode_transactions``, which checked it.

        ``BadInputError`` when it could never be taken; nothing is changed then.
        """
        if not transactions:
            raise BadInputError("an append message without transactions; send at least one")
        first = transactions[0].client_seq
        count = len(transactions)
        if first < 0 or [t.client_seq for t in transactions] != list(range(first, first + count)):
            raise BadInputError(
                f"client {client}: transactions of a message must be numbered without gaps; "
                f"it starts with {first}"
            )
        refusal = self._check_epoch(client, client_epoch, first, count)
        if refusal is not None:
            return refusal
        next_client_seq, _ = self.expected(client, client_epoch)
        known = min(max(next_client_seq - first, 0), count)
        if known == 0:
            span = self._take(client, client_epoch, transactions, payload)
            return Taken((span,), None)
        spans, missing = self.answers(client, client_epoch, first, known)
        if known < count:
            fresh = transactions[known:]
            spans.append(self._take(client, client_epoch, fresh, encode_transactions(fresh)))
        return Taken(tuple(spans), missing)

    def answers(
        self, client: str, client_epoch: int, first_client_seq: int, count: int
    ) -> tuple[list[AnswerSpan], tuple[int, int] | None]:
        """Kept answers to transactions the log holds, and the range that is no longer kept."""
        return self._books.answers(client, client_epoch, first_client_seq, count)

    def seal(self, now_us: int) -> Frame | None:
        """The gathered transactions as the next frame, or None when there are none."""
        if not self._runs:
            return None
        frame = encode_frame(
            encode_runs(self._runs),
            flags=self._flags,
            fact_count=self._fact_count,
            transaction_count=self._transaction_count,
            writer_epoch=self.writer_epoch,
            first_seq=self.position.next_seq,
            t_us=max(self.position.last_t_us + 1, now_us),
            previous_chain=self.position.chain,
        )
        self.sealed = Sealed(tuple(self._ranges), tuple(self._changes))
        self._runs, self._ranges, self._changes = [], [], []
        self._fact_count = self._transaction_count = self._flags = self.gathered_bytes = 0
        self.position = position_after(frame)
        return frame

    def _check_epoch(
        self, client: str, client_epoch: int, first: int, count: int
    ) -> NotTaken | None:
        check_client_name(client)
        self._books.check_room(client)
        next_client_seq, newest = self._books.expected(client, client_epoch)
        if client_epoch < 0:
            raise BadInputError(f"client {client}: epoch {client_epoch} is below 0")
        if client_epoch < newest and first + count > next_client_seq:
            return NotTaken(
                Refusal.STALE_EPOCH,
                newest,
                f"client {client}: epoch {newest} has appended, epoch {client_epoch} may not "
                "append any more; start the client again under a higher epoch",
            )
        if first > next_client_seq:
            return NotTaken(
                Refusal.GAP,
                next_client_seq,
                f"client {client} epoch {client_epoch}: transaction {first} came, "
                f"{next_client_seq} is next; resend from there",
            )
        return None

    def _take(
        self,
        client: str,
        client_epoch: int,
        transactions: Sequence[Transaction],
        payload: bytes,
    ) -> AnswerSpan:
        for transaction in transactions:
            if transaction.causes or transaction.compare_and_set:
                check_references(transaction)
        if not any(transaction.compare_and_set for transaction in transactions):
            return self._gather(client, client_epoch, transactions, payload)
        self._check_register_room(transactions)
        taken = [self._apply_registers(transaction) for transaction in transactions]
        return self._gather(
            client, client_epoch, taken, encode_transactions(taken), refusals_among(taken)
        )

    def _check_register_room(self, transactions: Sequence[Transaction]) -> None:
        """``BadInputError`` when a message could set more registers than there may be."""
        named = {
            change.register
            for transaction in transactions
            for change in transaction.compare_and_set
            if change.new is not None
        }
        if len(self._registers) + len(named - self._registers.keys()) > self._registers_max:
            raise BadInputError(
                f"the log guards {len(self._registers)} registers and may guard "
                f"{self._registers_max}; clear those that are no longer contended for (set them "
                "to nil), or start the writer with a higher limit on registers"
            )

    def _apply_registers(self, transaction: Transaction) -> Transaction:
        changes = transaction.compare_and_set
        for change in changes:
            actual = self._registers.get(change.register)
            if actual != change.expected:
                return refused_transaction(transaction, change.register, actual)
        if changes:
            self._flags |= FLAG_REGISTERS
            self._set_registers(changes)
        return transaction

    def _set_registers(self, changes: Iterable[CompareAndSet]) -> None:
        for change in changes:
            if change.new is None:
                self._registers.pop(change.register, None)
            else:
                self._registers[change.register] = change.new
            self._changes.append(change)

    def _gather(
        self,
        client: str,
        client_epoch: int,
        transactions: Sequence[Transaction],
        payload: bytes,
        refused: tuple[int, ...] = (),
    ) -> AnswerSpan:
        span = span_of(transactions, self.position.next_seq + self._fact_count, refused)
        self._runs.append((client, client_epoch, payload))
        end = span.first_client_seq + span.count
        self._ranges.append(ClientRange(client, client_epoch, span.first_client_seq, end))
        self._fact_count += facts_in(span)
        self._transaction_count += span.count
        self.gathered_bytes += len(payload)
        self._books.advance(client, client_epoch, end)
        self._books.record(client, client_epoch, span)
        return span

    def state(self) -> SequencerState:
        """The fold as a value. Only between frames: nothing may be gathered."""
        position = self.position
        return SequencerState(
            position.next_seq,
            position.chain,
            position.last_t_us,
            self.writer_epoch,
            self._books.ends(),
            tuple(sorted(self._registers.items())),
        )

    def restore(self, state: SequencerState) -> None:
        """Start a fresh sequencer from a value that ``state`` gave. Answers are not in it."""
        self.position = LogPosition(state.next_seq, state.chain, state.last_t_us)
        self.writer_epoch = state.writer_epoch
        for client, client_epoch, next_client_seq in state.client_ends:
            self._books.advance(client, client_epoch, next_client_seq)
        self._registers = dict(state.registers)

    def replay(self, frames: Iterable[Frame]) -> None:
        """Fold frames that a log holds, to continue it. ``CorruptionError`` if they cannot be."""
        recent = RecentFrames(self._answers)
        self.fold(index_of(self.position, recent.passing(frames)))
        self.remember(recent)

    def fold(self, index: SegmentIndex) -> None:
        """Take over what a stretch of the log did. ``CorruptionError`` unless it follows here."""
        if index.start != self.position:
            raise CorruptionError(
                f"frames from seq {index.start_seq} on do not continue the log, which stands at "
                f"seq {self.position.next_seq} or has another chain value there"
            )
        for run in index.clients:
            next_client_seq, newest = self.expected(run.client, run.client_epoch)
            if run.first_client_seq != next_client_seq or run.client_epoch < newest:
                raise CorruptionError(
                    f"from seq {index.start_seq} on client {run.client} epoch {run.client_epoch} "
                    f"continues with {run.first_client_seq}, expected {next_client_seq}"
                )
            self._books.advance(run.client, run.client_epoch, run.next_client_seq)
        for register, value in index.registers:
            if value is None:
                self._registers.pop(register, None)
            else:
                self._registers[register] = value
        if index.frames:
            self.writer_epoch = index.writer_epoch
        self.position = index.end

    def remember(self, recent: RecentFrames) -> None:
        """Keep the answers to what the newest frames hold, for clients that send it again."""
        for frame in recent.frames:
            for client, client_epoch, span in spans_of_frame(frame):
                self._books.record(client, client_epoch, span)


class RecentFrames:
    """The newest of the frames that pass by, as many as hold ``facts`` facts."""

    def __init__(self, facts: int) -> None:
        self._facts_max = facts
        self._facts = 0
        self.frames: deque[Frame] = deque()

    def passing(self, frames: Iterable[Frame]) -> Iterator[Frame]:
        """The frames, each noted as it passes."""
        for frame in frames:
            self.frames.append(frame)
            self._facts += frame.header.fact_count
            while self._facts > self._facts_max and len(self.frames) > 1:
                self._facts -= self.frames.popleft().header.fact_count
            yield frame

    def clear(self) -> None:
        self.frames.clear()
        self._facts = 0
