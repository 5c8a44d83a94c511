"""Chunks in host memory: a bounded store of this process alone, oldest use first out.

Its contents are never catalog facts; decisions that use them record them.
"""

from __future__ import annotations

from collections import OrderedDict


class RamTier:
    """Payloads by prefix digest. Holds at most ``bytes_max``; 0 keeps nothing."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._chunks: OrderedDict[bytes, bytes] = OrderedDict()

    def put(self, prefix: bytes, payload: bytes) -> bool:
        """Keep a chunk, evicting the least recently used; False when it alone is too large."""
        if len(payload) > self.bytes_max:
            return False
        old = self._chunks.pop(prefix, None)
        self.used_bytes += len(payload) - (len(old) if old is not None else 0)
        self._chunks[prefix] = payload
        while self.used_bytes > self.bytes_max:
            _, gone = self._chunks.popitem(last=False)
            self.used_bytes -= len(gone)
        return True

    def get(self, prefix: bytes) -> bytes | None:
        """A chunk's payload; counts as a use."""
        payload = self._chunks.get(prefix)
        if payload is not None:
            self._chunks.move_to_end(prefix)
        return payload

    def leading(self, prompt: tuple[bytes, ...], first: int) -> int:
        """How many chunks from place ``first`` on are here without a gap."""
        place = first
        while place < len(prompt) and prompt[place] in self._chunks:
            place += 1
        return place - first
