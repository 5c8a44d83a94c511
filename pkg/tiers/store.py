"""A store of immutable objects under keys, and its form on a directory.

Owns durability of single objects: a ``put`` that returns is a receipt. What is stored and who may
read it is decided elsewhere; keys are given, and a key is written once. The directory serves as
the local SSD tier and, shared by all processes of a machine, as the embedded object store.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.catalog.identity import content_id

KEY_CHARS_MAX = 200
_KEY = re.compile(r"[a-z0-9][a-z0-9.-]*(/[a-z0-9][a-z0-9.-]*)*")


class StoreError(PagetrailError):
    """The store did not do what was asked; nothing of it is visible."""


class MissingObjectError(StoreError):
    """There is no object under the key."""


class CorruptObjectError(StoreError):
    """The object's bytes are not those that were stored."""


class ObjectStore(Protocol):
    """Immutable objects by key."""

    def put(self, key: str, payload: bytes | memoryview) -> None:
        """Store an object durably. Storing the same bytes again is no fault; other bytes are."""

    def open(self, key: str, size_bytes: int, content: bytes) -> AbstractContextManager[memoryview]:
        """A verified object's bytes, readable inside the ``with`` block.

        Raises MissingObjectError, CorruptObjectError, or StoreError when the store fails.
        """

    def delete(self, key: str) -> bool:
        """Remove an object; whether it was there."""

    def exists(self, key: str) -> bool:
        """Whether the object is there now."""

    def used_bytes(self) -> int:
        """Bytes of all objects."""


def check_key(key: str) -> str:
    """The key, or BadInputError: lower case letters, digits, dots and dashes between slashes."""
    if len(key) > KEY_CHARS_MAX or not _KEY.fullmatch(key):
        raise BadInputError(
            f"{key!r} is no object key; expected up to {KEY_CHARS_MAX} characters of a-z 0-9 . - "
            "between slashes"
        )
    return key


class DirectoryStore:
    """Objects as files below a directory; written beside, synced, then linked into place."""

    def __init__(self, root: Path, owner: str, reserve_bytes: int = 0) -> None:
        """``owner`` names the one process that writes as this owner; others may share the root.

        ``reserve_bytes`` of the disk stay free for others: the log and the spools must be able to
        write when chunks no longer can.

        Raises BadInputError when the directory cannot be made or written.
        """
        self._root = root
        self._incoming = root / ".incoming" / check_key(owner)
        try:
            self._incoming.mkdir(parents=True, exist_ok=True)
            for left in self._incoming.iterdir():
                left.unlink()  # what a killed process had not finished was never visible
            probe = self._incoming / "probe"
            probe.write_bytes(b"")
            probe.unlink()
        except OSError as error:
            raise BadInputError(
                f"cannot write below {root}: {error.strerror}; choose a writable directory"
            ) from error
        self._used_bytes = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        self._number = 0
        self._reserve_bytes = reserve_bytes

    def put(self, key: str, payload: bytes | memoryview) -> None:
        """Store an object durably."""
        target = self._root / check_key(key)
        self._number += 1
        incoming = self._incoming / str(self._number)
        self._check_room(key, len(payload))
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with incoming.open("wb") as handle:
                handle.write(payload)
                handle.flush()
                os.fsync(handle.fileno())
            try:
                os.link(incoming, target)
            except FileExistsError:
                if target.read_bytes() != bytes(payload):
                    raise StoreError(
                        f"{key} holds other bytes already; keys carry the attempt and are "
                        "written once"
                    ) from None
                return
            finally:
                incoming.unlink(missing_ok=True)
            _sync_directory(target.parent)
        except OSError as error:
            incoming.unlink(missing_ok=True)
            full = " (the disk is full)" if error.errno == errno.ENOSPC else ""
            raise StoreError(f"cannot store {key}: {error.strerror}{full}") from error
        self._used_bytes += len(payload)

    @contextmanager
    def open(self, key: str, size_bytes: int, content: bytes) -> Iterator[memoryview]:
        """A verified object's bytes, memory-mapped while the block runs."""
        try:
            handle = (self._root / check_key(key)).open("rb")
        except FileNotFoundError as error:
            raise MissingObjectError(f"there is no object {key}") from error
        except OSError as error:
            raise StoreError(f"cannot read {key}: {error.strerror}") from error
        with handle:
            actual = os.fstat(handle.fileno()).st_size
            if actual != size_bytes or not actual:
                raise CorruptObjectError(f"{key} has {actual} bytes, expected {size_bytes}")
            try:
                mapped = mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                raise StoreError(f"cannot read {key}: {error.strerror}") from error
        view = memoryview(mapped)
        try:
            if content_id(view) != content:
                raise CorruptObjectError(f"{key} does not have the content that was published")
            yield view
        finally:
            view.release()
            mapped.close()

    def delete(self, key: str) -> bool:
        """Remove an object; whether it was there."""
        path = self._root / check_key(key)
        try:
            size = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return False
        self._used_bytes -= size
        return True

    def exists(self, key: str) -> bool:
        """Whether the object is there now."""
        return (self._root / check_key(key)).is_file()

    def used_bytes(self) -> int:
        """Bytes of all objects that this process knows of."""
        return self._used_bytes

    def _check_room(self, key: str, size_bytes: int) -> None:
        free_bytes = shutil.disk_usage(self._root).free
        if free_bytes - size_bytes < self._reserve_bytes:
            raise StoreError(
                f"cannot store {key} of {size_bytes} bytes: {free_bytes} bytes are free and "
                f"{self._reserve_bytes} of them are kept for the log (worker.disk_reserve_bytes)"
            )


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
