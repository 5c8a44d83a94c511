"""Turning full segments into their sealed form, and letting old ones go.

Runs beside a live writer, in a process of its own: it touches only segments that the log has moved
on from. A segment's active file is removed after its sealed form was read back and gave the same
bytes. What a writer must know of a sealed segment (clients' numbers, registers) stands in its
index, so a start reads no sealed table. Retention removes whole sealed segments, oldest first, and
says so in a manifest; what they leave behind is kept in one state file, and the chain value at the
cut stays, so what is kept still verifies.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.controlplane.log.files import Files, OsFiles, write_durable
from pagetrail.controlplane.log.frames import LogPosition
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.manifests import (
    Removed,
    Retention,
    SealedManifest,
    read_manifest,
    read_retention,
    sealed_name,
    write_base_state,
    write_retention,
)
from pagetrail.controlplane.log.recovery import fold_base
from pagetrail.controlplane.log.sealed import sealed_frames, write_sealed
from pagetrail.controlplane.log.segment_index import encode_index, index_of
from pagetrail.controlplane.log.segments import SEGMENT_HEADER_BYTES, all_segments, log_directory
from pagetrail.controlplane.log.slots import DirectoryLock
from pagetrail.controlplane.log.stretches import (
    Stretch,
    Stretches,
    index_path,
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


def seal_log(directory: str | Path, *, keep: int = 0, files: Files | None = None) -> SealReport:
    """Seal every segment of a run's log but the last, which is written, and the ``keep`` before it
    (``BadInputError`` when negative). Safe beside a running writer.

    ``BadInputError`` when another process is sealing; ``CorruptionError`` for a damaged segment,
    which is then left as it is.
    """
    if keep < 0:
        raise BadInputError(f"{keep} closed segments cannot be kept as they are; give 0 or more")
    log = _existing_log(directory)
    files = files or OsFiles()
    lock = DirectoryLock(log / "sealer.lock", "a sealer")
    manifests: list[SealedManifest] = []
    try:
        stretches = list_stretches(log)
        for number, stretch in enumerate(stretches.items[: -1 - keep]):
            until = stretches.until(number)
            if stretch.sealed or until is None:
                continue
            if not (log / sealed_name(stretch.first_seq)).exists():
                manifests.append(_write_sealed(log, stretch, until, files))
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
        for stretch in stretches.items[:-1]:  # so that the log always has an end
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
            _keep_base(log, stretches, gone, files)
            write_retention(log, Retention(tuple(removed)), files)
        for stretch in gone:
            shutil.rmtree(stretch.path)
        files.sync_directory(log)
        return RetentionReport(len(gone), list_stretches(log).start.next_seq)
    finally:
        lock.release()


def _keep_base(log: Path, stretches: Stretches, gone: list[Stretch], files: Files) -> None:
    """Keep what a writer must know of stretches before they are removed."""
    sequencer = fold_base(log, stretches, LogLimits())
    for number, stretch in enumerate(gone):
        until = stretches.until(number)
        if until is None or until.next_seq <= sequencer.position.next_seq:
            continue
        index = stretch.index(until)
        if index is None:
            index = index_of(stretch.start, stretch_frames(stretch, until))
        sequencer.fold(index)
    write_base_state(log, sequencer.state(), files)


def _existing_log(directory: str | Path) -> Path:
    log = log_directory(Path(directory))
    if not log.is_dir():
        raise BadInputError(f"{directory} holds no log; expected the directory {log}")
    return log


def _write_sealed(log: Path, stretch: Stretch, until: LogPosition, files: Files) -> SealedManifest:
    """Write the sealed form aside, read it back, compare it frame by frame, put it in place."""
    frames = list(stretch_frames(stretch, until))
    name = sealed_name(stretch.first_seq)
    aside = log / f"{name}.tmp"
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
    write_durable(files, index_path(aside), encode_index(index_of(stretch.start, frames)))
    files.replace(aside, log / name)
    files.sync_directory(log)
    return manifest


def _remove_active(log: Path, stretch: Stretch, files: Files) -> None:
    """The sealed form is in place, durably: the active one goes, fenced writers' too."""
    for segment in all_segments(log):
        if segment.first_seq == stretch.first_seq:
            index_path(segment).unlink(missing_ok=True)
            files.unlink(segment.path)
    files.sync_directory(log)
