"""Where a log's transactions lie while they are replayed: in a file without a name, not in memory.

Owns that file; it is gone when the object is. What is written can be read at any time, in any
order.
"""

from __future__ import annotations

import os
import tempfile

from pagetrail.catalog.errors import CorruptionError


class Spill:
    """An append-only file in the directory for temporary files (``TMPDIR``)."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile(prefix="pagetrail-replay-")  # noqa: SIM115 - owned
        self._end = 0
        self._flushed = 0

    def write(self, data: bytes | memoryview) -> int:
        """Append bytes; returns where they begin."""
        begin = self._end
        self._file.write(data)
        self._end += len(data)
        return begin

    def read(self, begin: int, size_bytes: int) -> bytes:
        """Bytes that were written. CorruptionError when the file has been cut from outside."""
        if begin + size_bytes > self._flushed:
            self._file.flush()
            self._flushed = self._end
        data = os.pread(self._file.fileno(), size_bytes, begin)
        if len(data) != size_bytes:
            raise CorruptionError(
                f"the temporary file of this replay gave {len(data)} bytes at {begin}, "
                f"{size_bytes} were written; run it again"
            )
        return data
