"""Recovery: from the files of a log to the state of a writer that continues it.

Closed segments are taken from their indexes, sealed ones from those in their directories; what
retention removed, from the state file that stands for it. Of the two newest segments those in the
active form, and any segment whose index is not to be used, are walked: every checksum and the
chain. So the answers to what clients may send again are known, and a torn tail is found; only that
is ever cut.
"""

from __future__ import annotations

from pathlib import Path

from pagetrail.catalog.errors import CorruptionError
from pagetrail.controlplane.log.files import Files
from pagetrail.controlplane.log.frames import LogPosition
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.manifests import read_base_state
from pagetrail.controlplane.log.segment_index import IndexBuilder, write_index
from pagetrail.controlplane.log.segments import Ending, SegmentScan
from pagetrail.controlplane.log.sequencer import RecentFrames, Sequencer
from pagetrail.controlplane.log.stretches import Stretch, Stretches, list_stretches, stretch_frames

_WALKED_SEGMENTS = 2
"""The newest segments are walked, so that at least one whole one is."""


def recover(log: Path, limits: LogLimits, files: Files) -> Sequencer:
    """Fold a log into a sequencer; a torn tail is cut, durably.

    What a killed writer wrote and did not sync is made durable too: its transactions will be
    answered as taken. ``CorruptionError`` for any other damage: nothing is changed then, except
    that indexes are written for what was walked.
    """
    stretches = list_stretches(log)
    sequencer = fold_base(log, stretches, limits)
    recent = RecentFrames(limits.answers)
    for number, stretch in enumerate(stretches.items):
        until = stretches.until(number)
        if until is not None and until.next_seq <= sequencer.position.next_seq:
            continue
        index = None
        closed = stretch.sealed or number < len(stretches.items) - _WALKED_SEGMENTS
        if until is not None and closed:
            index = stretch.index(until)
        if index is not None:
            recent.clear()
            sequencer.fold(index)
        else:
            _walk(stretch, until, sequencer, recent, limits, files)
    sequencer.remember(recent)
    if stretches.unborn is not None:
        files.unlink(stretches.unborn)
        files.sync_directory(log)
    return sequencer


def fold_base(log: Path, stretches: Stretches, limits: LogLimits) -> Sequencer:
    """A sequencer that stands where the kept log starts, or later. ``CorruptionError``: it cannot
    be known what it would have to know."""
    sequencer = Sequencer(limits)
    state = read_base_state(log)
    if state is not None:
        sequencer.restore(state)
    elif stretches.start.next_seq > 0:
        raise CorruptionError(
            f"{log}: starts at seq {stretches.start.next_seq} and holds no base-state file, "
            "without which clients' numbers and registers are unknown; restore that file"
        )
    return sequencer


def _walk(
    stretch: Stretch,
    until: LogPosition | None,
    sequencer: Sequencer,
    recent: RecentFrames,
    limits: LogLimits,
    files: Files,
) -> None:
    """Fold a stretch frame by frame; its index is written, and a torn end cut."""
    builder = IndexBuilder(stretch.start, limits.index_stride_bytes)
    scan = None
    stretch, data = stretch.present()
    if data is None:
        frames = stretch_frames(stretch, until)
    else:
        scan = SegmentScan(data, stretch.path.name, stretch.start, until)
        frames = iter(scan)
    for frame in recent.passing(frames):
        builder.add(frame, 0 if scan is None else scan.offset_bytes - len(frame.raw))
    index = builder.index()
    sequencer.fold(index)
    if scan is not None:
        if until is None and scan.end is not None:
            torn = scan.end.ending is Ending.TORN
            _make_durable(stretch.path, scan.end.offset_bytes if torn else None, files)
        write_index(files, stretch.index_path, index)


def _make_durable(path: Path, cut_bytes: int | None, files: Files) -> None:
    descriptor = files.open_append(path)
    try:
        if cut_bytes is not None:
            files.truncate(descriptor, cut_bytes)
        files.fdatasync(descriptor)
    finally:
        files.close(descriptor)
