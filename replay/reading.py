"""One pass over a log, and what can be said of it without folding.

Owns that judgement: that the log's own bytes hold, that every journal begins with its start, that
causes exist, that the writer judged preconditions rightly. Builds the catalog's history as it goes.
Holds no transaction longer than its run, so a log of any length takes little memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from pagetrail.catalog.envelope import Cause, Run, Transaction
from pagetrail.catalog.errors import BadInputError, CorruptionError, PagetrailError
from pagetrail.catalog.facts import KINDS, KindId, Role, decode_body
from pagetrail.catalog.index import LOOKED_UP
from pagetrail.catalog.kinds.system import WriterEpochStarted
from pagetrail.controlplane.log.frames import FORMAT_VERSION, HEADER_BYTES, Frame
from pagetrail.controlplane.log.reader import LogWalk

from .epochs import Epoch
from .findings import UNREADABLE, Finding
from .history import CatalogHistory
from .registers import Registers


class _RunSplit(msgspec.Struct, array_like=True, gc=False):
    """A run of a frame with each transaction left encoded."""

    client: str
    client_epoch: int
    transactions: tuple[msgspec.Raw, ...]


_SPLIT = msgspec.msgpack.Decoder(tuple[msgspec.Raw, ...])
_SPLIT_RUNS = msgspec.msgpack.Decoder(tuple[_RunSplit, ...])
_TRANSACTIONS = msgspec.msgpack.Decoder(tuple[Transaction, ...])
_JOURNALED = frozenset(
    int(kind.id)
    for kind in KINDS.values()
    if kind.role in (Role.JOURNAL, Role.COMMAND, Role.DECISION, Role.OUTCOME)
)
_WRITERS = (int(KindId.REFUSED), int(KindId.WRITER_EPOCH_STARTED))
_UNJUDGED = frozenset(
    int(kind.id)
    for kind in KINDS.values()
    if kind.role is not Role.DECISION and kind.id not in LOOKED_UP and kind.id not in _WRITERS
)
"""Kinds of fact of which a decider's journal only counts, when they come alone."""

END = 2**63 - 1
"""``until_seq`` of a reading that goes on to the log's end."""


class RunRead(NamedTuple):
    """Consecutive transactions of one client epoch, with the position of their first fact."""

    client: str
    client_epoch: int
    first_seq: int
    transactions: tuple[Transaction, ...]
    encoded: tuple[msgspec.Raw, ...]  # of each transaction

    @classmethod
    def again(cls, client: str, client_epoch: int, first_seq: int, encoded: bytes) -> RunRead:
        """A run from the encoding of its array, once it has been read."""
        transactions = _TRANSACTIONS.decode(encoded)
        return cls(client, client_epoch, first_seq, transactions, _SPLIT.decode(encoded))


class LogReading:
    """A log being read. ``history``, ``facts`` and ``findings`` grow with every run.

    ``findings`` are complete when ``runs`` has ended.
    """

    def __init__(self, directory: Path, *, until_seq: int = END) -> None:
        """Raises BadInputError when the directory holds no log.

        ``until_seq``: read no frame from there on, so that several readers of a log that grows
        read the same.
        """
        if not (directory / "log").is_dir():
            raise BadInputError(
                f"{directory} holds no log; give the directory of a run, in which log/ lies"
            )
        self.history = CatalogHistory()
        self.facts = 0
        self.findings: list[Finding] = []
        self.epochs: dict[tuple[str, int], Epoch] = {}
        self._directory = directory
        self.until_seq = until_seq
        self._registers = Registers()
        self._strays: set[tuple[str, int]] = set()  # epochs told of for want of a start
        self._unmet: list[tuple[Epoch, int, Cause]] = []  # causes that have not come yet

    def runs(self) -> Iterator[RunRead]:
        """The log's runs, in order. ``epochs`` counts a run's transactions after it was consumed.

        Raises CorruptionError where the log's own chain, checksums or numbering do not hold:
        replay begins where the log itself is sound.
        """
        walk = LogWalk(self._directory)
        try:
            for frame, runs in walk.frames():
                if frame.first_seq >= self.until_seq:
                    break
                yield from self._frame(frame, runs)
        except CorruptionError as error:
            raise CorruptionError(f"the log itself is damaged: {error}") from error
        for epoch, client_seq, cause in self._unmet:
            if not self._met(cause):
                named = f"{cause.client}/{cause.client_epoch}/{cause.client_seq}"
                self.report(
                    epoch,
                    client_seq,
                    "journal",
                    f"names {named} as a cause, which the log does not hold",
                )

    def report(self, epoch: Epoch, client_seq: int, kind: str, what: str) -> None:
        """Add a finding about a transaction."""
        self.findings.append(Finding(epoch.client, epoch.client_epoch, client_seq, kind, what))

    def _frame(self, frame: Frame, runs: tuple[Run, ...]) -> Iterator[RunRead]:
        position = frame.first_seq
        splits = _SPLIT_RUNS.decode(memoryview(frame.raw)[HEADER_BYTES:])
        for run, split in zip(runs, splits, strict=True):
            if not run.transactions:
                continue
            key = (run.client, run.client_epoch)
            epoch = self.epochs.get(key)
            if epoch is None:
                epoch = self.epochs[key] = Epoch(*key, run.transactions[0])
                self._begins(epoch)
            first_seq = position
            decides = epoch.decides
            for transaction in run.transactions:
                facts = transaction.facts
                if (
                    decides
                    and len(facts) == 1
                    and facts[0].kind in _UNJUDGED
                    and not transaction.causes
                    and not transaction.compare_and_set
                ):
                    epoch.count += 1
                    position += 1
                    continue
                self._judge(epoch, frame, transaction, position)
                position += len(facts)
            yield RunRead(*key, first_seq, run.transactions, split.transactions)
        self.facts = position

    def _begins(self, epoch: Epoch) -> None:
        first = epoch.first.client_seq
        if first != 0:
            what = f"begins with client_seq {first}; everything before it is missing"
            self.report(epoch, first, "journal", what)

    def _judge(self, epoch: Epoch, frame: Frame, transaction: Transaction, position: int) -> None:
        facts = transaction.facts
        if not facts:
            raise CorruptionError(
                f"{epoch.client} epoch {epoch.client_epoch}: transaction "
                f"{transaction.client_seq} holds no fact"
            )
        kind = facts[0].kind
        if transaction.compare_and_set or kind in _WRITERS:
            self._written(epoch, frame, transaction)
        for cause in transaction.causes:
            if not self._met(cause):
                self._unmet.append((epoch, transaction.client_seq, cause))
        for place, wire in enumerate(facts):
            if wire.kind in LOOKED_UP:
                try:
                    self.history.add(position + place, wire)
                except UNREADABLE as error:
                    name = KINDS[wire.kind].name
                    self.report(epoch, transaction.client_seq, name, str(error))
        if not epoch.decides:
            self._stray(epoch, transaction)
        epoch.take(transaction)

    def _stray(self, epoch: Epoch, transaction: Transaction) -> None:
        key = (epoch.client, epoch.client_epoch)
        if key not in self._strays and any(wire.kind in _JOURNALED for wire in transaction.facts):
            self._strays.add(key)
            seq = transaction.client_seq
            self.report(epoch, seq, "journal", "decides without its start fact")

    def _written(self, epoch: Epoch, frame: Frame, transaction: Transaction) -> None:
        """What the writer itself said or judged."""
        try:
            for problem in self._registers.fold(transaction):
                self.report(epoch, transaction.client_seq, "precondition", problem)
            wire = transaction.facts[0]
            if wire.kind != KindId.WRITER_EPOCH_STARTED:
                return
            body = decode_body(wire.kind, wire.schema_v, wire.body)
            if isinstance(body, WriterEpochStarted) and (
                body.writer_epoch,
                body.format_version,
            ) != (frame.header.writer_epoch, FORMAT_VERSION):
                what = "it disagrees with its frame's header"
                self.report(epoch, transaction.client_seq, "writer_epoch_started", what)
        except PagetrailError as error:
            self.report(epoch, transaction.client_seq, "transaction", str(error))

    def _met(self, cause: Cause) -> bool:
        named = self.epochs.get((cause.client, cause.client_epoch))
        return named is not None and named.has(cause.client_seq)
