"""The small files beside the segments: manifests of sealed ones, the state before them, the cut.

Plain values and their encodings; this module knows nothing of Parquet.
"""

from __future__ import annotations

import hashlib
from enum import Enum
from pathlib import Path

import msgspec

from pagetrail.catalog.errors import CorruptionError
from pagetrail.controlplane.log.files import Files, write_durable
from pagetrail.controlplane.log.frames import LogPosition
from pagetrail.controlplane.log.sequencer import SequencerState

SEALED_VERSION = 2
MANIFEST_NAME = "manifest.json"
_STATE = "base-state"
_RETENTION = "retention.json"
_DIGEST_BYTES = 32


class Form(Enum):
    """How a body field lies in its column."""

    INTEGER = "integer"
    BYTES = "bytes"
    TEXT = "text"
    BOOLEAN = "boolean"
    MSGPACK = "msgpack"


class BodyColumn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One field of a body."""

    column: str
    form: Form


class SealedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the sealed form. ``kind`` is 0 for the table of frames.

    ``body`` are the columns, in order, that make a fact's body.
    """

    name: str
    kind: int
    body: tuple[BodyColumn, ...]
    rows: int
    size_bytes: int
    sha256: str


class SealedManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a sealed segment holds; chain values are hexadecimal.

    ``active_bytes`` is what its frames took as a segment; ``writer_epoch`` began the segment.
    """

    version: int
    writer_epoch: int
    first_seq: int
    next_seq: int
    start_chain: str
    start_t_us: int
    end_chain: str
    end_t_us: int
    frames: int
    active_bytes: int
    files: tuple[SealedFile, ...]

    @property
    def start(self) -> LogPosition:
        return LogPosition(self.first_seq, bytes.fromhex(self.start_chain), self.start_t_us)

    @property
    def end(self) -> LogPosition:
        return LogPosition(self.next_seq, bytes.fromhex(self.end_chain), self.end_t_us)


class Removed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stretch of the log that retention removed."""

    first_seq: int
    next_seq: int
    start_chain: str
    end_chain: str


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was removed, oldest first. The log now starts where the last of them ended."""

    removed: tuple[Removed, ...]


def sealed_name(first_seq: int) -> str:
    return f"sealed-{first_seq:020d}"


def write_manifest(directory: Path, manifest: SealedManifest, files: Files) -> None:
    """Make a manifest durable; to write after the files it names."""
    text = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    write_durable(files, directory / MANIFEST_NAME, text)


def read_manifest(directory: Path) -> SealedManifest:
    """The manifest of a sealed segment. ``CorruptionError`` when it cannot be used."""
    try:
        manifest = msgspec.json.decode(
            (directory / MANIFEST_NAME).read_bytes(), type=SealedManifest
        )
    except (OSError, msgspec.MsgspecError) as error:
        raise CorruptionError(f"{directory.name}: no usable manifest: {error}") from error
    if manifest.version != SEALED_VERSION:
        raise CorruptionError(
            f"{directory.name}: sealed form {manifest.version}, this build reads "
            f"{SEALED_VERSION}; use a newer build"
        )
    if sealed_name(manifest.first_seq) != directory.name:
        raise CorruptionError(
            f"{directory.name}: its manifest says it starts at seq {manifest.first_seq}"
        )
    return manifest


def write_base_state(log: Path, state: SequencerState, files: Files) -> None:
    """Keep, durably, what a writer must know of everything that is removed before a position."""
    encoded = msgspec.msgpack.encode(state)
    write_durable(files, log / _STATE, hashlib.sha256(encoded).digest() + encoded)


def read_base_state(log: Path) -> SequencerState | None:
    """The kept state, None when nothing was removed. ``CorruptionError`` when it is damaged."""
    try:
        data = (log / _STATE).read_bytes()
    except FileNotFoundError:
        return None
    digest, encoded = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(encoded).digest() != digest:
        raise CorruptionError(
            f"{log / _STATE}: fails its checksum; restore it: what it stands for was removed"
        )
    return msgspec.msgpack.decode(encoded, type=SequencerState)


def write_retention(log: Path, retention: Retention, files: Files) -> None:
    """Make the record of what was removed durable; to write before removing it."""
    text = msgspec.json.format(msgspec.json.encode(retention), indent=1)
    write_durable(files, log / _RETENTION, text)


def read_retention(log: Path) -> Retention:
    """What retention removed so far. ``CorruptionError`` when its record is damaged."""
    try:
        return msgspec.json.decode((log / _RETENTION).read_bytes(), type=Retention)
    except FileNotFoundError:
        return Retention(())
    except msgspec.MsgspecError as error:
        raise CorruptionError(f"{log / _RETENTION}: damaged: {error}") from error
