"""A log taken apart for replay: deciders' journals, the catalog's history, the writer's verdicts.

Owns the one pass over the log, and what can be said without folding: that every journal begins
with its start, that causes exist, that the writer judged preconditions rightly, that each epoch
continues the one before. Reads facts only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pagetrail.catalog.envelope import Run, Transaction
from pagetrail.catalog.errors import BadInputError, CorruptionError, PagetrailError
from pagetrail.catalog.facts import KINDS, KindId, Role, decode_body
from pagetrail.catalog.kinds.router import RouterStarted, WorkerObserved
from pagetrail.catalog.kinds.system import WriterEpochStarted
from pagetrail.catalog.kinds.worker import WorkerStarted
from pagetrail.controlplane.log.frames import FORMAT_VERSION, Frame, facts_of
from pagetrail.controlplane.log.reader import read_log, verify_log

from .fold import UNREADABLE, Finding
from .form import unknown_causes
from .history import CatalogHistory
from .journals import EpochJournal, journals_of
from .registers import Registers

Job = tuple[int, int, int]  # (journal, first, last)

_CATALOG = frozenset(kind.id for kind in KINDS.values() if kind.role is Role.CATALOG)
_JOURNALED = frozenset(
    kind.id
    for kind in KINDS.values()
    if kind.role in (Role.JOURNAL, Role.COMMAND, Role.DECISION, Role.OUTCOME)
)


class Loaded:
    """A log in memory."""

    def __init__(self) -> None:
        self.journals: list[EpochJournal] = []
        self.history = CatalogHistory()
        self.facts = 0
        self.findings: list[Finding] = []
        self._registers = Registers()

    @classmethod
    def read(cls, directory: Path) -> Loaded:
        """Read a run directory's log.

        Raises BadInputError when there is none, PagetrailError when its own chain, checksums or
        numbering do not hold: replay begins where the log itself is sound.
        """
        if not (directory / "log").is_dir():
            raise BadInputError(
                f"{directory} holds no log; give the directory of a run, in which log/ lies"
            )
        report = verify_log(directory)
        if report.problem is not None:
            raise CorruptionError(f"the log itself is damaged: {report.problem}")
        loaded = cls()
        runs: list[tuple[int, Run]] = []
        for frame in read_log(directory):
            loaded._frame(frame, runs)
        loaded.journals = journals_of(runs)
        for journal in loaded.journals:
            loaded._journal(journal)
        loaded._links()
        return loaded

    def jobs(self) -> list[Job]:
        """Every span of every decider, in order."""
        return [
            (place, first, last)
            for place, journal in enumerate(self.journals)
            if journal.decides
            for first, last in journal.spans()
        ]

    def epoch_findings(self, chains: dict[tuple[str, int], bytes]) -> Iterator[Finding]:
        """Epochs whose start cites another end of the epoch before than the log has."""
        before: dict[str, EpochJournal] = {}
        for journal in self.journals:
            if not journal.decides:
                continue
            try:
                start = journal.start
            except UNREADABLE:
                continue  # the fold reports it
            previous = before.get(journal.client)
            before[journal.client] = journal
            epoch = previous.client_epoch if previous is not None else 0
            chain = chains.get((journal.client, epoch), b"")
            if not isinstance(start, WorkerStarted | RouterStarted):
                continue
            if (start.previous_epoch, start.previous_chain) != (epoch, chain):
                yield Finding(
                    journal.client,
                    journal.client_epoch,
                    0,
                    "start",
                    f"cites epoch {start.previous_epoch} as the one before; the log has epoch "
                    f"{epoch}" + (" with another history" if start.previous_epoch == epoch else ""),
                )

    # ---- one pass

    def _frame(self, frame: Frame, runs: list[tuple[int, Run]]) -> None:
        read = frame.runs()
        seq = frame.first_seq
        for run in read:
            runs.append((seq, run))
            for transaction in run.transactions:
                if not transaction.facts:
                    raise CorruptionError(
                        f"the log itself is damaged: {run.client} epoch {run.client_epoch}: "
                        f"transaction {transaction.client_seq} holds no fact"
                    )
                seq += len(transaction.facts)
                try:
                    for problem in self._registers.fold(transaction):
                        self._report(run, transaction.client_seq, "precondition", problem)
                    if transaction.facts[0].kind == KindId.WRITER_EPOCH_STARTED:
                        self._writer(frame, run, transaction)
                except PagetrailError as error:
                    self._report(run, transaction.client_seq, "transaction", str(error))
        self.facts = seq
        for fact in facts_of(frame.header, read):
            if fact.kind in _CATALOG:
                try:
                    self.history.add((fact,))
                except UNREADABLE as error:
                    self.findings.append(
                        Finding(
                            fact.client,
                            fact.client_epoch,
                            fact.client_seq,
                            KINDS[fact.kind].name,
                            str(error),
                        )
                    )

    def _writer(self, frame: Frame, run: Run, transaction: Transaction) -> None:
        wire = transaction.facts[0]
        body = decode_body(wire.kind, wire.schema_v, wire.body)
        if isinstance(body, WriterEpochStarted) and (body.writer_epoch, body.format_version) != (
            frame.header.writer_epoch,
            FORMAT_VERSION,
        ):
            what = "it disagrees with its frame's header"
            self._report(run, transaction.client_seq, "writer_epoch_started", what)

    def _journal(self, journal: EpochJournal) -> None:
        first = journal.transactions[0]
        if first.client_seq != 0:
            self._told(
                journal,
                first.client_seq,
                f"begins with client_seq {first.client_seq}; everything before it is missing",
            )
        if journal.decides:
            return
        for transaction in journal.transactions:
            if any(wire.kind in _JOURNALED for wire in transaction.facts):
                self._told(journal, transaction.client_seq, "decides without its start fact")
                return

    def _links(self) -> None:
        known = {(journal.client, journal.client_epoch): journal for journal in self.journals}
        for journal in self.journals:
            for client_seq, cause in unknown_causes(journal, known):
                named = f"{cause.client}/{cause.client_epoch}/{cause.client_seq}"
                self._told(
                    journal, client_seq, f"names {named} as a cause, which the log does not hold"
                )
            for client_seq, worker, epoch in _observed(journal):
                if (worker, epoch) not in known:
                    self._told(
                        journal, client_seq, f"observed {worker} epoch {epoch}, of which no fact is"
                    )

    def _report(self, run: Run, client_seq: int, kind: str, what: str) -> None:
        self.findings.append(Finding(run.client, run.client_epoch, client_seq, kind, what))

    def _told(self, journal: EpochJournal, client_seq: int, what: str) -> None:
        self.findings.append(
            Finding(journal.client, journal.client_epoch, client_seq, "journal", what)
        )


def _observed(journal: EpochJournal) -> Iterator[tuple[int, str, int]]:
    """(client_seq, worker, epoch) where a router first observes a worker epoch."""
    seen: set[tuple[str, int]] = set()
    for transaction in journal.transactions:
        wire = transaction.facts[0]
        if wire.kind != KindId.WORKER_OBSERVED:
            continue
        try:
            body = decode_body(wire.kind, wire.schema_v, wire.body)
        except PagetrailError:
            continue  # the fold reports it
        if isinstance(body, WorkerObserved) and (body.worker, body.worker_epoch) not in seen:
            seen.add((body.worker, body.worker_epoch))
            yield transaction.client_seq, body.worker, body.worker_epoch
