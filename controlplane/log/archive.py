"""The log's directory as its readers see it: any durable range, found without walking to it.

For a writer that answers others while it writes: frames from a position on as they lie in the
file, the chain value at a position, where old transactions lie. Places come from the segments'
indexes and, for the active segment, from the writer. A sealed segment is never turned back into
frames here: who wants its frames takes its files. Only what lies before ``end`` is shown, which
the caller knows to be durable. An ``Archive`` belongs to one thread; several may read one log.
"""

from __future__ import annotations

import bisect
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.controlplane.log.books import spans_of_frame
from pagetrail.controlplane.log.frames import (
    HEADER_BYTES,
    Frame,
    decode_frame,
    decode_header,
    frame_span,
)
from pagetrail.controlplane.log.manifests import read_manifest
from pagetrail.controlplane.log.segment_index import SegmentIndex, load_index
from pagetrail.controlplane.log.segments import (
    SEGMENT_HEADER_BYTES,
    SegmentFile,
    list_segments,
    read_segment_header,
)
from pagetrail.controlplane.log.stretches import index_path, sealed_directories
from pagetrail.controlplane.log.wire import AnswerSpan, SegmentEntry, cut_span

_READ_BYTES = 64 * 1024
"""Read at once, at least; frames before the wanted one are stepped over in these."""


@dataclass(frozen=True, slots=True)
class ActiveSegment:
    """Where the writer stands: its segment's first ``seq``, and (first seq, offset) of frames."""

    first_seq: int
    places: Sequence[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class SealedRange:
    """The answer for a position that lies in a sealed segment: take its files instead."""

    directory: Path


@dataclass(frozen=True, slots=True)
class _Found:
    """The stretch that holds a position, and where the one after it starts (None: the last)."""

    first_seq: int
    segment: SegmentFile | None
    sealed: Path | None
    until: int | None


class Archive:
    """See the module."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._index: tuple[Path, SegmentIndex | None] | None = None

    def raw_frames(
        self, from_seq: int, max_bytes: int, end: int, active: ActiveSegment
    ) -> bytes | SealedRange:
        """Whole frames from the one that holds ``from_seq`` on, as stored, one after another.

        At least one, more up to ``max_bytes``, all of one segment and before ``end``; empty when
        nothing follows yet. ``BadInputError`` when ``from_seq`` is no longer kept.
        """
        if from_seq >= end:
            return b""
        found = self._holding(from_seq)
        if found.segment is None:
            return self._sealed(found)
        until = end if found.until is None else min(end, found.until)
        offset = self._offset(found.segment, from_seq, active)
        try:
            descriptor = os.open(found.segment.path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:  # sealed a moment ago
            return self.raw_frames(from_seq, max_bytes, end, active)
        try:
            return _whole_frames(descriptor, offset, from_seq, until, max_bytes)
        finally:
            os.close(descriptor)

    def chain_at(self, seq: int, end: int, active: ActiveSegment) -> bytes | None:
        """The chain value where ``seq``, which lies before ``end``, is the next one.

        Empty when no frame starts there; None when it is no longer kept.
        """
        try:
            found = self._holding(seq)
        except BadInputError:
            return None
        if found.segment is None:
            directory = self._sealed(found).directory
            manifest = read_manifest(directory)
            if seq == found.first_seq:
                return manifest.start.chain
            from pagetrail.controlplane.log.sealed import sealed_chain  # loads Parquet

            return sealed_chain(directory, manifest, seq) or b""
        if seq == found.first_seq:
            return read_segment_header(found.segment).start.chain
        raw = self.raw_frames(seq, 1, end, active)
        if isinstance(raw, SealedRange):
            return self.chain_at(seq, end, active)
        header = decode_header(raw, 0)
        return header.previous_chain if header is not None and header.first_seq == seq else b""

    def answers(
        self, client: str, client_epoch: int, first_client_seq: int, count: int, end: int
    ) -> list[AnswerSpan]:
        """Where transactions lie that the log holds before ``end``, in order of ``client_seq``."""
        stop = first_client_seq + count
        spans: list[AnswerSpan] = []
        for found in reversed(self._stretches()):
            index = self._index_of(found)
            if index is not None:
                held = index.range_of(client, client_epoch)
                if held is None or held.first_client_seq >= stop:
                    continue
                if held.next_client_seq <= first_client_seq:
                    break
            inside = self._spans_in(found, (client, client_epoch, first_client_seq, stop), end)
            spans = [*inside, *spans]
            if spans and spans[0].first_client_seq <= first_client_seq:
                break
        return spans

    def segments(self, end: int) -> list[SegmentEntry]:
        """The stretches a new reader starts from, the sealed ones by the name of their place."""
        return [
            SegmentEntry(
                found.first_seq,
                end if found.until is None else found.until,
                "" if found.segment is not None else self._sealed(found).directory.name,
            )
            for found in self._stretches()
        ]

    def _spans_in(
        self, found: _Found, wanted: tuple[str, int, int, int], end: int
    ) -> list[AnswerSpan]:
        client, client_epoch, first, stop = wanted
        if found.segment is None:
            from pagetrail.controlplane.log.sealed_columns import sealed_spans  # loads Parquet

            directory = self._sealed(found).directory
            return sealed_spans(
                directory, read_manifest(directory), client, client_epoch, first, stop
            )
        spans = []
        for frame in _frames(found.segment.path, end if found.until is None else found.until):
            for owner, epoch, span in spans_of_frame(frame):
                low = max(first, span.first_client_seq)
                high = min(stop, span.first_client_seq + span.count)
                if (owner, epoch) == (client, client_epoch) and low < high:
                    spans.append(cut_span(span, low, high - low))
        return spans

    def _stretches(self) -> list[_Found]:
        """The kept stretches by their names alone, oldest first; active forms before sealed."""
        sealed = sealed_directories(self._log)
        active = {segment.first_seq: segment for segment in list_segments(self._log)}
        starts = sorted({*sealed, *active})
        ends = [*starts[1:], None]
        return [
            _Found(start, active.get(start), sealed.get(start), end)
            for start, end in zip(starts, ends, strict=True)
        ]

    def _holding(self, seq: int) -> _Found:
        stretches = self._stretches()
        place = bisect.bisect_right(stretches, seq, key=lambda found: found.first_seq) - 1
        if place < 0:
            kept = stretches[0].first_seq if stretches else 0
            raise BadInputError(f"seq {seq} lies before the first that this log keeps ({kept})")
        return stretches[place]

    def _sealed(self, found: _Found) -> SealedRange:
        if found.sealed is None:
            raise CorruptionError(f"{self._log}: nothing holds the facts from {found.first_seq} on")
        return SealedRange(found.sealed)

    def _offset(self, segment: SegmentFile, seq: int, active: ActiveSegment) -> int:
        """Offset of a frame at or before the one that holds ``seq``."""
        if segment.first_seq == active.first_seq:
            place = bisect.bisect_right(active.places, seq, key=lambda noted: noted[0]) - 1
            return active.places[place][1] if place >= 0 else SEGMENT_HEADER_BYTES
        index = self._load(index_path(segment))
        return max(0 if index is None else index.offset_of(seq), SEGMENT_HEADER_BYTES)

    def _index_of(self, found: _Found) -> SegmentIndex | None:
        if found.segment is not None:
            return None if found.until is None else self._load(index_path(found.segment))
        return self._load(index_path(self._sealed(found).directory))

    def _load(self, path: Path) -> SegmentIndex | None:
        if self._index is None or self._index[0] != path:
            self._index = (path, load_index(path))
        return self._index[1]


def _whole_frames(descriptor: int, offset: int, from_seq: int, until: int, max_bytes: int) -> bytes:
    """Frames that hold ``from_seq`` and later ones, before ``until``, from an offset on: one, and
    more as long as all of them have at most ``max_bytes``."""
    kept = b""
    size = max(max_bytes, _READ_BYTES)
    while True:
        data = os.pread(descriptor, size, offset)
        part = _split(data, from_seq, until, max_bytes - len(kept), bool(kept))
        kept += data[part.start : part.end]
        if part.last or (part.end == 0 and len(data) < size):  # or the file ends inside a frame
            return kept
        offset += part.end
        size = max(size, part.next_bytes)


@dataclass(frozen=True, slots=True)
class _Part:
    """What some bytes hold: wanted frames from ``start`` to ``end``; whether they are the last to
    be taken; how many bytes the frame behind them needs to be seen whole."""

    start: int
    end: int
    last: bool
    next_bytes: int


def _split(data: bytes, from_seq: int, until: int, max_bytes: int, some: bool) -> _Part:
    """``some``: a wanted frame is there already, so none is taken beyond ``max_bytes``."""
    end = start = 0
    while True:
        span = frame_span(data, end)
        if span is None:
            return _Part(start, end, len(data) - end >= HEADER_BYTES, HEADER_BYTES)
        after = end + span.size_bytes
        if span.first_seq >= until or ((some or end > start) and after - start > max_bytes):
            return _Part(start, end, True, 0)
        if after > len(data):
            return _Part(start, end, False, span.size_bytes)
        end = after
        if span.next_seq <= from_seq:
            start = end


def _frames(path: Path, until: int) -> Iterator[Frame]:
    """The frames of an active segment before a position, checked one by one."""
    with path.open("rb") as file:
        file.seek(SEGMENT_HEADER_BYTES)
        while True:
            head = file.read(HEADER_BYTES)
            span = frame_span(head, 0)
            if span is None or span.first_seq >= until:
                return
            yield decode_frame(head + file.read(span.size_bytes - HEADER_BYTES))
