"""Reading a log from its directory: frames in order, and a full check of them.

Sealed and active segments read alike. Works on a log at rest and on one that is being written; in
the latter the newest frames may be written but not yet durable (the live stream shows only durable
ones). Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pagetrail.catalog.envelope import Run
from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.controlplane.log.frames import (
    FLAG_REGISTERS,
    LOG_START,
    Frame,
    LogPosition,
)
from pagetrail.controlplane.log.manifests import read_manifest
from pagetrail.controlplane.log.segment_index import IndexCheck
from pagetrail.controlplane.log.segments import Ending, SegmentScan, log_directory
from pagetrail.controlplane.log.stretches import (
    Stretch,
    Stretches,
    list_stretches,
    stretch_chain,
    stretch_frames,
)


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a check of a whole log found. ``problem`` is None when every byte is accounted for."""

    position: LogPosition
    frames: int
    transactions: int
    facts: int
    segments: int
    torn_bytes: int
    """Bytes of an incomplete last frame; the next writer cuts them."""
    fenced_bytes: int
    """Bytes that fenced writers appended where the log had gone on elsewhere."""
    problem: str | None


def read_log(directory: str | Path, from_seq: int = 0) -> Iterator[Frame]:
    """Frames of the log of a run directory, the first being the one that holds ``from_seq``.

    Ends after the last whole frame. ``BadInputError`` when there is no log or ``from_seq`` lies
    before its first kept frame; ``CorruptionError`` as soon as damage is met.
    """
    stretches = existing_stretches(directory)
    if from_seq < stretches.start.next_seq:
        raise BadInputError(
            f"the log in {directory} starts at seq {stretches.start.next_seq}, {from_seq} was "
            "asked for; read from its start or use an archive of it"
        )
    for index, stretch in enumerate(stretches.items):
        until = stretches.until(index)
        if until is None and stretch.sealed:  # a copy of sealed segments alone
            until = read_manifest(stretch.path).end
        if until is not None and until.next_seq <= from_seq:
            continue
        for frame in stretch_frames(stretch, until):
            if frame.next_seq > from_seq:
                yield frame


def log_end(directory: str | Path) -> int:
    """The ``seq`` after the last whole frame of a run directory's log, as it is now.

    Reads the last stretch only. ``BadInputError`` when there is no log.
    """
    end = 0
    for stretch in existing_stretches(directory).items[-1:]:
        end = stretch.first_seq
        for frame in stretch_frames(stretch, None):
            end = frame.next_seq
    return end


def chain_at(directory: str | Path, position: int) -> bytes | None:
    """The chain value of a run's log where ``position`` is the next seq.

    None when no frame ends there, or what lies there is no longer kept. Reads no more than the
    segment that holds the position, and of a sealed one only the table of frames.
    """
    stretches = existing_stretches(directory)
    for index, stretch in enumerate(stretches.items):
        until = stretches.until(index)
        if stretch.first_seq == position:
            return stretch.start.chain
        if position < stretch.first_seq:
            return None
        if until is None or position < until.next_seq:
            return stretch_chain(stretch, until, position)
    return stretches.start.chain if position == stretches.start.next_seq else None


def existing_stretches(directory: str | Path) -> Stretches:
    """The stretches of a run's log. ``BadInputError`` when there is none."""
    log = log_directory(Path(directory))
    if not log.is_dir():
        raise BadInputError(f"{directory} holds no log; expected the directory {log}")
    return list_stretches(log)


def verify_log(directory: str | Path) -> VerifyReport:
    """Walk the whole log, check every byte, and name the first bad place."""
    walk = LogWalk(directory)
    problem = None
    try:
        for _ in walk.frames():
            pass
    except CorruptionError as error:
        problem = str(error)
    return walk.report(problem)


class LogWalk:
    """One walk over a whole log that checks every byte on its way."""

    def __init__(self, directory: str | Path) -> None:
        """Raises BadInputError when the directory holds no log."""
        self._log = log_directory(Path(directory))
        if not self._log.is_dir():
            raise BadInputError(f"{directory} holds no log; expected the directory {self._log}")
        self._position = LOG_START
        self._frames = self._transactions = self._facts = self._segments = 0
        self._torn_bytes = self._fenced_bytes = 0
        self._writer_epoch = 0
        self._next_client_seq: dict[tuple[str, int], int] = {}
        self._client_epoch: dict[str, int] = {}

    def frames(self) -> Iterator[tuple[Frame, tuple[Run, ...]]]:
        """Every frame with its runs, each checked. ``CorruptionError`` names the first bad place.

        To be called once.
        """
        stretches = list_stretches(self._log)
        self._position = stretches.start
        for index, stretch in enumerate(stretches.items):
            yield from self._stretch(stretch, stretches.until(index))
        self._fenced_bytes += sum(map(_size_bytes, stretches.superseded))

    def report(self, problem: str | None) -> VerifyReport:
        """What was counted so far."""
        return VerifyReport(
            self._position,
            self._frames,
            self._transactions,
            self._facts,
            self._segments,
            self._torn_bytes,
            self._fenced_bytes,
            problem,
        )

    def _stretch(
        self, stretch: Stretch, until: LogPosition | None
    ) -> Iterator[tuple[Frame, tuple[Run, ...]]]:
        if stretch.start != self._position:
            raise CorruptionError(
                f"{stretch.path.name}: starts at seq {stretch.first_seq}, the segment before "
                f"it ends at seq {self._position.next_seq} or with another chain value"
            )
        self._segments += 1
        stretch, data = stretch.present()
        index = IndexCheck(stretch.index_path, stretch.start)
        if data is None:
            for frame in stretch_frames(stretch, until):
                yield frame, self._place(frame, f"{stretch.path.name} seq {frame.first_seq}")
                index.add(frame)
            index.check()
            return
        name = stretch.path.name
        scan = SegmentScan(data, name, stretch.start, until)
        for frame in scan:
            place = f"{name} offset {scan.offset_bytes - len(frame.raw)}"
            yield frame, self._place(frame, place)
            index.add(frame)
        if until is not None:
            index.check()
        if scan.end is not None:
            left = len(data) - scan.end.offset_bytes
            if scan.end.ending is Ending.TORN:
                self._torn_bytes += left
            elif scan.end.ending is Ending.LEFT:
                self._fenced_bytes += left

    def _place(self, frame: Frame, place: str) -> tuple[Run, ...]:
        try:
            return self._frame(frame)
        except CorruptionError as error:
            raise CorruptionError(f"{place}: {error}") from error

    def _frame(self, frame: Frame) -> tuple[Run, ...]:
        header = frame.header
        if header.writer_epoch < self._writer_epoch:
            raise CorruptionError(
                f"frame at seq {header.first_seq} has writer epoch {header.writer_epoch} after "
                f"{self._writer_epoch}"
            )
        self._writer_epoch = header.writer_epoch
        registers = False
        runs = frame.runs()
        for run in runs:
            self._epoch(run.client, run.client_epoch)
            key = (run.client, run.client_epoch)
            expected = self._next_client_seq.get(key)
            for transaction in run.transactions:
                if expected is not None and transaction.client_seq != expected:
                    raise CorruptionError(
                        f"client {run.client} epoch {run.client_epoch}: transaction "
                        f"{transaction.client_seq} follows {expected - 1}"
                    )
                expected = transaction.client_seq + 1
                registers = registers or bool(transaction.compare_and_set)
            if expected is not None:
                self._next_client_seq[key] = expected
        if registers != bool(header.flags & FLAG_REGISTERS):
            raise CorruptionError(
                f"frame at seq {header.first_seq}: its register flag disagrees with its body"
            )
        self._position = LogPosition(frame.next_seq, frame.chain, header.last_t_us)
        self._frames += 1
        self._transactions += header.transaction_count
        self._facts += header.fact_count
        return runs

    def _epoch(self, client: str, client_epoch: int) -> None:
        newest = self._client_epoch.get(client, client_epoch)
        if client_epoch < newest:
            raise CorruptionError(
                f"client {client}: epoch {client_epoch} appends after epoch {newest}"
            )
        self._client_epoch[client] = client_epoch


def _size_bytes(path: Path) -> int:
    """A file's size; 0 when the sealer has removed it meanwhile."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
