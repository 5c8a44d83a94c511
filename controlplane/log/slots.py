"""Slots: names that exactly one writer can create, which is how one writer fences another.

A writer takes epoch N by creating slot N; only one can. After every durable write, and before it
acknowledges, it looks for slot N + 1. Whoever takes the log over creates that slot first and reads
the log's end afterwards. So either the old writer sees the slot and acknowledges nothing, or its
frame was durable before the slot was there and the new writer finds it. This needs no lock that a
stopped process could go on holding, and the same steps work over an object store with
create-if-absent.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Protocol

import msgspec

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.controlplane.log.errors import FencedError
from pagetrail.controlplane.log.files import Files, create_durable


class SlotStore(Protocol):
    """A durable map from names to bytes in which a name is set once."""

    def create(self, name: str, data: bytes) -> bool:
        """Set ``name`` unless it is set; return whether this call did."""

    def exists(self, name: str) -> bool:
        """Whether ``name`` is set."""

    def read(self, name: str) -> bytes | None:
        """The bytes of ``name``, None when it is not set."""

    def names(self) -> list[str]:
        """All names, in byte order."""


class DirectorySlots:
    """Slots as files of one directory of a local file system."""

    def __init__(self, directory: Path, files: Files) -> None:
        self._directory = directory
        self._files = files
        directory.mkdir(parents=True, exist_ok=True)
        files.sync_directory(directory.parent)

    def create(self, name: str, data: bytes) -> bool:
        return create_durable(self._files, self._directory / name, data)

    def exists(self, name: str) -> bool:
        return os.path.lexists(self._directory / name)

    def read(self, name: str) -> bytes | None:
        try:
            return (self._directory / name).read_bytes()
        except FileNotFoundError:
            return None

    def names(self) -> list[str]:
        return sorted(n for n in os.listdir(self._directory) if not n.endswith(".tmp"))


class EpochSlot(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Content of an epoch's slot: who took it."""

    writer_epoch: int
    host: str
    process: int


def slot_name(writer_epoch: int) -> str:
    return f"epoch-{writer_epoch:020d}"


def newest_epoch(slots: SlotStore) -> int:
    """The highest epoch taken; 0 when none is."""
    names = slots.names()
    if not names:
        return 0
    newest = names[-1]
    if newest != slot_name(int(newest.rpartition("-")[2] or 0)):
        raise CorruptionError(f"slot {newest!r} is no epoch's; remove what does not belong there")
    return int(newest.rpartition("-")[2])


def take_epoch(slots: SlotStore, above: int) -> int:
    """Create the next epoch's slot, fencing all before it, and return its number.

    ``above`` is the highest epoch known from elsewhere. ``FencedError`` when another writer took
    the epoch first: it is the writer now.
    """
    writer_epoch = max(newest_epoch(slots), above) + 1
    content = EpochSlot(writer_epoch, os.uname().nodename, os.getpid())
    if not slots.create(slot_name(writer_epoch), msgspec.msgpack.encode(content)):
        raise FencedError(
            f"another writer took epoch {writer_epoch} at the same moment; it owns the log now"
        )
    return writer_epoch


def check_not_fenced(slots: SlotStore, writer_epoch: int) -> None:
    """``FencedError`` once a newer epoch has been taken. To call after every durable write."""
    if slots.exists(slot_name(writer_epoch + 1)):
        raise FencedError(
            f"writer epoch {writer_epoch} was fenced by epoch {writer_epoch + 1}; what was not "
            "acknowledged yet will be resent by the clients to the new writer"
        )


class DirectoryLock:
    """A lock on a file that goes away with its process.

    ``BadInputError`` when it is held by ``holder``, unless ``wait``.
    """

    def __init__(self, path: Path, holder: str, *, wait: bool = False) -> None:
        descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except OSError as error:
            os.close(descriptor)
            raise BadInputError(
                f"{path} is locked: {holder} is running on it; stop it first"
            ) from error
        self._descriptor = descriptor

    def release(self) -> None:
        os.close(self._descriptor)
