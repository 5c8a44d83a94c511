"""Copying a sealed segment from its writer: file by file, resumable, checked as it arrives.

Pure of sockets: says which bytes are wanted next, takes them, and holds one part at a time. What
was copied earlier is kept: whole files are recognised by their digest, a file cut short goes on
where it ended.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from pagetrail.catalog.errors import CorruptionError
from pagetrail.controlplane.log.manifests import (
    MANIFEST_NAME,
    SealedFile,
    SealedManifest,
    read_manifest,
)

_PART = ".part"


class SealedDownload:
    """A sealed segment ``name`` on its way into the directory ``into``; see the module."""

    def __init__(self, into: Path, name: str) -> None:
        self.directory = into / name
        self.directory.mkdir(parents=True, exist_ok=True)
        self._manifest: SealedManifest | None = None
        self._left: list[SealedFile] = []
        if (self.directory / MANIFEST_NAME).exists():
            self._plan()

    @property
    def manifest(self) -> SealedManifest | None:
        """What the segment holds; None until the manifest has arrived."""
        return self._manifest

    def wanted(self) -> tuple[str, int] | None:
        """(file name, offset) of the bytes to ask for next; None when all is there."""
        if self._manifest is None:
            return MANIFEST_NAME, self._part_bytes(MANIFEST_NAME)
        if not self._left:
            return None
        return self._left[0].name, self._part_bytes(self._left[0].name)

    def take(self, offset_bytes: int, size_bytes: int, data: bytes) -> None:
        """Add the bytes that were asked for; ``size_bytes`` is the whole file's.

        ``CorruptionError`` when a whole file is not what the manifest names; it is dropped then.
        """
        wanted = self.wanted()
        if wanted is None or wanted[1] != offset_bytes or not (data or size_bytes == offset_bytes):
            raise CorruptionError(
                f"{self.directory.name}: {len(data)} bytes came for offset {offset_bytes}, asked "
                f"for was {wanted}"
            )
        name = wanted[0]
        part = self.directory / f"{name}{_PART}"
        with part.open("ab") as file:
            file.write(data)
        if offset_bytes + len(data) < size_bytes:
            return
        if self._manifest is not None:
            self._check(part, self._left.pop(0))
        part.replace(self.directory / name)
        if self._manifest is None:
            self._plan()

    def _plan(self) -> None:
        self._manifest = read_manifest(self.directory)
        self._left = [entry for entry in self._manifest.files if not self._have(entry)]

    def _have(self, entry: SealedFile) -> bool:
        path = self.directory / entry.name
        return path.exists() and _digest(path) == entry.sha256

    def _part_bytes(self, name: str) -> int:
        part = self.directory / f"{name}{_PART}"
        return part.stat().st_size if part.exists() else 0

    def _check(self, part: Path, entry: SealedFile) -> None:
        if _digest(part) != entry.sha256:
            part.unlink()
            raise CorruptionError(
                f"{self.directory.name}/{entry.name}: what arrived has not the SHA-256 that the "
                "manifest names; ask again, or verify the log it comes from"
            )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
