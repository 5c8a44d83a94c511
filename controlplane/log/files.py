"""The few file operations that the log and the spool rest on, as a seam.

What is durable and what is not is decided by these calls alone, so everything that must survive a
crash goes through a ``Files``. ``OsFiles`` is the real one. It never retries and never hides an
error: the caller decides what a failed write or a failed fdatasync means.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """File operations with their POSIX meaning; every failure is an ``OSError``."""

    def open_append(self, path: Path) -> int:
        """Open (create if absent) for appending; return the descriptor."""

    def write(self, descriptor: int, data: bytes) -> int:
        """Append some prefix of ``data``; return its length in bytes."""

    def fdatasync(self, descriptor: int) -> None:
        """Make the content and the size of the file durable."""

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Cut the file to ``size_bytes``."""

    def close(self, descriptor: int) -> None:
        """Close the descriptor."""

    def replace(self, source: Path, target: Path) -> None:
        """Rename atomically, replacing ``target``."""

    def link(self, source: Path, target: Path) -> None:
        """Give the file a second name; ``FileExistsError`` when ``target`` is there."""

    def unlink(self, path: Path) -> None:
        """Remove the name."""

    def sync_directory(self, path: Path) -> None:
        """Make names created, renamed or removed in ``path`` durable."""


class OsFiles:
    """``Files`` over the operating system."""

    def open_append(self, path: Path) -> int:
        return os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def write(self, descriptor: int, data: bytes) -> int:
        return os.write(descriptor, data)

    def fdatasync(self, descriptor: int) -> None:
        os.fdatasync(descriptor)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        os.ftruncate(descriptor, size_bytes)

    def close(self, descriptor: int) -> None:
        os.close(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        source.replace(target)

    def link(self, source: Path, target: Path) -> None:
        os.link(source, target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def sync_directory(self, path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_all(files: Files, descriptor: int, data: bytes) -> None:
    """Append all of ``data``; on an error some prefix of it may be in the file."""
    written_bytes = files.write(descriptor, data)
    while written_bytes < len(data):
        written_bytes += files.write(descriptor, data[written_bytes:])


def write_durable(files: Files, path: Path, data: bytes) -> None:
    """Replace ``path`` with a file holding ``data``: all of it or, after a crash, the old one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    descriptor = files.open_append(temporary)
    try:
        write_all(files, descriptor, data)
        files.fdatasync(descriptor)
    finally:
        files.close(descriptor)
    files.replace(temporary, path)
    files.sync_directory(path.parent)


def create_durable(files: Files, path: Path, data: bytes) -> bool:
    """Create ``path`` holding ``data`` unless it exists; return whether this call created it.

    Whoever sees the name sees the whole content, and of several callers exactly one creates it.
    """
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    descriptor = files.open_append(temporary)
    try:
        write_all(files, descriptor, data)
        files.fdatasync(descriptor)
    finally:
        files.close(descriptor)
    try:
        files.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        files.unlink(temporary)
    files.sync_directory(path.parent)
    return True
