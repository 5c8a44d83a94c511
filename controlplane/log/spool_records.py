"""Records of a client's spool file, byte for byte (docs/log.md). Pure: bytes in, values out.

A file starts with a header (client epoch, first ``client_seq``); each record holds consecutive
transactions, encoded one after another, as one append call wrote them. Header and payload have
their own CRC-32C, so that a record cut short at the end is told from damage before the end.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import google_crc32c

from pagetrail.catalog.errors import CorruptionError
from pagetrail.controlplane.log.limits import MESSAGE_BYTES_MAX

SPOOL_VERSION = 1
_FILE = struct.Struct("<4sHHQQ")
_RECORD = struct.Struct("<4sIQII")
_CRC = struct.Struct("<I")
_FILE_MAGIC = b"PTSP"
_RECORD_MAGIC = b"PTSR"
FILE_HEADER_BYTES = _FILE.size + _CRC.size
RECORD_HEADER_BYTES = _RECORD.size + _CRC.size


@dataclass(frozen=True, slots=True)
class RecordHeader:
    payload_bytes: int
    first_client_seq: int
    count: int
    payload_crc: int

    @property
    def next_client_seq(self) -> int:
        return self.first_client_seq + self.count

    @property
    def record_bytes(self) -> int:
        return RECORD_HEADER_BYTES + self.payload_bytes


@dataclass(frozen=True, slots=True)
class SpoolTail:
    """What a scan found: where the whole records end, and the next ``client_seq`` there."""

    size_bytes: int
    next_client_seq: int


def spool_name(client_epoch: int, first_client_seq: int) -> str:
    return f"spool-{client_epoch:010d}-{first_client_seq:020d}.ptspool"


def encode_file_header(client_epoch: int, first_client_seq: int) -> bytes:
    fields = _FILE.pack(_FILE_MAGIC, SPOOL_VERSION, 0, client_epoch, first_client_seq)
    return fields + _CRC.pack(google_crc32c.value(fields))


def decode_file_header(data: bytes, name: str) -> tuple[int, int]:
    """(client_epoch, first client_seq). ``CorruptionError`` names the file."""
    fields = data[: _FILE.size]
    if len(data) < FILE_HEADER_BYTES or (
        google_crc32c.value(fields) != _CRC.unpack_from(data, _FILE.size)[0]
    ):
        raise CorruptionError(f"{name} offset 0: the spool file's header is damaged")
    magic, version, _, client_epoch, first_client_seq = _FILE.unpack(fields)
    if magic != _FILE_MAGIC or version != SPOOL_VERSION:
        raise CorruptionError(
            f"{name}: magic {magic!r} version {version}, this build reads {_FILE_MAGIC!r} "
            f"version {SPOOL_VERSION}; drain it with the build that wrote it"
        )
    return client_epoch, first_client_seq


def encode_record(first_client_seq: int, count: int, payload: bytes) -> bytes:
    fields = _RECORD.pack(
        _RECORD_MAGIC, len(payload), first_client_seq, count, google_crc32c.value(payload)
    )
    return b"".join((fields, _CRC.pack(google_crc32c.value(fields)), payload))


def decode_record_header(data: bytes, offset: int) -> RecordHeader | None:
    """The record header at ``offset``; None when no valid one lies there."""
    end = offset + _RECORD.size
    if len(data) < end + _CRC.size:
        return None
    if google_crc32c.value(data[offset:end]) != _CRC.unpack_from(data, end)[0]:
        return None
    magic, payload_bytes, first_client_seq, count, payload_crc = _RECORD.unpack_from(data, offset)
    if magic != _RECORD_MAGIC or payload_bytes > MESSAGE_BYTES_MAX:
        return None
    return RecordHeader(payload_bytes, first_client_seq, count, payload_crc)


def record_payload(data: bytes, offset: int, header: RecordHeader) -> bytes | None:
    """The payload of a record, None when it is cut short or fails its checksum."""
    start = offset + RECORD_HEADER_BYTES
    payload = data[start : start + header.payload_bytes]
    if len(payload) != header.payload_bytes or google_crc32c.value(payload) != header.payload_crc:
        return None
    return payload


def whole_records(
    data: bytes, after_client_seq: int, count_max: int
) -> tuple[list[bytes], int, int, int]:
    """Payloads of the whole records at the start of ``data`` that reach past a transaction.

    Returns (payloads, first client_seq, transactions, bytes read over): at most ``count_max``
    transactions, but at least one record; earlier records are read over. Stops at the first record
    that is cut short or damaged.
    """
    payloads: list[bytes] = []
    first = total = at = 0
    size_bytes = len(data)
    checksum = google_crc32c.value
    while at + RECORD_HEADER_BYTES <= size_bytes:
        fields_end = at + _RECORD.size
        _, payload_bytes, start, count, payload_crc = _RECORD.unpack_from(data, at)
        body = at + RECORD_HEADER_BYTES
        end = body + payload_bytes
        if checksum(data[at:fields_end]) != _CRC.unpack_from(data, fields_end)[0]:
            break
        payload = data[body:end]
        if end > size_bytes or checksum(payload) != payload_crc:
            break
        if payloads and total + count > count_max:
            break
        at = end
        if start + count > after_client_seq:
            first = first if payloads else start
            payloads.append(payload)
            total += count
    return payloads, first, total, at


def scan_spool(data: bytes, name: str, first_client_seq: int, *, last: bool) -> SpoolTail:
    """Check a spool file's records. ``last``: a torn end is possible, and left out.

    ``CorruptionError`` names the file and the offset of any other damage.
    """
    offset = FILE_HEADER_BYTES
    next_client_seq = first_client_seq
    while offset < len(data):
        header = decode_record_header(data, offset)
        payload = None if header is None else record_payload(data, offset, header)
        if header is None or payload is None:
            end = len(data) if header is None else offset + header.record_bytes
            more = header is not None and end < len(data)
            if last and not more and not _later_record(data, offset + 1, next_client_seq):
                break
            raise CorruptionError(
                f"{name} offset {offset}: the record of transaction {next_client_seq} is damaged "
                "and is not the last; restore the file, or move it away and accept the loss of "
                "what it holds from there on"
            )
        if header.first_client_seq != next_client_seq or header.count == 0:
            raise CorruptionError(
                f"{name} offset {offset}: transaction {header.first_client_seq} follows "
                f"{next_client_seq - 1}"
            )
        next_client_seq = header.next_client_seq
        offset += header.record_bytes
    return SpoolTail(offset, next_client_seq)


def _later_record(data: bytes, start: int, next_client_seq: int) -> bool:
    at = data.find(_RECORD_MAGIC, start)
    while at != -1:
        header = decode_record_header(data, at)
        if header is not None and header.first_client_seq > next_client_seq:
            return True
        at = data.find(_RECORD_MAGIC, at + 1)
    return False
