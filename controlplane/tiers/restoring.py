"""One restore: chunks read through a bounded window, written in order, cut at the first bad one.

Theory of operation. Reads go out root first, at most ``window`` at once, and may come back in any
order. A chunk is written to the device only when it was verified and every chunk before it has
been; the first chunk that is missing or wrong ends the restore there. What was asked for beyond it
is let come back and dropped. The restore is over when nothing is outstanding; its rows are the
verified prefix, never more.

    event                 effect
    begin                 Read up to the window
    arrived, verified     Write what is now in order; Read the next
    arrived, bad          nothing more is read; DropLocal when the copy is this worker's own
    nothing outstanding   Restored(rows)

Pure: it looks at no bytes and does no I/O; ``payloads`` is where its driver keeps what came early.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pagetrail.catalog.errors import BadInputError, InvariantError
from pagetrail.catalog.index import StoredPart


@dataclass(frozen=True, slots=True)
class ChunkToRead:
    """One chunk of the prefix and where the chosen holder keeps its parts."""

    prefix: bytes
    token_start: int
    token_end: int
    parts: tuple[StoredPart, ...]


@dataclass(frozen=True, slots=True)
class Read:
    """Fetch and verify a chunk."""

    place: int


@dataclass(frozen=True, slots=True)
class Write:
    """Put a verified chunk's rows ``[token_start, token_end)`` into the stream's pages."""

    place: int
    token_start: int
    token_end: int


@dataclass(frozen=True, slots=True)
class DropLocal:
    """The copy's bytes are wrong; delete it where this worker may."""

    place: int


@dataclass(frozen=True, slots=True)
class Restored:
    """The restore is over with so many rows verified and written."""

    rows: int


RestoreEffect = Read | Write | DropLocal | Restored


@dataclass(slots=True)
class Restoring:
    """See the module. ``first_token`` is where the resident prefix ends, ``tokens`` the goal."""

    stream: int
    tier: int
    first_token: int
    tokens: int
    chunks: tuple[ChunkToRead, ...]
    window: int
    payloads: dict[int, tuple[bytes, ...]] = field(default_factory=dict)
    _asked: int = 0
    _outstanding: int = 0
    _written: int = 0
    _ahead: set[int] = field(default_factory=set)
    _cut: int = 0
    _over: bool = False

    def begin(self) -> list[RestoreEffect]:
        """Start reading."""
        if self.window < 1:
            raise BadInputError(f"the restore window must be at least 1, not {self.window}")
        self._cut = len(self.chunks)
        return self._go_on()

    def arrived(self, place: int, verified: bool, corrupt: bool = False) -> list[RestoreEffect]:
        """A read came back. ``corrupt``: the copy is there and its bytes are wrong."""
        if self._over or not 0 <= place < self._asked:
            raise InvariantError(f"stream {self.stream}: chunk {place} was not being read")
        self._outstanding -= 1
        effects: list[RestoreEffect] = []
        if not verified:
            self._cut = min(self._cut, place)
            if corrupt:
                effects.append(DropLocal(place))
        else:
            self._ahead.add(place)
        while self._written in self._ahead and self._written < self._cut:
            chunk = self.chunks[self._written]
            start = max(chunk.token_start, self.first_token)
            effects.append(Write(self._written, start, min(chunk.token_end, self.tokens)))
            self._ahead.discard(self._written)
            self._written += 1
        return effects + self._go_on()

    def _go_on(self) -> list[RestoreEffect]:
        effects: list[RestoreEffect] = []
        while self._asked < self._cut and self._outstanding < self.window:
            effects.append(Read(self._asked))
            self._asked += 1
            self._outstanding += 1
        if not self._outstanding and not self._over:
            self._over = True
            effects.append(Restored(self._rows()))
        return effects

    def _rows(self) -> int:
        if not self._written:
            return 0
        reached = min(self.chunks[self._written - 1].token_end, self.tokens)
        return max(0, reached - self.first_token)
