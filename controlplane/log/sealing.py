"""Turning full segments into their sealed form, and letting old ones go.

Runs beside a live writer, in a process of its own: it touches only segments that the log has moved
on from. A segment's active file is removed after its sealed form was read back and gave the same
bytes. What a writer must know of sealed segments (clients' numbers, registers) is kept in one state
file, so a start reads no sealed segment. Retention removes whole sealed segments, oldest first, and
says so in a manifest; the chain value at the cut stays, so what is kept still verifies.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.controlplane.log.files import Files, OsFiles
from pagetrail.controlplane.log.frames import Frame
from pagetrail.controlplane.log.limits import LogLimits, check_limits
from pagetrail.controlplane.log.manifests import (
    Removed,
    Retention,
    SealedManifest,
    read_manifest,
    read_retention,
    read_sealed_state,
    sealed_name,
    write_retention,
    write_sealed_state,
)
from pagetrail.controlplane.log.sealed import sealed_frames, write_sealed
from pagetrail.controlplane.log.segments import (
    SEGMENT_HEADER_BYTES,
    log_directory,
    segment_name,
)
from pagetrail.controlplane.log.sequencer import Sequencer
from pagetrail.controlplane.log.slots import DirectoryLock
from pagetrail.controlplane.log.stretches import (
    Stretch,
    list_stretches,
    stretch_frames,
)


@dataclass(frozen=True, slots=True)
class SealReport:
    """What one call sealed. ``active_bytes`` became ``sealed_bytes``."""

    segments: int
    facts: int
    active_bytes: int
    sealed_bytes: int


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What one call removed; the log now starts at ``first_seq``."""

    segments: int
    first_seq: int


def seal_log(
    directory: str | Path, *, limits: LogLimits | None = None, files: Files | None = None
) -> SealReport:
    """Seal every segment of a run's log but the last. Safe beside a running writer.

    ``BadInputError`` when another process is sealing; ``CorruptionError`` for a damaged segment,
    which is then left as it is.
    """
    log = _existing_log(directory)
    files = files or OsFiles()
    lock = DirectoryLock(log / "sealer.lock", "a sealer")
    manifests: list[SealedManifest] = []
    try:
        sequencer = Sequencer(check_limits(limits or LogLimits()))
        state = read_sealed_state(log)
        if state is not None:
            sequencer.restore(state)
        stretches = list_stretches(log)
        for index, stretch in enumerate(stretches.items[:-1]):
            until = stretches.until(index)
            if stretch.sealed:
                continue
            if (log / sealed_name(stretch.first_seq)).exists():
                _remove_active(log, stretch, files)
                continue
            frames = list(stretch_frames(stretch, until))
            if sequencer.position.next_seq <= stretch.first_seq:
                _catch_up(log, stretch, sequencer)
                sequencer.replay(frames)
            manifests.append(_write_checked(log, stretch, frames, files))
            write_sealed_state(log, sequencer.state(), files)
            name = sealed_name(stretch.first_seq)
            files.replace(log / f"{name}.tmp", log / name)
            files.sync_directory(log)
            _remove_active(log, stretch, files)
    finally:
        lock.release()
    return SealReport(
        len(manifests),
        sum(m.next_seq - m.first_seq for m in manifests),
        sum(m.active_bytes for m in manifests),
        sum(f.size_bytes for m in manifests for f in m.files),
    )


def retain_log(
    directory: str | Path, keep_from_seq: int, *, files: Files | None = None
) -> RetentionReport:
    """Remove sealed segments that lie wholly before ``keep_from_seq``, oldest first.

    Choose the ``seq`` of a keyframe, from which replay can start. What is removed is recorded,
    durably, before it goes.
    """
    log = _existing_log(directory)
    files = files or OsFiles()
    lock = DirectoryLock(log / "sealer.lock", "a sealer")
    try:
        stretches = list_stretches(log)
        removed = list(read_retention(log).removed)
        gone = []
        for stretch in stretches.items:
            if not stretch.sealed:
                break
            manifest = read_manifest(stretch.path)
            if manifest.next_seq > keep_from_seq:
                break
            gone.append(stretch)
            removed.append(
                Removed(
                    manifest.first_seq,
                    manifest.next_seq,
                    manifest.start_chain,
                    manifest.end_chain,
                )
            )
        if gone:
            write_retention(log, Retention(tuple(removed)), files)
        for stretch in gone:
            shutil.rmtree(stretch.path)
        files.sync_directory(log)
        return RetentionReport(len(gone), list_stretches(log).start.next_seq)
    finally:
        lock.release()


def _existing_log(directory: str | Path) -> Path:
    log = log_directory(Path(directory))
    if not log.is_dir():
        raise BadInputError(f"{directory} holds no log; expected the directory {log}")
    return log


def _catch_up(log: Path, stretch: Stretch, sequencer: Sequencer) -> None:
    """Fold what is sealed before ``stretch`` when the state file was lost."""
    for earlier in list_stretches(log).items:
        if sequencer.position.next_seq <= earlier.first_seq < stretch.first_seq:
            sequencer.replay(stretch_frames(earlier, None))
    if stretch.start != sequencer.position:
        raise CorruptionError(
            f"{stretch.path.name}: starts at seq {stretch.first_seq}, what is sealed before it "
            f"ends at seq {sequencer.position.next_seq} or with another chain value"
        )


def _write_checked(
    log: Path, stretch: Stretch, frames: list[Frame], files: Files
) -> SealedManifest:
    """Write the sealed form aside, read it back, and compare it frame by frame."""
    aside = log / f"{sealed_name(stretch.first_seq)}.tmp"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    active_bytes = SEGMENT_HEADER_BYTES + sum(len(frame.raw) for frame in frames)
    manifest = write_sealed(aside, stretch.start, stretch.writer_epoch, frames, active_bytes, files)
    for rebuilt, frame in zip(sealed_frames(aside, manifest), frames, strict=True):
        if rebuilt.raw != frame.raw:
            raise CorruptionError(
                f"{stretch.path.name}: the frame at seq {frame.first_seq} does not come back "
                "byte for byte from its sealed form; the segment is kept as it is"
            )
    return manifest


def _remove_active(log: Path, stretch: Stretch, files: Files) -> None:
    """The sealed form is in place, durably: the active one goes."""
    files.unlink(log / segment_name(stretch.first_seq))
    files.sync_directory(log)
