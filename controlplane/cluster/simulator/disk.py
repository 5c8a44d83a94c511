"""The writer's disk in the simulator: the log's file seam with a page cache that can be lost.

Owns what a writer has written, what of it is durable, and the names under which it lies. A killed
process loses nothing that it wrote; a machine that loses power keeps of every file what was synced
and some part of what was written after, and of names not synced since either the old or the new.
Writes may be cut short, and every call may fail as a broken or a full disk does.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from .timeline import Draw


@dataclass(slots=True)
class _File:
    data: bytearray = field(default_factory=bytearray)
    durable_bytes: int = 0


class SimDisk:
    """``Files`` in memory; see the module."""

    def __init__(self, draw: Draw) -> None:
        self.broken = False
        self.full = False
        self.while_syncing: Callable[[], None] | None = None  # happens once, before the next sync
        self._draw = draw
        self._names: dict[str, _File] = {}
        self._durable_names: dict[str, _File] = {}
        self._open: dict[int, _File] = {}
        self._next_descriptor = 3

    # ---- Files

    def open_append(self, path: Path) -> int:
        """Open, creating the file if absent."""
        self._may_fail("open")
        self._next_descriptor += 1
        file = self._names.get(str(path))
        if file is None:
            file = self._names[str(path)] = _File()
        self._open[self._next_descriptor] = file
        return self._next_descriptor

    def write(self, descriptor: int, data: bytes) -> int:
        """Append some prefix of the data."""
        self._may_fail("write")
        if self.full:
            self._open[descriptor].data += data[: self._draw.below(len(data))]
            raise OSError(errno.ENOSPC, "no space left on the simulated disk")
        some = len(data) if len(data) < 4096 else self._draw.between(1, len(data))
        self._open[descriptor].data += data[:some]
        return some

    def fdatasync(self, descriptor: int) -> None:
        """Make the file's content durable."""
        happens, self.while_syncing = self.while_syncing, None
        if happens is not None:
            happens()
        self._may_fail("fdatasync")
        file = self._open[descriptor]
        file.durable_bytes = len(file.data)

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        """Cut the file."""
        self._may_fail("truncate")
        file = self._open[descriptor]
        del file.data[size_bytes:]
        file.durable_bytes = min(file.durable_bytes, size_bytes)

    def close(self, descriptor: int) -> None:
        """Close the descriptor."""
        del self._open[descriptor]

    def replace(self, source: Path, target: Path) -> None:
        """Rename."""
        self._may_fail("rename")
        self._names[str(target)] = self._names.pop(str(source))

    def link(self, source: Path, target: Path) -> None:
        """Give the file a second name."""
        self._may_fail("link")
        if str(target) in self._names:
            raise FileExistsError(errno.EEXIST, "the name is taken", str(target))
        self._names[str(target)] = self._names[str(source)]

    def unlink(self, path: Path) -> None:
        """Remove the name."""
        if self._names.pop(str(path), None) is None:
            raise FileNotFoundError(errno.ENOENT, "no such name", str(path))

    def sync_directory(self, path: Path) -> None:
        """Make the names below a directory durable."""
        self._may_fail("fsync of the directory")
        inside = f"{path}/"
        for name in [name for name in self._durable_names if name.startswith(inside)]:
            del self._durable_names[name]
        self._durable_names |= {
            name: file for name, file in self._names.items() if name.startswith(inside)
        }

    # ---- what recovery reads, and what a loss of power leaves

    def read(self, path: str) -> bytes:
        """The content that a process sees now."""
        return bytes(self._names[path].data)

    def names(self) -> list[str]:
        """The names that a process sees now, in byte order."""
        return sorted(self._names, key=str.encode)

    def lose_power(self) -> None:
        """Everything that was not durable is gone, or partly there."""
        self._open.clear()
        names = dict(self._durable_names)
        for name in self.names():
            if name not in names and self._draw.below(2):
                names[name] = self._names[name]  # the directory had been written, by luck
        self._names, self._durable_names = names, dict(names)
        for name in sorted(names, key=str.encode):
            file = names[name]
            torn_bytes = len(file.data) - file.durable_bytes
            if torn_bytes > 0:
                del file.data[file.durable_bytes + self._draw.below(torn_bytes + 1) :]
            file.durable_bytes = len(file.data)

    def _may_fail(self, what: str) -> None:
        if self.broken:
            raise OSError(errno.EIO, f"{what} failed on the simulated disk")


class SimSlots:
    """``SlotStore`` in memory, durable at once."""

    def __init__(self) -> None:
        self._slots: dict[str, bytes] = {}

    def create(self, name: str, data: bytes) -> bool:
        """Set a name unless it is set."""
        if name in self._slots:
            return False
        self._slots[name] = data
        return True

    def exists(self, name: str) -> bool:
        """Whether a name is set."""
        return name in self._slots

    def read(self, name: str) -> bytes | None:
        """The bytes of a name."""
        return self._slots.get(name)

    def names(self) -> list[str]:
        """All names, in byte order."""
        return sorted(self._slots, key=str.encode)
