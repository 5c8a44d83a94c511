"""The key-value part of a GGUF file, with errors that name what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gguf import GGUFReader

from pagetrail.catalog.errors import CorruptionError


class GgufFields:
    """Values by key. Reads nothing but what the reader has mapped."""

    def __init__(self, reader: GGUFReader, path: Path) -> None:
        self._fields, self._path = reader.fields, path

    def get(self, key: str, default: Any = None) -> Any:
        field = self._fields.get(key)
        return default if field is None else field.contents()

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise CorruptionError(f"{self._path} has no field {key!r}; it is incomplete")
        return value

    def text(self, key: str) -> str:
        return str(self.need(key))
