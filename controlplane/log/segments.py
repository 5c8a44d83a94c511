"""Segments: files of frames, and what a scan of one finds (docs/log.md).

A segment starts with a header that names the first ``seq`` it may hold and the chain value there.
Every start of a writer begins a new segment, so what a fenced writer still appends to its old one
lies behind the point where the log went on elsewhere, and is no part of the log.

The scan tells a torn tail from corruption. A writer writes a frame only after the one before it
is durable, so anything recognisable behind a bad frame proves that the bad frame was once whole:
that is corruption. Only a bad frame with nothing behind it can be a torn write.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import google_crc32c

from pagetrail.catalog.errors import CorruptionError
from pagetrail.controlplane.log.frames import (
    FORMAT_VERSION,
    HEADER_BYTES,
    MAGIC,
    Frame,
    LogPosition,
    chain_of,
    check_follows,
    decode_header,
    position_after,
)

SEGMENT_MAGIC = b"PTSG"
# magic, version, reserved (0), first_seq, writer_epoch, last t_us before it, previous_chain; CRC
_FIELDS = struct.Struct("<4sHHQQq32s")
_CRC = struct.Struct("<I")
SEGMENT_HEADER_BYTES = _FIELDS.size + _CRC.size
_SUFFIX = ".ptlog"
_NAME = re.compile(r"segment-(\d{20})-(\d{10})\.ptlog")


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """What a segment continues, and which writer began it."""

    writer_epoch: int
    start: LogPosition


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment in the active form, found by its name."""

    path: Path
    first_seq: int
    writer_epoch: int


class Ending(Enum):
    """How the bytes of a segment end."""

    CLEAN = "clean"
    """The last frame ends with the file."""
    TORN = "torn"
    """An incomplete or damaged last frame with nothing behind it."""
    LEFT = "left"
    """The log went on in another segment; what lies behind is a fenced writer's."""


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """Where a scan stopped: ``offset_bytes`` is the end of the last frame of the log there."""

    ending: Ending
    offset_bytes: int
    position: LogPosition


def segment_name(first_seq: int, writer_epoch: int) -> str:
    """A name that no other writer can take, so that none can replace another's segment."""
    return f"segment-{first_seq:020d}-{writer_epoch:010d}.ptlog"


def log_directory(directory: Path) -> Path:
    """Where a run directory keeps its log."""
    return directory / "log"


def list_segments(log: Path) -> list[SegmentFile]:
    """Active-form segments in order of their first ``seq``.

    Where several writers began one at the same ``seq``, it is the newest writer's: the others had
    made nothing durable there before they were fenced.
    """
    found = {segment.first_seq: segment for segment in all_segments(log)}
    return list(found.values())


def all_segments(log: Path) -> list[SegmentFile]:
    """Those of fenced writers too, in order of first ``seq`` and writer epoch."""
    found = []
    for name in sorted(os.listdir(log)):
        match = _NAME.fullmatch(name)
        if match:
            found.append(SegmentFile(log / name, int(match.group(1)), int(match.group(2))))
        elif name.endswith(_SUFFIX):
            raise CorruptionError(
                f"{log / name} has not the name of a segment; expected {segment_name(0, 1)} or "
                "alike: restore its name, or move away what does not belong there"
            )
    return found


def encode_segment_header(header: SegmentHeader) -> bytes:
    start = header.start
    fields = _FIELDS.pack(
        SEGMENT_MAGIC,
        FORMAT_VERSION,
        0,
        start.next_seq,
        header.writer_epoch,
        start.last_t_us,
        start.chain,
    )
    return fields + _CRC.pack(google_crc32c.value(fields))


def decode_segment_header(data: bytes, name: str) -> SegmentHeader:
    """``CorruptionError`` names the segment when its header is damaged."""
    if len(data) < SEGMENT_HEADER_BYTES:
        raise CorruptionError(
            f"{name}: {len(data)} bytes, shorter than a segment header ({SEGMENT_HEADER_BYTES})"
        )
    fields = data[: _FIELDS.size]
    if google_crc32c.value(fields) != _CRC.unpack_from(data, _FIELDS.size)[0]:
        raise CorruptionError(f"{name} offset 0: the segment header fails its checksum")
    magic, version, _, first_seq, writer_epoch, last_t_us, chain = _FIELDS.unpack(fields)
    if magic != SEGMENT_MAGIC:
        raise CorruptionError(f"{name} offset 0: not a segment (magic {magic!r})")
    if version != FORMAT_VERSION:
        raise CorruptionError(
            f"{name}: format version {version}, this build reads {FORMAT_VERSION}; "
            "use a newer build"
        )
    return SegmentHeader(writer_epoch, LogPosition(first_seq, chain, last_t_us))


class SegmentScan:
    """One pass over the frames of a segment; ``end`` is set once the iteration is over.

    ``until`` is where the next segment starts, None for the last one. Raises ``CorruptionError``
    naming the segment and the offset.
    """

    def __init__(
        self, data: bytes, name: str, start: LogPosition, until: LogPosition | None
    ) -> None:
        self._data = data
        self._name = name
        self._until = until
        self.offset_bytes = SEGMENT_HEADER_BYTES
        self.position = start
        self.end: ScanEnd | None = None

    def __iter__(self) -> Iterator[Frame]:
        data = self._data
        size_bytes = len(data)
        while not self._reached():
            offset = self.offset_bytes
            if offset == size_bytes and self._until is None:
                self._finish(Ending.CLEAN)
                return
            header = decode_header(data, offset)
            if header is None:
                self._bad(offset, f"no valid frame header at offset {offset}")
                return
            after = offset + HEADER_BYTES + header.body_bytes
            if after > size_bytes:
                self._bad(offset, f"the frame at offset {offset} is cut short", whole_header=True)
                return
            raw = data[offset:after]
            if google_crc32c.value(raw[HEADER_BYTES:]) != header.body_crc:
                message = f"the body of the frame at offset {offset} fails its checksum"
                if after != size_bytes:
                    raise CorruptionError(f"{self._name}: {message}, and more follows it")
                self._bad(offset, message, whole_header=True)
                return
            try:
                check_follows(header, self.position)
            except CorruptionError as error:
                raise CorruptionError(f"{self._name} offset {offset}: {error}") from error
            frame = Frame(header, raw, chain_of(raw))
            self.offset_bytes = after
            self.position = position_after(frame)
            yield frame
        self._finish(Ending.CLEAN if self.offset_bytes == size_bytes else Ending.LEFT)

    def _reached(self) -> bool:
        until = self._until
        if until is None or self.position.next_seq < until.next_seq:
            return False
        if self.position != until:
            raise CorruptionError(
                f"{self._name} offset {self.offset_bytes}: the log ends here at seq "
                f"{self.position.next_seq}, the next segment starts at seq {until.next_seq} "
                "with another chain value"
            )
        return True

    def _bad(self, offset: int, message: str, *, whole_header: bool = False) -> None:
        if self._until is not None:
            raise CorruptionError(
                f"{self._name}: {message}, and the log goes on at seq {self._until.next_seq}"
            )
        if not whole_header:
            later = find_later_frame(self._data, offset + 1, self.position.next_seq)
            if later is not None:
                raise CorruptionError(f"{self._name}: {message}, and a frame follows at {later}")
        self._finish(Ending.TORN)

    def _finish(self, ending: Ending) -> None:
        self.end = ScanEnd(ending, self.offset_bytes, self.position)


def find_later_frame(data: bytes, start: int, next_seq: int) -> int | None:
    """Offset of the first intact frame header at or after ``start`` of a later frame.

    The header alone is evidence enough: its body may be the torn one.
    """
    at = data.find(MAGIC, start)
    while at != -1:
        header = decode_header(data, at)
        if header is not None and header.first_seq > next_seq:
            return at
        at = data.find(MAGIC, at + 1)
    return None


def read_segment_header(segment: SegmentFile) -> SegmentHeader:
    """The checked header of a segment; its name must agree with it."""
    with segment.path.open("rb") as file:
        header = decode_segment_header(file.read(SEGMENT_HEADER_BYTES), segment.path.name)
    if (header.start.next_seq, header.writer_epoch) != (segment.first_seq, segment.writer_epoch):
        raise CorruptionError(
            f"{segment.path.name}: its header says it starts at seq {header.start.next_seq} in "
            f"epoch {header.writer_epoch}"
        )
    return header
