"""The client of the log: spool first, ship in order, know what is durable.

``append`` returns once the transaction is in the spool by ``write()``, before the doer acts on it;
it waits neither for a disk nor for the writer. A thread (``shipper``) does the rest. Whoever must
know that a fact is durable (a publication, say) calls ``wait`` or ``flush``.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import msgspec

from pagetrail.catalog.envelope import (
    TRANSACTION_BYTES_MAX,
    Cause,
    CompareAndSet,
    Transaction,
    WireFact,
)
from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.controlplane.log import wire
from pagetrail.controlplane.log.endpoints import ClientKeys, check_endpoint
from pagetrail.controlplane.log.errors import (
    ClientStoppedError,
    HeadroomError,
    LogTimeoutError,
)
from pagetrail.controlplane.log.files import Files, OsFiles
from pagetrail.controlplane.log.limits import LogLimits, check_limits
from pagetrail.controlplane.log.shipper import Shipper
from pagetrail.controlplane.log.spool import Spool
from pagetrail.controlplane.log.spool_records import encode_record
from pagetrail.controlplane.log.transactions import (
    check_body,
    check_client_name,
    check_transaction,
    encode_transaction,
)

Position: TypeAlias = Cause
"""(client, client_epoch, client_seq): names a transaction from the moment it is appended."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction before it has its number."""

    facts: tuple[WireFact, ...]
    causes: tuple[Cause, ...] = ()
    compare_and_set: tuple[CompareAndSet, ...] = ()


@dataclass(frozen=True, slots=True)
class Acked:
    """Where a durable transaction lies: its first fact's ``tx``, its last fact's ``seq``.

    ``refused``: its precondition failed, and the one fact there is the writer's refusal.
    """

    seq: int
    tx: int
    refused: bool


class Headroom:
    """Room in the spool that one request may use. Release it when the request ends."""

    def __init__(self, client: FactClient, size_bytes: int) -> None:
        self._client = client
        self.left_bytes = size_bytes

    def release(self) -> None:
        """Give back what was not used. Calling it again changes nothing."""
        self._client.release(self)


class FactClient:
    """See the module. Methods may be called from any thread; one lock guards them."""

    def __init__(
        self,
        client: str,
        endpoint: str,
        spool: Spool,
        limits: LogLimits,
        keys: ClientKeys | None,
    ) -> None:
        self.client = client
        self.client_epoch = spool.client_epoch
        self._spool = spool
        self._limits = limits
        self._changed = threading.Condition()
        self._reserved_bytes = 0
        self._acknowledged = 0
        self._drained = spool.epochs() == [spool.client_epoch]
        self._answers: deque[wire.AnswerSpan] = deque()
        self._answers_kept = 0
        self._resolved: dict[int, wire.AnswerSpan] = {}
        self._questions: dict[int, int] = {}
        self._failure: PagetrailError | None = None
        self._closed = False
        self._head = spool.state.head
        self._shipper = Shipper(client, endpoint, spool, self, limits, keys)

    @classmethod
    def open(
        cls,
        directory: str | Path,
        client: str,
        endpoint: str,
        *,
        limits: LogLimits | None = None,
        keys: ClientKeys | None = None,
        files: Files | None = None,
    ) -> FactClient:
        """Open the client's spool under the run directory and start shipping to ``endpoint``.

        Takes a new client epoch, durably. What earlier epochs left in the spool is shipped first.
        The writer need not be there. ``BadInputError`` for a bad name or endpoint, or when the
        client is running; ``CorruptionError`` for a damaged spool.
        """
        check_client_name(client)
        check_endpoint(endpoint, keys=keys is not None)
        limits = check_limits(limits or LogLimits())
        files = files or OsFiles()
        root = Path(directory) / "spool"
        root.mkdir(parents=True, exist_ok=True)
        files.sync_directory(root.parent)
        spool = Spool.open(root / client, limits, files)
        opened = cls(client, endpoint, spool, limits, keys)
        opened._shipper.start()
        return opened

    @property
    def next_position(self) -> Position:
        """The name the next appended transaction will have."""
        return Cause(self.client, self.client_epoch, self._spool.next_client_seq)

    @property
    def acked_through(self) -> int:
        """The last ``client_seq`` of this epoch known durable; -1 when none is."""
        return self._acknowledged - 1

    @property
    def head(self) -> int:
        """The log's next ``seq``, as far as this client has heard."""
        return self._head

    @property
    def failure(self) -> PagetrailError | None:
        """Why nothing is shipped any more; None while all is well."""
        return self._failure

    @property
    def spool_used_bytes(self) -> int:
        """Bytes of records in the spool's files."""
        return self._spool.used_bytes

    def append(
        self,
        facts: Sequence[WireFact],
        *,
        causes: Sequence[Cause] = (),
        compare_and_set: Sequence[CompareAndSet] = (),
        headroom: Headroom | None = None,
    ) -> Position:
        """Spool one transaction and return its name.

        ``SpoolFullError`` or ``BadInputError``: nothing was changed. Any other ``PagetrailError``:
        the client has stopped for good.
        """
        with self._changed:
            self._check_running()
            seq = self._spool.next_client_seq
            transaction = Transaction(seq, tuple(causes), tuple(compare_and_set), tuple(facts))
            record = encode_record(seq, 1, _checked_encoding(transaction))
            self._write((record,), 1, len(record), headroom)
        return Cause(self.client, self.client_epoch, seq)

    def append_many(
        self, drafts: Sequence[Draft], *, headroom: Headroom | None = None
    ) -> list[Position]:
        """Spool transactions in order, by one ``write()``: all of them or none. As ``append``."""
        if not drafts:
            return []
        with self._changed:
            self._check_running()
            first = self._spool.next_client_seq
            records, size_bytes = self._encode(drafts, first)
            self._write(records, len(drafts), size_bytes, headroom)
        client, epoch = self.client, self.client_epoch
        return [Cause(client, epoch, seq) for seq in range(first, first + len(drafts))]

    def reserve(self, size_bytes: int) -> Headroom:
        """Promise room in the spool to a request. ``HeadroomError`` when there is too little."""
        if size_bytes < 0:
            raise BadInputError(f"headroom of {size_bytes} bytes; expected 0 or more")
        with self._changed:
            self._check_running()
            used = self._spool.used_bytes
            if used + self._reserved_bytes + size_bytes > self._limits.spool_bytes:
                raise HeadroomError(
                    f"spool headroom is short: {size_bytes} bytes asked, {used} of "
                    f"{self._limits.spool_bytes} used and {self._reserved_bytes} reserved; the "
                    "fact writer is away or slow, retry later"
                )
            self._reserved_bytes += size_bytes
            return Headroom(self, size_bytes)

    def release(self, headroom: Headroom) -> None:
        """Give back what a request did not use of its headroom."""
        with self._changed:
            self._reserved_bytes -= headroom.left_bytes
            headroom.left_bytes = 0

    def flush(self, timeout_s: float) -> None:
        """Wait until everything appended so far, earlier epochs included, is acknowledged.

        ``LogTimeoutError`` when that takes longer; the facts stay in the spool.
        """
        with self._changed:
            end = self._spool.next_client_seq
            self._await(
                lambda: self._drained and self._acknowledged >= end,
                timeout_s,
                lambda: f"{end - self._acknowledged} transactions to be acknowledged",
            )

    def wait(self, position: Position, timeout_s: float = 60.0) -> Acked:
        """Wait until a transaction of this client and epoch is durable; return where it lies."""
        seq = position.client_seq
        mine = (position.client, position.client_epoch) == (self.client, self.client_epoch)
        with self._changed:
            if not mine or not 0 <= seq < self._spool.next_client_seq:
                raise BadInputError(
                    f"{position} was not appended by client {self.client} epoch {self.client_epoch}"
                )
            deadline = time.monotonic() + timeout_s
            self._await(
                lambda: self._acknowledged > seq,
                timeout_s,
                lambda: f"transaction {seq} to be acknowledged",
            )
            span = self._kept_answer(seq)
            if span is None:
                span = self._ask(seq, deadline - time.monotonic())
        first, size, refused = wire.span_answer(span, seq)
        return Acked(first + size - 1, first, refused)

    def close(self) -> None:
        """Stop shipping; what is not acknowledged stays in the spool for the next epoch."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        self._shipper.stop()
        self._spool.close()

    def __enter__(self) -> FactClient:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # The shipper's side.

    def acknowledged(
        self,
        client_epoch: int,
        next_client_seq: int,
        spans: tuple[wire.AnswerSpan, ...],
        head: int,
        chain: bytes,
    ) -> None:
        with self._changed:
            if head >= self._head:
                self._head = head
            else:
                head, chain = self._spool.state.head, self._spool.state.chain
            freed = self._spool.acknowledge(client_epoch, next_client_seq, head, chain)
            if client_epoch == self.client_epoch:
                self._drained = True
                self._acknowledged = next_client_seq
                for span in spans:
                    self._answers.append(span)
                    self._answers_kept += span.count
                while len(self._answers) > 1 and self._answers_kept > self._limits.answers:
                    self._answers_kept -= self._answers.popleft().count
            self._changed.notify_all()
        if freed:
            # The disk is waited for outside the lock, so no append waits for it.
            self._spool.save_state()
            with self._changed:
                self._spool.forget(freed)
            self._spool.remove(freed)

    def welcomed(self, log_id: bytes) -> None:
        with self._changed:
            self._spool.belongs_to(log_id)

    def resolved(self, spans: tuple[wire.AnswerSpan, ...]) -> None:
        with self._changed:
            for span in spans:
                for seq in range(span.first_client_seq, span.first_client_seq + span.count):
                    if seq in self._questions:
                        self._resolved[seq] = span
            self._changed.notify_all()

    def stopped(self, error: PagetrailError) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def questions(self) -> list[int]:
        with self._changed:
            return [seq for seq in self._questions if seq not in self._resolved]

    def _write(
        self, records: Sequence[bytes], count: int, size_bytes: int, headroom: Headroom | None
    ) -> None:
        covered = 0 if headroom is None else min(headroom.left_bytes, size_bytes)
        self._spool.append(records, count, size_bytes, self._reserved_bytes - covered)
        if headroom is not None:
            headroom.left_bytes -= covered
            self._reserved_bytes -= covered
        if self._shipper.waits_for_appends:
            self._shipper.wake()

    def _encode(self, drafts: Sequence[Draft], first: int) -> tuple[list[bytes], int]:
        """Records for the spool, none above the message size unless one transaction is."""
        records: list[bytes] = []
        group: list[bytes] = []
        group_bytes = size_bytes = 0
        group_first = first
        for seq, draft in enumerate(drafts, first):
            encoded = _checked_encoding(
                Transaction(seq, draft.causes, draft.compare_and_set, draft.facts)
            )
            if group and group_bytes + len(encoded) > self._limits.message_bytes:
                records.append(encode_record(group_first, len(group), b"".join(group)))
                size_bytes += len(records[-1])
                group, group_bytes, group_first = [], 0, seq
            group.append(encoded)
            group_bytes += len(encoded)
        records.append(encode_record(group_first, len(group), b"".join(group)))
        return records, size_bytes + len(records[-1])

    def _kept_answer(self, seq: int) -> wire.AnswerSpan | None:
        answers = self._answers
        index = bisect.bisect_right(answers, seq, key=lambda span: span.first_client_seq) - 1
        if index >= 0 and seq < answers[index].first_client_seq + answers[index].count:
            return answers[index]
        return None

    def _ask(self, seq: int, timeout_s: float) -> wire.AnswerSpan:
        self._questions[seq] = self._questions.get(seq, 0) + 1
        self._shipper.wake()
        try:
            self._await(
                lambda: seq in self._resolved,
                timeout_s,
                lambda: f"the place of transaction {seq}",
            )
            return self._resolved[seq]
        finally:
            self._questions[seq] -= 1
            if not self._questions[seq]:
                del self._questions[seq]
                self._resolved.pop(seq, None)

    def _await(self, done: Callable[[], bool], timeout_s: float, what: Callable[[], str]) -> None:
        """Wait under the lock. Raises the client's failure, or LogTimeoutError."""
        self._changed.wait_for(
            lambda: done() or self._failure is not None or self._closed, timeout_s
        )
        if done():
            return
        self._check_running()
        raise LogTimeoutError(
            f"waited {timeout_s} s for {what()}; the writer is away or slow, nothing is lost"
        )

    def _check_running(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise ClientStoppedError(f"client {self.client} was closed")


def _checked_encoding(transaction: Transaction) -> bytes:
    """The transaction's bytes. ``BadInputError`` when the writer would not take it."""
    for fact in transaction.facts:
        check_body(fact.body)
    check_transaction(transaction)
    encoded = encode_transaction(transaction)
    if len(encoded) > TRANSACTION_BYTES_MAX:
        raise BadInputError(
            f"a transaction of {len(encoded)} bytes; at most {TRANSACTION_BYTES_MAX} are allowed; "
            "split it"
        )
    return encoded
