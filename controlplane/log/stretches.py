"""The stretches of a log: segments in the active form and sealed ones, in one order.

Both forms give the same frames. This module finds them and walks through them; Parquet is only
loaded when a sealed stretch is actually read.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pagetrail.catalog.errors import CorruptionError
from pagetrail.controlplane.log.frames import (
    HEADER_BYTES,
    LOG_START,
    Frame,
    LogPosition,
    decode_frame,
    decode_header,
)
from pagetrail.controlplane.log.manifests import read_manifest, read_retention
from pagetrail.controlplane.log.segments import (
    SEGMENT_HEADER_BYTES,
    SegmentScan,
    list_segments,
    read_segment_header,
)

_SEALED_NAME = re.compile(r"sealed-(\d{20})")


@dataclass(frozen=True, slots=True)
class Stretch:
    """A segment of the log in one of its forms. ``start`` is where it continues the log."""

    path: Path
    sealed: bool
    start: LogPosition
    writer_epoch: int

    @property
    def first_seq(self) -> int:
        return self.start.next_seq


@dataclass(frozen=True, slots=True)
class Stretches:
    """All stretches that are kept, in order."""

    items: tuple[Stretch, ...]
    unborn: Path | None
    """A last file too short to hold a segment header: a creation that a crash cut short."""

    @property
    def start(self) -> LogPosition:
        return self.items[0].start if self.items else LOG_START

    def until(self, index: int) -> LogPosition | None:
        """Where the stretch after ``items[index]`` starts; None for the last one."""
        return self.items[index + 1].start if index + 1 < len(self.items) else None


def list_stretches(log: Path) -> Stretches:
    """Find the stretches of a log. ``CorruptionError`` names one whose header is damaged.

    A segment that is there in both forms, which a crash of the sealer can leave, counts once.
    """
    segments = list_segments(log)
    unborn = None
    if segments and segments[-1].path.stat().st_size < SEGMENT_HEADER_BYTES:
        unborn = segments.pop().path
    found = {}
    for name in os.listdir(log):
        if _SEALED_NAME.fullmatch(name):
            manifest = read_manifest(log / name)
            found[manifest.first_seq] = Stretch(
                log / name, True, manifest.start, manifest.writer_epoch
            )
    for segment in segments:
        header = read_segment_header(segment)
        found[segment.first_seq] = Stretch(segment.path, False, header.start, header.writer_epoch)
    items = tuple(found[first_seq] for first_seq in sorted(found))
    removed = read_retention(log).removed
    kept = [item for item in items if not removed or item.first_seq >= removed[-1].next_seq]
    if removed and kept and kept[0].start.chain.hex() != removed[-1].end_chain:
        raise CorruptionError(
            f"{kept[0].path.name}: does not continue what retention removed before it"
        )
    return Stretches(tuple(kept), unborn)


def stretch_frames(stretch: Stretch, until: LogPosition | None) -> Iterator[Frame]:
    """The frames of one stretch, checked and in order. Raises ``CorruptionError`` as they do."""
    if not stretch.sealed:
        data = stretch.path.read_bytes()
        yield from SegmentScan(data, stretch.path.name, stretch.start, until)
        return
    position = stretch.start
    for frame in frames_of_sealed(stretch.path):
        position = LogPosition(frame.next_seq, frame.chain, frame.header.last_t_us)
        yield frame
    if until is not None and position != until:
        raise CorruptionError(
            f"{stretch.path.name}: ends at seq {position.next_seq}, the next segment starts at "
            f"seq {until.next_seq} or with another chain value"
        )


def stretch_chain(stretch: Stretch, until: LogPosition | None, position: int) -> bytes | None:
    """The chain value inside a stretch where ``position`` is the next seq, None if there is none.

    Of a sealed stretch only the table of frames is read.
    """
    if stretch.sealed:
        from pagetrail.controlplane.log.sealed import sealed_chain

        return sealed_chain(stretch.path, read_manifest(stretch.path), position)
    for frame in stretch_frames(stretch, until):
        if frame.next_seq >= position:
            return frame.chain if frame.next_seq == position else None
    return None


def frames_of_sealed(path: Path) -> Iterator[Frame]:
    """The frames of a sealed segment; this is where Parquet is loaded."""
    from pagetrail.controlplane.log.sealed import sealed_frames

    return sealed_frames(path)


def durable_frames(
    log: Path,
    first_seq: int,
    offset_bytes: int,
    read_sealed: Callable[[Path], Iterable[Frame]],
) -> Iterator[Frame]:
    """Frames from a known boundary on: ``offset_bytes`` into the stretch that starts at a seq.

    For positions known to be durable: what does not parse ends the iteration. When the stretch
    was sealed meanwhile, the frames start at its beginning. ``read_sealed`` gives the frames of a
    sealed segment's directory.
    """
    sealed = {_sealed_seq(name): log / name for name in os.listdir(log)}
    active = {segment.first_seq: segment.path for segment in list_segments(log)}
    starts = sorted(seq for seq in {*sealed, *active} if seq >= first_seq)
    for seq, until in itertools.zip_longest(starts, starts[1:]):
        path = active.get(seq)
        if path is not None:
            yield from _active_frames(path, offset_bytes if seq == first_seq else 0, until)
        else:
            yield from read_sealed(sealed[seq])


def _sealed_seq(name: str) -> int:
    """First ``seq`` of a sealed segment by its directory's name; -1 for any other name."""
    match = _SEALED_NAME.fullmatch(name)
    return int(match.group(1)) if match else -1


def _active_frames(path: Path, offset_bytes: int, until: int | None) -> Iterator[Frame]:
    with path.open("rb") as file:
        file.seek(max(offset_bytes, SEGMENT_HEADER_BYTES))
        while True:
            head = file.read(HEADER_BYTES)
            header = decode_header(head, 0)
            if header is None or (until is not None and header.first_seq >= until):
                return
            raw = head + file.read(header.body_bytes)
            if len(raw) < HEADER_BYTES + header.body_bytes:
                return
            yield decode_frame(raw)
