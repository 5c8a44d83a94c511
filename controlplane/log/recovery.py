"""Recovery: from the files of a log to the state of a writer that continues it.

Sealed segments are taken from the state file that stands for them; the active ones are scanned,
every checksum and the chain included. Only a torn tail is ever cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pagetrail.catalog.errors import CorruptionError
from pagetrail.controlplane.log.files import Files
from pagetrail.controlplane.log.frames import Frame, LogPosition
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.manifests import read_sealed_state
from pagetrail.controlplane.log.segments import Ending, SegmentScan
from pagetrail.controlplane.log.sequencer import Sequencer
from pagetrail.controlplane.log.stretches import Stretch, list_stretches, stretch_frames


@dataclass(frozen=True, slots=True)
class Place:
    """Where a frame starts: its first ``seq``, its segment's, and the offset there."""

    first_seq: int
    segment_first_seq: int
    offset_bytes: int


def recover(log: Path, limits: LogLimits, files: Files) -> tuple[Sequencer, list[Place]]:
    """Fold a log into a sequencer and find places in it; a torn tail is cut, durably.

    What a killed writer wrote and did not sync is made durable too: its transactions will be
    answered as taken. ``CorruptionError`` for any other damage: nothing is changed then.
    """
    places: list[Place] = []
    stretches = list_stretches(log)
    sequencer = Sequencer(limits, stretches.start)
    state = read_sealed_state(log)
    if state is not None:
        sequencer.restore(state)
    elif stretches.start.next_seq > 0:
        raise CorruptionError(
            f"{log}: starts at seq {stretches.start.next_seq} and holds no sealed-state file, "
            "without which clients' numbers and registers are unknown; restore that file"
        )
    tails: list[tuple[Path, int | None]] = []  # (path, where to cut it)

    def active_frames(stretch: Stretch, until: LogPosition | None) -> Iterator[Frame]:
        scan = SegmentScan(stretch.path.read_bytes(), stretch.path.name, stretch.start, until)
        next_place_bytes = 0
        for frame in scan:
            offset = scan.offset_bytes - len(frame.raw)
            if offset >= next_place_bytes:
                places.append(Place(frame.first_seq, stretch.first_seq, offset))
                next_place_bytes = offset + limits.index_stride_bytes
            yield frame
        if until is None and scan.end is not None:
            torn = scan.end.ending is Ending.TORN
            tails.append((stretch.path, scan.end.offset_bytes if torn else None))

    def frames() -> Iterator[Frame]:
        position = sequencer.position
        for index, stretch in enumerate(stretches.items):
            until = stretches.until(index)
            if stretch.sealed or (until is not None and until.next_seq <= position.next_seq):
                places.append(Place(stretch.first_seq, stretch.first_seq, 0))
            if until is not None and until.next_seq <= position.next_seq:
                continue
            if stretch.sealed:
                yield from stretch_frames(stretch, until)
            else:
                yield from active_frames(stretch, until)

    sequencer.replay(frames())
    for path, offset_bytes in tails:
        descriptor = files.open_append(path)
        try:
            if offset_bytes is not None:
                files.truncate(descriptor, offset_bytes)
            files.fdatasync(descriptor)
        finally:
            files.close(descriptor)
    if stretches.unborn is not None:
        files.unlink(stretches.unborn)
        files.sync_directory(log)
    return sequencer, places
