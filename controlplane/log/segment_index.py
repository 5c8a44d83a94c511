"""The index of a closed segment: what a start must know of it, and where its frames lie.

Written beside a segment once nothing is added to it any more, and kept with its sealed form. It is
derived from the segment alone: who appended what range, what became of the registers, where frames
start. A writer folds it instead of walking the segment; one that is missing, cut short or damaged
is not used, and the segment is walked. Whether the segment's bytes are still what they were is for
``verify`` to say.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from pagetrail.catalog.envelope import CompareAndSet
from pagetrail.catalog.errors import CorruptionError
from pagetrail.controlplane.log.files import Files, write_all
from pagetrail.controlplane.log.frames import (
    FLAG_REGISTERS,
    HEADER_BYTES,
    Frame,
    LogPosition,
    check_follows,
    decode_runs,
    outline_runs,
    position_after,
    run_range,
)

INDEX_VERSION = 1
SEALED_INDEX_NAME = "index"
_DIGEST_BYTES = 32


class ClientRange(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Consecutive transactions of one client epoch that a segment holds."""

    client: str
    client_epoch: int
    first_client_seq: int
    next_client_seq: int


class SegmentIndex(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """See the module. ``places`` are (first seq, offset) of some frames, in order.

    ``size_bytes`` is where the last frame ends in the segment's active form.
    ``registers`` are those the segment set or cleared (None), with what they held at its end.
    """

    version: int
    start_seq: int
    start_chain: bytes
    start_t_us: int
    end_seq: int
    end_chain: bytes
    end_t_us: int
    writer_epoch: int
    frames: int
    size_bytes: int
    clients: tuple[ClientRange, ...]
    registers: tuple[tuple[bytes, bytes | None], ...]
    places: tuple[tuple[int, int], ...]

    @property
    def start(self) -> LogPosition:
        return LogPosition(self.start_seq, self.start_chain, self.start_t_us)

    @property
    def end(self) -> LogPosition:
        return LogPosition(self.end_seq, self.end_chain, self.end_t_us)

    def offset_of(self, seq: int) -> int:
        """Offset of the last noted frame that starts at or before ``seq``; 0 when none does."""
        place = bisect.bisect_right(self.places, seq, key=lambda noted: noted[0]) - 1
        return self.places[place][1] if place >= 0 else 0

    def range_of(self, client: str, client_epoch: int) -> ClientRange | None:
        """What the segment holds of a client epoch."""
        for found in self.clients:
            if (found.client, found.client_epoch) == (client, client_epoch):
                return found
        return None


class IndexBuilder:
    """Gathers the index of one segment while its frames are written, or walked.

    Bounded by the segment: a place per ``stride_bytes``, a range per client epoch, and the
    registers that its frames name.
    """

    def __init__(self, start: LogPosition, stride_bytes: int) -> None:
        self.start = start
        self.position = start
        self.places: list[tuple[int, int]] = []
        self._stride_bytes = stride_bytes
        self._next_place_bytes = 0
        self._writer_epoch = 0
        self._frames = 0
        self._size_bytes = 0
        self._clients: dict[tuple[str, int], tuple[int, int]] = {}
        self._newest: dict[str, int] = {}
        self._registers: dict[bytes, bytes | None] = {}

    def add(self, frame: Frame, offset_bytes: int) -> None:
        """Note the next frame of the segment. ``CorruptionError`` when its body cannot be read."""
        header = frame.header
        body = memoryview(frame.raw)[HEADER_BYTES:]
        ranges = [
            ClientRange(run.client, run.client_epoch, first, first + count)
            for run in outline_runs(header, body)
            for first, count in (run_range(run),)
        ]
        changes: list[CompareAndSet] = []
        if header.flags & FLAG_REGISTERS:
            for decoded in decode_runs(header, body):
                for transaction in decoded.transactions:
                    changes += transaction.compare_and_set
        self.note(frame, offset_bytes, ranges, changes)

    def note(
        self,
        frame: Frame,
        offset_bytes: int,
        ranges: Iterable[ClientRange],
        changes: Iterable[CompareAndSet],
    ) -> None:
        """As ``add``, by who knows the frame's runs and register changes already."""
        header = frame.header
        if offset_bytes >= self._next_place_bytes:
            self.places.append((frame.first_seq, offset_bytes))
            self._next_place_bytes = offset_bytes + self._stride_bytes
        check_follows(header, self.position)
        for run in ranges:
            first = run.first_client_seq
            key = (run.client, run.client_epoch)
            begun, expected = self._clients.get(key, (first, first))
            if first != expected or run.client_epoch < self._newest.get(run.client, -1):
                raise CorruptionError(
                    f"frame at seq {header.first_seq}: client {run.client} epoch "
                    f"{run.client_epoch} continues with {first}, expected {expected}"
                )
            self._clients[key] = (begun, run.next_client_seq)
            self._newest[run.client] = run.client_epoch
        for change in changes:
            self._registers[change.register] = change.new
        self._writer_epoch = header.writer_epoch
        self._frames += 1
        self._size_bytes = offset_bytes + len(frame.raw)
        self.position = position_after(frame)

    def index(self) -> SegmentIndex:
        """What was gathered."""
        return SegmentIndex(
            INDEX_VERSION,
            self.start.next_seq,
            self.start.chain,
            self.start.last_t_us,
            self.position.next_seq,
            self.position.chain,
            self.position.last_t_us,
            self._writer_epoch,
            self._frames,
            self._size_bytes,
            tuple(ClientRange(*key, *range_) for key, range_ in self._clients.items()),
            tuple(self._registers.items()),
            tuple(self.places),
        )


class IndexCheck:
    """Compares the index in a file, if there is one, with the frames of its segment."""

    def __init__(self, path: Path, start: LogPosition) -> None:
        self._path = path
        self._builder = IndexBuilder(start, 1) if path.exists() else None

    def add(self, frame: Frame) -> None:
        """Note the next frame of the segment."""
        if self._builder is not None:
            self._builder.add(frame, 0)

    def check(self) -> None:
        """``CorruptionError`` when the index is damaged or says something else than the frames."""
        if self._builder is None:
            return
        found = load_index(self._path)
        if found is None and not self._path.exists():
            return  # its segment has been sealed meanwhile; the sealed form has its own
        told = self._builder.index()
        if found is None or _derived(found) != _derived(told):
            raise CorruptionError(
                f"{self._path.parent.name}/{self._path.name}: the index is damaged or does not "
                "tell what its segment holds; remove it, the segment itself is whole"
            )


def _derived(index: SegmentIndex) -> SegmentIndex:
    return msgspec.structs.replace(index, places=(), size_bytes=0)


def index_of(start: LogPosition, frames: Iterable[Frame]) -> SegmentIndex:
    """The index of frames without a file of their own, and so without places."""
    builder = IndexBuilder(start, 1)
    for frame in frames:
        builder.add(frame, 0)
    return _derived(builder.index())


def index_name(first_seq: int, writer_epoch: int) -> str:
    return f"index-{first_seq:020d}-{writer_epoch:010d}.ptix"


def encode_index(index: SegmentIndex) -> bytes:
    encoded = msgspec.msgpack.encode(index)
    return hashlib.sha256(encoded).digest() + encoded


def write_index(files: Files, path: Path, index: SegmentIndex) -> None:
    """Put an index in its place. It is not synced: one that a crash loses is not missed."""
    temporary = path.with_name(f"{path.name}.tmp")
    with suppress(FileNotFoundError):
        files.unlink(temporary)
    descriptor = files.open_append(temporary)
    try:
        write_all(files, descriptor, encode_index(index))
    finally:
        files.close(descriptor)
    files.replace(temporary, path)


def load_index(path: Path) -> SegmentIndex | None:
    """The index in a file; None when there is none to use."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    digest, encoded = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(encoded).digest() != digest:
        return None
    try:
        index = msgspec.msgpack.decode(encoded, type=SegmentIndex)
    except msgspec.MsgspecError:
        return None
    return index if index.version == INDEX_VERSION else None
