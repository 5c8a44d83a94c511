"""Where a log's transactions lie while they are replayed: in a file without a name, not in memory.

Owns that file; it is gone when the object is. What is written can be read at any time, in any
order.
"""

from __future__ import annotations

import os
import tempfile
import weakref

from pagetrail.catalog.errors import CorruptionError


class Spill:
    """An append-only file in the directory for temporary files (``TMPDIR``)."""

    def __init__(self) -> None:
        self._file, path = tempfile.mkstemp(prefix="pagetrail-replay-")
        os.unlink(path)
        weakref.finalize(self, os.close, self._file)
        self._end = 0

    def write(self, data: memoryview) -> int:
        """Append bytes; returns where they begin."""
        begin = self._end
        while data:
            written = os.write(self._file, data)
            self._end += written
            data = data[written:]
        return begin

    def read(self, begin: int, size_bytes: int) -> bytes:
        """Bytes that were written. CorruptionError when the file was cut from outside."""
        data = os.pread(self._file, size_bytes, begin)
        if len(data) != size_bytes:
            raise CorruptionError(
                f"the temporary file of this replay gave {len(data)} bytes at {begin}, "
                f"{size_bytes} were written; run it again"
            )
        return data
