"""Plain helpers for the log's tests: facts, logs built on disk, an independent frame reader."""

from __future__ import annotations

import errno
import hashlib
import struct
from collections.abc import Sequence
from pathlib import Path

import msgpack
import msgspec

from pagetrail.catalog.envelope import CompareAndSet, Transaction, WireFact
from pagetrail.controlplane.log.clock import LogicalClock
from pagetrail.controlplane.log.committer import Committer, open_committer
from pagetrail.controlplane.log.files import OsFiles
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.sequencer import Taken
from pagetrail.controlplane.log.transactions import encode_transactions

KIND = 4_000


class UnsyncedFiles(OsFiles):
    """Waits for no disk: for tests that only need the bytes in place."""

    def fdatasync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class FaultyFiles(OsFiles):
    """Fails the k-th write, sync or rename; a failing write first writes half of its bytes."""

    def __init__(self, fail_at: int, number: int = errno.EIO) -> None:
        self._left = fail_at
        self._number = number

    def _count(self) -> bool:
        self._left -= 1
        return self._left == 0

    def write(self, descriptor: int, data: bytes) -> int:
        if self._count():
            super().write(descriptor, data[: len(data) // 2])
            raise OSError(self._number, "injected")
        return super().write(descriptor, data)

    def fdatasync(self, descriptor: int) -> None:
        if self._count():
            raise OSError(self._number, "injected")
        super().fdatasync(descriptor)

    def replace(self, source: Path, target: Path) -> None:
        if self._count():
            raise OSError(self._number, "injected")
        super().replace(source, target)


def fact(value: int, payload: bytes = b"") -> WireFact:
    """A fact of a kind that only tests use."""
    return WireFact(1, KIND, 1, msgspec.Raw(msgpack.packb([value, payload])))


def value_of(body: msgspec.Raw) -> int:
    """The value that ``fact`` put into a body."""
    value: int = msgpack.unpackb(bytes(body))[0]
    return value


def transaction(
    client_seq: int,
    values: Sequence[int] = (0,),
    compare_and_set: Sequence[CompareAndSet] = (),
    payload: bytes = b"",
) -> Transaction:
    facts = tuple(fact(value, payload) for value in values)
    return Transaction(client_seq, (), tuple(compare_and_set), facts)


def commit_transactions(
    committer: Committer,
    transactions: Sequence[Transaction],
    *,
    client: str = "worker-1",
    client_epoch: int = 1,
) -> Taken:
    """Admit one message and commit it as one frame."""
    taken = committer.admit(client, client_epoch, encode_transactions(transactions))
    assert isinstance(taken, Taken), taken
    committer.commit()
    return taken


def build_log(
    directory: Path, frames: int, *, limits: LogLimits | None = None, payload: bytes = b""
) -> None:
    """A log with ``frames`` frames of one to four facts after the one that begins the epoch."""
    committer, _ = open_committer(
        directory, clock=LogicalClock(), limits=limits, files=UnsyncedFiles()
    )
    for number in range(frames):
        values = range(number, number + 1 + number % 4)
        commit_transactions(committer, [transaction(number, values, payload=payload)])
    committer.close()


def segment_paths(directory: Path) -> list[Path]:
    return sorted((directory / "log").glob("segment-*.ptlog"))


def crc32c(data: bytes) -> int:
    """CRC-32C bit by bit, from its polynomial: slow, and independent of the library in use."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 & -(crc & 1))
    return crc ^ 0xFFFFFFFF


def frame_ends(segment: bytes) -> list[int]:
    """Ends of the frames of an undamaged segment, from the layout that docs/log.md gives."""
    ends = [68]
    while ends[-1] < len(segment):
        (body_bytes,) = struct.unpack_from("<I", segment, ends[-1] + 8)
        ends.append(ends[-1] + 84 + body_bytes)
    return ends


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()
