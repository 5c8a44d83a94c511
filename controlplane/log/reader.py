"""Reading a log from its directory: frames in order, and a full check of them.

Sealed and active segments read alike. Works on a log at rest and on one that is being written; in
the latter the newest frames may be written but not yet durable (the live stream shows only durable
ones). Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.controlplane.log.frames import (
    FLAG_REGISTERS,
    LOG_START,
    Frame,
    LogPosition,
)
from pagetrail.controlplane.log.segments import Ending, SegmentScan, log_directory
from pagetrail.controlplane.log.stretches import Stretch, list_stretches, stretch_frames


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
    log = log_directory(Path(directory))
    if not log.is_dir():
        raise BadInputError(f"{directory} holds no log; expected the directory {log}")
    stretches = list_stretches(log)
    if from_seq < stretches.start.next_seq:
        raise BadInputError(
            f"the log in {directory} starts at seq {stretches.start.next_seq}, {from_seq} was "
            "asked for; read from its start or use an archive of it"
        )
    for index, stretch in enumerate(stretches.items):
        until = stretches.until(index)
        if until is not None and until.next_seq <= from_seq:
            continue
        for frame in stretch_frames(stretch, until):
            if frame.next_seq > from_seq:
                yield frame


def verify_log(directory: str | Path) -> VerifyReport:
    """Walk the whole log, check every byte, and name the first bad place."""
    log = log_directory(Path(directory))
    if not log.is_dir():
        raise BadInputError(f"{directory} holds no log; expected the directory {log}")
    walk = _Walk()
    problem = None
    try:
        stretches = list_stretches(log)
        walk.position = stretches.start
        for index, stretch in enumerate(stretches.items):
            walk.stretch(stretch, stretches.until(index))
    except CorruptionError as error:
        problem = str(error)
    return VerifyReport(
        walk.position,
        walk.frames,
        walk.transactions,
        walk.facts,
        walk.segments,
        walk.torn_bytes,
        walk.fenced_bytes,
        problem,
    )


class _Walk:
    """Counts and cross-frame checks of ``verify_log``."""

    def __init__(self) -> None:
        self.position = LOG_START
        self.frames = self.transactions = self.facts = self.segments = 0
        self.torn_bytes = self.fenced_bytes = 0
        self._writer_epoch = 0
        self._next_client_seq: dict[tuple[str, int], int] = {}
        self._client_epoch: dict[str, int] = {}

    def stretch(self, stretch: Stretch, until: LogPosition | None) -> None:
        if stretch.start != self.position:
            raise CorruptionError(
                f"{stretch.path.name}: starts at seq {stretch.first_seq}, the segment before "
                f"it ends at seq {self.position.next_seq} or with another chain value"
            )
        self.segments += 1
        if stretch.sealed:
            for frame in stretch_frames(stretch, until):
                self._place(frame, f"{stretch.path.name} seq {frame.first_seq}")
            return
        name = stretch.path.name
        data = stretch.path.read_bytes()
        scan = SegmentScan(data, name, stretch.start, until)
        for frame in scan:
            self._place(frame, f"{name} offset {scan.offset_bytes - len(frame.raw)}")
        if scan.end is not None:
            left = len(data) - scan.end.offset_bytes
            if scan.end.ending is Ending.TORN:
                self.torn_bytes += left
            elif scan.end.ending is Ending.LEFT:
                self.fenced_bytes += left

    def _place(self, frame: Frame, place: str) -> None:
        try:
            self._frame(frame)
        except CorruptionError as error:
            raise CorruptionError(f"{place}: {error}") from error

    def _frame(self, frame: Frame) -> None:
        header = frame.header
        if header.writer_epoch < self._writer_epoch:
            raise CorruptionError(
                f"frame at seq {header.first_seq} has writer epoch {header.writer_epoch} after "
                f"{self._writer_epoch}"
            )
        self._writer_epoch = header.writer_epoch
        registers = False
        for run in frame.runs():
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
        self.position = LogPosition(frame.next_seq, frame.chain, header.last_t_us)
        self.frames += 1
        self.transactions += header.transaction_count
        self.facts += header.fact_count

    def _epoch(self, client: str, client_epoch: int) -> None:
        newest = self._client_epoch.get(client, client_epoch)
        if client_epoch < newest:
            raise CorruptionError(
                f"client {client}: epoch {client_epoch} appends after epoch {newest}"
            )
        self._client_epoch[client] = client_epoch
