"""A client's spool: transactions on disk from the moment they are appended until acknowledged.

Owns the directory ``<run>/spool/<client>/``: its lock, the client's epochs and its files. Appending
is one ``write()``; a killed process loses nothing. Files are removed once wholly acknowledged, and
what was acknowledged is durably noted before. Not thread-safe: ``FactClient`` holds one lock around
it. It never talks to the writer.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from pagetrail.catalog.errors import CorruptionError
from pagetrail.controlplane.log.errors import ClientStoppedError, SpoolFullError
from pagetrail.controlplane.log.files import Files, write_all, write_durable
from pagetrail.controlplane.log.frames import CHAIN_START, encode_array_header
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.slots import DirectoryLock
from pagetrail.controlplane.log.spool_records import (
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    decode_file_header,
    decode_record_header,
    encode_file_header,
    scan_spool,
    spool_name,
    whole_records,
)

_NAME = re.compile(r"spool-(\d{10})-(\d{20})\.ptspool")


class SpoolState(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a client remembers for good: its newest epoch and the last acknowledged position."""

    newest_epoch: int
    acknowledged_epoch: int
    acknowledged_client_seq: int
    head: int
    chain: bytes
    log_id: bytes
    """The log this spool is for; empty until a writer has said it."""


@dataclass(slots=True)
class SpoolFile:
    """A file of one epoch. ``next_client_seq`` and ``size_bytes`` are its end so far."""

    path: Path
    client_epoch: int
    first_client_seq: int
    next_client_seq: int
    size_bytes: int
    synced_bytes: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Transactions read back for shipping: ``payload`` is their encoded array."""

    first_client_seq: int
    count: int
    payload: bytes

    @property
    def next_client_seq(self) -> int:
        return self.first_client_seq + self.count


class Spool:
    """See the module. Open with ``Spool.open``; every failed write or sync stops it for good."""

    def __init__(
        self,
        directory: Path,
        lock: DirectoryLock,
        state: SpoolState,
        spool_files: list[SpoolFile],
        limits: LogLimits,
        files: Files,
    ) -> None:
        self._directory = directory
        self._lock = lock
        self._files = files
        self._limits = limits
        self._spool_files = spool_files
        self._descriptor: int | None = None
        self.state = state
        self.client_epoch = state.newest_epoch
        self.next_client_seq = 0
        self.used_bytes = sum(file.size_bytes - FILE_HEADER_BYTES for file in spool_files)
        """Bytes of records in the files; the files' headers are not counted."""

    @classmethod
    def open(cls, directory: Path, limits: LogLimits, files: Files) -> Spool:
        """Take the next client epoch, durably. A torn end of an earlier epoch is cut.

        ``BadInputError`` when the client runs already, ``CorruptionError`` for a damaged spool.
        """
        directory.mkdir(parents=True, exist_ok=True)
        files.sync_directory(directory.parent)
        lock = DirectoryLock(directory / "lock", "this client")
        try:
            state = _read_state(directory / "state")
            spool_files = _recover_files(directory, files)
            newest = max([state.newest_epoch, *(file.client_epoch for file in spool_files)])
            state = msgspec.structs.replace(state, newest_epoch=newest + 1)
            write_durable(files, directory / "state", _encode_state(state))
        except BaseException:
            lock.release()
            raise
        return cls(directory, lock, state, spool_files, limits, files)

    def epochs(self) -> list[int]:
        """Epochs to ship, oldest first; this client's own is the last."""
        return sorted({file.client_epoch for file in self._spool_files} | {self.client_epoch})

    def end_of(self, client_epoch: int) -> int:
        """The ``client_seq`` after the last spooled transaction of an epoch."""
        if client_epoch == self.client_epoch:
            return self.next_client_seq
        ends = [f.next_client_seq for f in self._spool_files if f.client_epoch == client_epoch]
        return ends[-1] if ends else 0

    def start_of(self, client_epoch: int) -> int:
        """The first ``client_seq`` of an epoch that the spool still holds."""
        for file in self._spool_files:
            if file.client_epoch == client_epoch:
                return file.first_client_seq
        return self.end_of(client_epoch)

    def append(self, records: Sequence[bytes], count: int, size_bytes: int, room: int) -> None:
        """Write records that hold the next ``count`` transactions, in one ``write()``.

        ``room`` bytes of the bound are other people's reservations. ``SpoolFullError``: nothing
        was changed.
        """
        if self.used_bytes + size_bytes + room > self._limits.spool_bytes:
            raise SpoolFullError(
                f"{size_bytes} bytes do not fit the spool: {self.used_bytes} of "
                f"{self._limits.spool_bytes} are used and {room} reserved; wait for the writer, "
                "or raise spool_bytes"
            )
        file = self._active_file()
        before = file.size_bytes
        data = records[0] if len(records) == 1 else b"".join(records)
        try:
            written = self._files.write(self._descriptor_of_active(), data)
            if written < len(data):
                write_all(self._files, self._descriptor_of_active(), data[written:])
        except OSError as error:
            self._undo(file, before)
            raise SpoolFullError(
                f"the spool file {file.path} could not be written: {error}; nothing was appended"
            ) from error
        file.size_bytes = before + len(data)
        self.used_bytes += len(data)
        self.next_client_seq += count
        file.next_client_seq = self.next_client_seq
        if file.size_bytes >= self._limits.spool_file_bytes:
            self._close_active()

    def unsynced(self) -> bool:
        """Whether some spooled bytes are not known durable."""
        return any(file.synced_bytes < file.size_bytes for file in self._spool_files)

    def sync(self) -> None:
        """Make spooled bytes durable, oldest first. For the thread that acknowledges."""
        for file in list(self._spool_files):
            size_bytes = file.size_bytes
            if file.synced_bytes == size_bytes:
                continue
            descriptor = self._files.open_append(file.path)
            try:
                self._files.fdatasync(descriptor)
            finally:
                self._files.close(descriptor)
            if file.synced_bytes == 0:
                self._files.sync_directory(self._directory)
            file.synced_bytes = size_bytes

    def acknowledge(
        self, client_epoch: int, next_client_seq: int, head: int, chain: bytes
    ) -> list[SpoolFile]:
        """Note that everything before ``next_client_seq`` is in the log.

        Returns the files that are no longer needed. To free them: ``save_state``, so that the
        acknowledged position is durable, then ``forget``, then ``remove``.
        """
        self.state = msgspec.structs.replace(
            self.state,
            acknowledged_epoch=client_epoch,
            acknowledged_client_seq=next_client_seq - 1,
            head=head,
            chain=chain,
        )
        return [file for file in self._spool_files if self._wholly_acknowledged(file)]

    def forget(self, freed: Sequence[SpoolFile]) -> None:
        """Count files no more."""
        for file in freed:
            self._spool_files.remove(file)
            self.used_bytes -= file.size_bytes - FILE_HEADER_BYTES

    def remove(self, freed: Sequence[SpoolFile]) -> None:
        """Remove files that were forgotten."""
        for file in freed:
            self._files.unlink(file.path)

    def belongs_to(self, log_id: bytes) -> None:
        """Note, durably, the log that this spool is for."""
        self.state = msgspec.structs.replace(self.state, log_id=log_id)
        self.save_state()

    def save_state(self) -> None:
        """Make the acknowledged position durable."""
        write_durable(self._files, self._directory / "state", _encode_state(self.state))

    def reader(self, client_epoch: int, client_seq: int) -> SpoolReader:
        """Reads an epoch's transactions from the record that holds ``client_seq`` on."""
        return SpoolReader(self, client_epoch, client_seq)

    def file_holding(self, client_epoch: int, client_seq: int) -> SpoolFile | None:
        for file in self._spool_files:
            if file.client_epoch == client_epoch and (
                file.first_client_seq <= client_seq < file.next_client_seq
            ):
                return file
        return None

    def close(self) -> None:
        """Close the files, noting what was acknowledged; drop the own file if nothing is owed."""
        try:
            if self._descriptor is not None:
                self._close_active()
            freed = [file for file in self._spool_files if self._wholly_acknowledged(file)]
            self.save_state()
            self.forget(freed)
            self.remove(freed)
        finally:
            self._lock.release()

    def _wholly_acknowledged(self, file: SpoolFile) -> bool:
        state = self.state
        if self._descriptor is not None and file is self._spool_files[-1]:
            return False
        return (file.client_epoch, file.next_client_seq - 1) <= (
            state.acknowledged_epoch,
            state.acknowledged_client_seq,
        )

    def _active_file(self) -> SpoolFile:
        if self._descriptor is not None:
            return self._spool_files[-1]
        path = self._directory / spool_name(self.client_epoch, self.next_client_seq)
        header = encode_file_header(self.client_epoch, self.next_client_seq)
        descriptor = self._files.open_append(path)
        try:
            write_all(self._files, descriptor, header)
        except OSError as error:
            self._files.close(descriptor)
            self._files.unlink(path)
            raise SpoolFullError(
                f"the spool file {path} could not be begun: {error}; nothing was appended"
            ) from error
        self._descriptor = descriptor
        file = SpoolFile(
            path, self.client_epoch, self.next_client_seq, self.next_client_seq, len(header), 0
        )
        self._spool_files.append(file)
        return file

    def _undo(self, file: SpoolFile, size_bytes: int) -> None:
        try:
            self._files.truncate(self._descriptor_of_active(), size_bytes)
        except OSError as error:
            raise ClientStoppedError(
                f"a failed append to {file.path} could not be undone: {error}; start the client "
                "again, which cuts the torn record"
            ) from error

    def _descriptor_of_active(self) -> int:
        if self._descriptor is None:
            raise ClientStoppedError("the spool was closed")
        return self._descriptor

    def _close_active(self) -> None:
        self._files.close(self._descriptor_of_active())
        self._descriptor = None


class SpoolReader:
    """Reads one epoch's spooled transactions in order, in batches. Holds one file open.

    Belongs to the thread that acknowledges, the only one that removes files. Another thread may
    append meanwhile: a file's size grows only after its bytes are written.
    """

    def __init__(self, spool: Spool, client_epoch: int, client_seq: int) -> None:
        self._spool = spool
        self._epoch = client_epoch
        self._file: SpoolFile | None = None
        self._descriptor = -1
        self._offset_bytes = 0
        self.next_client_seq = client_seq

    def read(self, max_bytes: int, max_transactions: int) -> Batch | None:
        """The next transactions: whole records, as many as fit, at least one. None at the end."""
        file = self._place()
        while file is not None:
            batch = self._read_some(file, max_bytes, max_transactions)
            if batch is not None:
                return batch
            file = self._place()
        return None

    def _read_some(self, file: SpoolFile, max_bytes: int, max_transactions: int) -> Batch | None:
        """Records of one read; None when they all lie before the wanted transaction."""
        data = self._pread(file, max(max_bytes, RECORD_HEADER_BYTES))
        header = decode_record_header(data, 0)
        if header is not None and header.record_bytes > len(data):
            data = self._pread(file, header.record_bytes)
        payloads, first, total, at = whole_records(data, self.next_client_seq, max_transactions)
        if at == 0:
            raise CorruptionError(
                f"{file.path.name} offset {self._offset_bytes}: a record that was written whole "
                "does not read back"
            )
        self._offset_bytes += at
        if not payloads:
            return None
        self.next_client_seq = first + total
        return Batch(first, total, b"".join((encode_array_header(total), *payloads)))

    def waiting_bytes(self) -> int:
        """Bytes behind the reader in the file it stands on; an estimate of what can be sent."""
        return 0 if self._file is None else self._file.size_bytes - self._offset_bytes

    def _pread(self, file: SpoolFile, size_bytes: int) -> bytes:
        size_bytes = min(size_bytes, file.size_bytes - self._offset_bytes)
        return os.pread(self._descriptor, size_bytes, self._offset_bytes)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
            self._file = None

    def _place(self) -> SpoolFile | None:
        """The file that holds the next transaction, opened; None when there is none yet."""
        if self._file is not None and self._offset_bytes < self._file.size_bytes:
            return self._file
        file = self._spool.file_holding(self._epoch, self.next_client_seq)
        if file is not None and file is not self._file:
            self.close()
            self._descriptor = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
            self._file = file
            self._offset_bytes = FILE_HEADER_BYTES
        return file


def _encode_state(state: SpoolState) -> bytes:
    return msgspec.msgpack.encode(state)


def _read_state(path: Path) -> SpoolState:
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=SpoolState)
    except FileNotFoundError:
        return SpoolState(0, 0, -1, 0, CHAIN_START, b"")
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(f"{path}: the client's state is damaged: {error}") from error


def _recover_files(directory: Path, files: Files) -> list[SpoolFile]:
    """Check all spool files, oldest first; cut the torn end of each epoch's last one."""
    names = [name for name in sorted(os.listdir(directory)) if _NAME.fullmatch(name)]
    found: list[SpoolFile] = []
    for place, name in enumerate(names):
        epoch = int(name.split("-")[1])
        last = place + 1 == len(names) or int(names[place + 1].split("-")[1]) != epoch
        path = directory / name
        data = path.read_bytes()
        if last and len(data) < FILE_HEADER_BYTES:
            files.unlink(path)
            continue
        client_epoch, first = decode_file_header(data, name)
        before = found[-1] if found and found[-1].client_epoch == epoch else None
        if spool_name(client_epoch, first) != name or (before and before.next_client_seq != first):
            raise CorruptionError(
                f"{name}: holds epoch {client_epoch} from transaction {first}, which is not where "
                "the file before it ends; a spool file is missing"
            )
        tail = scan_spool(data, name, first, last=last)
        if tail.size_bytes < len(data):
            descriptor = files.open_append(path)
            try:
                files.truncate(descriptor, tail.size_bytes)
                files.fdatasync(descriptor)
            finally:
                files.close(descriptor)
        if tail.next_client_seq == first:
            files.unlink(path)
            continue
        size_bytes = tail.size_bytes
        found.append(SpoolFile(path, epoch, first, tail.next_client_seq, size_bytes, size_bytes))
    return found
