"""The stretches of a log: segments in the active form and sealed ones, in one order.

Both forms give the same frames. This module finds them and walks through them; Parquet is only
loaded when a sealed stretch is actually read. The sealer and retention may work on the log at the
same time: a segment whose active file goes away is read on from its sealed form, and one that
retention removes is told as such.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.controlplane.log.frames import (
    LOG_START,
    Frame,
    LogPosition,
)
from pagetrail.controlplane.log.manifests import read_manifest, read_retention, sealed_name
from pagetrail.controlplane.log.segment_index import (
    SEALED_INDEX_NAME,
    SegmentIndex,
    index_name,
    load_index,
)
from pagetrail.controlplane.log.segments import (
    SEGMENT_HEADER_BYTES,
    SegmentFile,
    SegmentScan,
    all_segments,
    list_segments,
    read_segment_header,
)

_SEALED_NAME = re.compile(r"sealed-(\d{20})")
_LISTINGS_MAX = 100  # each one more took a sealer or retention in the moment of the one before


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

    @property
    def index_path(self) -> Path:
        if self.sealed:
            return index_path(self.path)
        return index_path(SegmentFile(self.path, self.first_seq, self.writer_epoch))

    def index(self, until: LogPosition) -> SegmentIndex | None:
        """The index of this stretch, which ends at ``until``; None when there is none to use."""
        index = load_index(self.index_path)
        if index is None or (index.start, index.end) != (self.start, until):
            return None
        if self.sealed:
            return index
        try:
            whole = self.path.stat().st_size >= index.size_bytes > 0
        except FileNotFoundError:
            return None  # it has just been sealed
        return index if whole else None

    def present(self) -> tuple[Stretch, bytes | None]:
        """The stretch in the form it has now, and the active form's bytes; None: it is sealed.

        BadInputError when it is there in neither form.
        """
        if self.sealed:
            return self, None
        try:
            return self, self.path.read_bytes()
        except FileNotFoundError:
            path = self.path.with_name(sealed_name(self.first_seq))
            if not path.exists():
                raise _gone(self.path) from None
            return Stretch(path, True, self.start, self.writer_epoch), None


@dataclass(frozen=True, slots=True)
class Stretches:
    """All stretches that are kept, in order."""

    items: tuple[Stretch, ...]
    unborn: Path | None
    """A last file too short to hold a segment header: a creation that a crash cut short."""
    superseded: tuple[Path, ...]
    """What fenced writers began where a newer one began too; no part of the log."""

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
    for _ in range(_LISTINGS_MAX):
        try:
            return _listed(log)
        except FileNotFoundError:
            continue  # a segment was sealed away since its name was read
    raise BadInputError(f"{log}: its segments go away as fast as they are read; try again")


def _listed(log: Path) -> Stretches:
    segments = list_segments(log)
    chosen = {segment.path for segment in segments}
    superseded = tuple(s.path for s in all_segments(log) if s.path not in chosen)
    unborn = None
    if segments and segments[-1].path.stat().st_size < SEGMENT_HEADER_BYTES:
        unborn = segments.pop().path
    removed = read_retention(log).removed
    start_seq = removed[-1].next_seq if removed else 0
    found = {}
    for first_seq, path in sealed_directories(log).items():
        if first_seq < start_seq:
            continue  # retention is about to remove what is left of it
        manifest = read_manifest(path)
        found[manifest.first_seq] = Stretch(path, True, manifest.start, manifest.writer_epoch)
    for segment in segments:
        header = read_segment_header(segment)
        found[segment.first_seq] = Stretch(segment.path, False, header.start, header.writer_epoch)
    kept = [found[first_seq] for first_seq in sorted(found) if first_seq >= start_seq]
    if removed and kept and kept[0].start.chain.hex() != removed[-1].end_chain:
        raise CorruptionError(
            f"{kept[0].path.name}: does not continue what retention removed before it"
        )
    return Stretches(tuple(kept), unborn, superseded)


def sealed_directories(log: Path) -> dict[int, Path]:
    """Sealed segments by their first ``seq``."""
    matches = (_SEALED_NAME.fullmatch(name) for name in os.listdir(log))
    return {int(match.group(1)): log / match.group(0) for match in matches if match}


def index_path(segment: SegmentFile | Path) -> Path:
    """Where the index of an active segment, or of a sealed segment's directory, lies."""
    if isinstance(segment, Path):
        return segment / SEALED_INDEX_NAME
    return segment.path.with_name(index_name(segment.first_seq, segment.writer_epoch))


def stretch_frames(stretch: Stretch, until: LogPosition | None) -> Iterator[Frame]:
    """The frames of one stretch, checked and in order. Raises ``CorruptionError`` as they do.

    ``BadInputError`` when retention has removed it.
    """
    stretch, data = stretch.present()
    if data is not None:
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

    try:
        yield from sealed_frames(path)
    except CorruptionError as error:
        kept = read_retention(path.parent).removed
        if kept and sealed_name(kept[-1].next_seq) > path.name:
            raise _gone(path) from error
        raise


def _gone(path: Path) -> BadInputError:
    return BadInputError(
        f"{path.name} was removed while the log was read; what is kept now starts later: read it "
        "again from there, or read an archive of it"
    )
