"""Reading a log from its directory: frames in order, and a full check of them.

Works on a log at rest and on one that is being written; in a log being written the newest frames
may be written but not yet durable (the live stream shows only durable ones). Nothing is changed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.controlplane.log.frames import (
    FLAG_REGISTERS,
    HEADER_BYTES,
    LOG_START,
    Frame,
    LogPosition,
    decode_frame,
    decode_header,
)
from pagetrail.controlplane.log.segments import (
    SEGMENT_HEADER_BYTES,
    Ending,
    SegmentFile,
    SegmentHeader,
    SegmentScan,
    list_segments,
    log_directory,
    read_segment_header,
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


@dataclass(frozen=True, slots=True)
class KeptSegments:
    """The segments of a log in order, with their checked headers."""

    segments: tuple[SegmentFile, ...]
    headers: tuple[SegmentHeader, ...]
    unborn: Path | None
    """A last file too short to hold a segment header: a creation that a crash cut short."""

    @property
    def start(self) -> LogPosition:
        return self.headers[0].start if self.headers else LOG_START


def kept_segments(log: Path) -> KeptSegments:
    """List a log's segments. ``CorruptionError`` names one whose header is damaged."""
    segments = list_segments(log)
    unborn = None
    if segments and segments[-1].path.stat().st_size < SEGMENT_HEADER_BYTES:
        unborn = segments.pop().path
    return KeptSegments(tuple(segments), tuple(map(read_segment_header, segments)), unborn)


def scan_segments(
    kept: KeptSegments, from_seq: int = 0
) -> Iterator[tuple[SegmentFile, SegmentScan]]:
    """Scans of the segments that hold ``from_seq`` and everything after, in order.

    The caller iterates each scan to its end before taking the next.
    """
    for index, segment in enumerate(kept.segments):
        last = index + 1 == len(kept.segments)
        if not last and kept.segments[index + 1].first_seq <= from_seq:
            continue
        until = None if last else kept.headers[index + 1].start
        data = segment.path.read_bytes()
        yield segment, SegmentScan(data, segment.path.name, kept.headers[index].start, until)


def frames_from(log: Path, path: Path, offset_bytes: int) -> Iterator[Frame]:
    """Frames from a known frame boundary on, across segments, up to the last whole one.

    For positions known to be durable: what does not parse ends the iteration.
    """
    segments = list_segments(log)
    at = [segment.path for segment in segments].index(path)
    for index in range(at, len(segments)):
        until = segments[index + 1].first_seq if index + 1 < len(segments) else None
        with segments[index].path.open("rb") as file:
            file.seek(max(offset_bytes if index == at else 0, SEGMENT_HEADER_BYTES))
            while True:
                head = file.read(HEADER_BYTES)
                header = decode_header(head, 0)
                if header is None or (until is not None and header.first_seq >= until):
                    break
                raw = head + file.read(header.body_bytes)
                if len(raw) < HEADER_BYTES + header.body_bytes:
                    break
                yield decode_frame(raw)


def read_log(directory: str | Path, from_seq: int = 0) -> Iterator[Frame]:
    """Frames of the log of a run directory, the first being the one that holds ``from_seq``.

    Ends after the last whole frame. ``BadInputError`` when there is no log or ``from_seq`` lies
    before its first kept frame; ``CorruptionError`` as soon as damage is met.
    """
    log = log_directory(Path(directory))
    if not log.is_dir():
        raise BadInputError(f"{directory} holds no log; expected the directory {log}")
    first = True
    for segment, scan in scan_segments(kept_segments(log), from_seq):
        if first and segment.first_seq > from_seq:
            raise BadInputError(
                f"the log in {directory} starts at seq {segment.first_seq}, {from_seq} was asked "
                "for; read from its start or use an archive of it"
            )
        first = False
        for frame in scan:
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
        for segment, scan in scan_segments(kept_segments(log)):
            walk.segment(segment, scan)
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

    def segment(self, segment: SegmentFile, scan: SegmentScan) -> None:
        if self.segments and scan.position != self.position:
            raise CorruptionError(
                f"{segment.path.name}: starts at seq {scan.position.next_seq}, the segment before "
                f"it ends at seq {self.position.next_seq} or with another chain value"
            )
        self.segments += 1
        for frame in scan:
            offset = scan.offset_bytes - len(frame.raw)
            try:
                self._frame(frame)
            except CorruptionError as error:
                raise CorruptionError(f"{segment.path.name} offset {offset}: {error}") from error
        self.position = scan.position
        if scan.end is not None:
            left = segment.path.stat().st_size - scan.end.offset_bytes
            if scan.end.ending is Ending.TORN:
                self.torn_bytes += left
            elif scan.end.ending is Ending.LEFT:
                self.fenced_bytes += left

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
