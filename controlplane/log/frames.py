"""Frames: how committed transactions lie in a segment, byte for byte (docs/log.md).

A frame is a fixed header and a body. The header has its own CRC-32C, so its length can be trusted
before the body is read; the body has another. ``chain`` of a frame is the SHA-256 over header and
body, and the header of the next frame holds it, so the last chain value vouches for the whole log.
Transactions of a frame carry ``t_us``, ``t_us + 1``, ... in order. This module is pure: bytes in,
values out; it opens nothing.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import google_crc32c
import msgspec

from pagetrail.catalog.envelope import Fact, Run, Transaction
from pagetrail.catalog.errors import CorruptionError

FORMAT_VERSION = 1
MAGIC = b"PTFR"
FLAG_REGISTERS = 1
"""The frame holds at least one transaction with compare_and_set."""

CHAIN_START = bytes(32)
"""The previous chain value of the first frame of a log."""

# magic, version, flags, body_bytes, body_crc, fact_count, transaction_count, writer_epoch,
# first_seq, t_us, previous_chain; then the CRC-32C of all these.
_FIELDS = struct.Struct("<4sHHIIIIQQq32s")
_EXTENT = struct.Struct("<IIIIQQ")
_CRC = struct.Struct("<I")
HEADER_BYTES = _FIELDS.size + _CRC.size

_RUNS_DECODER = msgspec.msgpack.Decoder(tuple[Run, ...])
_ENCODER = msgspec.msgpack.Encoder()


class RunOutline(msgspec.Struct, frozen=True, array_like=True):
    """A run with its transactions left encoded: enough to count them."""

    client: str
    client_epoch: int
    transactions: msgspec.Raw


_RUN_HEAD_BYTES = 15
"""The longest head of a run: an array's length, an array of four, a client_seq."""

_OUTLINE_DECODER = msgspec.msgpack.Decoder(tuple[RunOutline, ...])


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """The header of a frame. ``next_seq`` and ``last_t_us`` follow from it."""

    flags: int
    body_bytes: int
    body_crc: int
    fact_count: int
    transaction_count: int
    writer_epoch: int
    first_seq: int
    t_us: int
    previous_chain: bytes

    @property
    def next_seq(self) -> int:
        return self.first_seq + self.fact_count

    @property
    def last_t_us(self) -> int:
        return self.t_us + self.transaction_count - 1


@dataclass(frozen=True, slots=True)
class Frame:
    """One commit of the log. ``raw`` is the frame as stored, header included."""

    header: FrameHeader
    raw: bytes
    chain: bytes

    @property
    def first_seq(self) -> int:
        return self.header.first_seq

    @property
    def next_seq(self) -> int:
        return self.header.next_seq

    def runs(self) -> tuple[Run, ...]:
        """Decode the body. ``CorruptionError`` when it is not what the header counts."""
        return decode_runs(self.header, self.raw[HEADER_BYTES:])

    def facts(self) -> list[Fact]:
        """The facts in order of ``seq``. Bodies are views into the frame's body."""
        return list(facts_of(self.header, self.runs()))


@dataclass(frozen=True, slots=True)
class LogPosition:
    """Where a log ends: the next ``seq``, the chain value there, and the last ``t_us``."""

    next_seq: int
    chain: bytes
    last_t_us: int


LOG_START = LogPosition(0, CHAIN_START, -1)


def chain_of(raw: bytes) -> bytes:
    """Chain value of a frame: SHA-256 over its stored bytes, which hold the value before it."""
    return hashlib.sha256(raw).digest()


def encode_runs(runs: Sequence[tuple[str, int, bytes]]) -> bytes:
    """Body of a frame from (client, client_epoch, encoded array of transactions)."""
    parts = [encode_array_header(len(runs))]
    for client, client_epoch, transactions in runs:
        parts.append(b"\x93" + _ENCODER.encode(client) + _ENCODER.encode(client_epoch))
        parts.append(transactions)
    return b"".join(parts)


def encode_array(items: Sequence[bytes | msgspec.Raw]) -> bytes:
    """A msgpack array of items that are encoded already."""
    return b"".join((encode_array_header(len(items)), *items))


def encode_array_header(length: int) -> bytes:
    if length < 16:
        return bytes((0x90 | length,))
    if length < 65_536:
        return b"\xdc" + length.to_bytes(2, "big")
    return b"\xdd" + length.to_bytes(4, "big")


def array_length(encoded: bytes) -> int:
    """Number of items of an encoded msgpack array. ``CorruptionError`` if it is no array."""
    first = encoded[0] if len(encoded) else 0
    if first & 0xF0 == 0x90:
        return first & 0x0F
    if first == 0xDC:
        return int.from_bytes(encoded[1:3], "big")
    if first == 0xDD:
        return int.from_bytes(encoded[1:5], "big")
    raise CorruptionError(f"expected a msgpack array, found a value starting with {first:#04x}")


def encode_frame(
    body: bytes,
    *,
    flags: int,
    fact_count: int,
    transaction_count: int,
    writer_epoch: int,
    first_seq: int,
    t_us: int,
    previous_chain: bytes,
) -> Frame:
    """Seal a body into a frame."""
    body_crc = google_crc32c.value(body)
    fields = _FIELDS.pack(
        MAGIC,
        FORMAT_VERSION,
        flags,
        len(body),
        body_crc,
        fact_count,
        transaction_count,
        writer_epoch,
        first_seq,
        t_us,
        previous_chain,
    )
    raw = b"".join((fields, _CRC.pack(google_crc32c.value(fields)), body))
    header = FrameHeader(
        flags,
        len(body),
        body_crc,
        fact_count,
        transaction_count,
        writer_epoch,
        first_seq,
        t_us,
        previous_chain,
    )
    return Frame(header, raw, chain_of(raw))


def decode_header(data: bytes, offset: int) -> FrameHeader | None:
    """The header at ``offset``, or None when no valid header lies there.

    ``CorruptionError`` for a header that is intact but of a version this build does not know.
    """
    end = offset + _FIELDS.size
    if len(data) < offset + HEADER_BYTES or data[offset : offset + 4] != MAGIC:
        return None
    if google_crc32c.value(data[offset:end]) != _CRC.unpack_from(data, end)[0]:
        return None
    _, version, *fields = _FIELDS.unpack_from(data, offset)
    if version != FORMAT_VERSION:
        raise CorruptionError(
            f"the frame at byte {offset} has format version {version}, this build reads "
            f"{FORMAT_VERSION}; use a newer build"
        )
    return FrameHeader(*fields)


@dataclass(frozen=True, slots=True)
class FrameSpan:
    """How many bytes a stored frame takes, and which facts it holds."""

    size_bytes: int
    first_seq: int
    next_seq: int


def frame_span(data: bytes, offset: int) -> FrameSpan | None:
    """What the header at ``offset`` says of its frame's extent; None when no header lies there.

    Nothing is checked but the magic: for bytes that are known to be whole, and are checked where
    they arrive.
    """
    if len(data) < offset + HEADER_BYTES or data[offset : offset + 4] != MAGIC:
        return None
    body_bytes, _, facts, _, _, first_seq = _EXTENT.unpack_from(data, offset + 8)
    return FrameSpan(HEADER_BYTES + body_bytes, first_seq, first_seq + facts)


def decode_frame(raw: bytes) -> Frame:
    """A whole frame, checked. ``CorruptionError`` says which check failed."""
    header = decode_header(raw, 0)
    if header is None:
        raise CorruptionError("frame header fails its magic or checksum; the bytes were altered")
    if len(raw) != HEADER_BYTES + header.body_bytes:
        raise CorruptionError(
            f"frame at seq {header.first_seq} is {len(raw)} bytes, its header says "
            f"{HEADER_BYTES + header.body_bytes}"
        )
    if google_crc32c.value(raw[HEADER_BYTES:]) != header.body_crc:
        raise CorruptionError(f"body of the frame at seq {header.first_seq} fails its checksum")
    return Frame(header, raw, chain_of(raw))


def decode_runs(header: FrameHeader, body: bytes | memoryview) -> tuple[Run, ...]:
    """Decode a body and check it against the header's counts."""
    try:
        runs = _RUNS_DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(
            f"body of the frame at seq {header.first_seq} does not decode: {error}"
        ) from error
    transactions = sum(len(run.transactions) for run in runs)
    facts = sum(len(t.facts) for run in runs for t in run.transactions)
    if (transactions, facts) != (header.transaction_count, header.fact_count):
        raise CorruptionError(
            f"frame at seq {header.first_seq} holds {transactions} transactions and {facts} "
            f"facts, its header says {header.transaction_count} and {header.fact_count}"
        )
    return runs


def outline_runs(header: FrameHeader, body: bytes | memoryview) -> tuple[RunOutline, ...]:
    """Decode only who wrote the runs of a body, for recovery."""
    try:
        return _OUTLINE_DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(
            f"body of the frame at seq {header.first_seq} does not decode: {error}"
        ) from error


def run_range(run: RunOutline) -> tuple[int, int]:
    """(first client_seq, number of transactions) without decoding the transactions."""
    encoded = bytes(memoryview(run.transactions)[:_RUN_HEAD_BYTES])
    count = array_length(encoded)
    at = 1 if count < 16 else 3 if count < 65_536 else 5
    # encoded[at] opens the first transaction, an array of 4 whose first item is its client_seq
    tag = encoded[at + 1]
    if tag < 0x80:
        return tag, count
    width = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}.get(tag)
    if encoded[at] != 0x94 or width is None:
        raise CorruptionError(f"a run of client {run.client} does not start with a transaction")
    return int.from_bytes(encoded[at + 2 : at + 2 + width], "big"), count


def transactions_of(
    header: FrameHeader, runs: Sequence[Run]
) -> Iterator[tuple[Run, Transaction, int, int]]:
    """(run, transaction, tx, t_us) in order."""
    tx = header.first_seq
    t_us = header.t_us
    for run in runs:
        for transaction in run.transactions:
            yield run, transaction, tx, t_us
            tx += len(transaction.facts)
            t_us += 1


def facts_of(header: FrameHeader, runs: Sequence[Run]) -> Iterator[Fact]:
    """The facts of decoded runs, in order of ``seq``."""
    epoch = header.writer_epoch
    for run, transaction, tx, t_us in transactions_of(header, runs):
        for index, fact in enumerate(transaction.facts):
            yield Fact(
                tx + index,
                tx,
                t_us,
                epoch,
                run.client,
                run.client_epoch,
                transaction.client_seq,
                index,
                transaction.causes,
                fact.op,
                fact.kind,
                fact.schema_v,
                fact.body,
            )


def check_follows(header: FrameHeader, position: LogPosition) -> None:
    """``CorruptionError`` unless the frame continues the log at ``position``."""
    if header.first_seq != position.next_seq:
        raise CorruptionError(
            f"frame starts at seq {header.first_seq}, expected {position.next_seq}"
        )
    if header.previous_chain != position.chain:
        raise CorruptionError(
            f"frame at seq {header.first_seq} does not continue the chain: it names "
            f"{header.previous_chain.hex()[:16]}.., the log before it hashes to "
            f"{position.chain.hex()[:16]}.."
        )
    if header.t_us <= position.last_t_us:
        raise CorruptionError(
            f"frame at seq {header.first_seq} has t_us {header.t_us}, not above "
            f"{position.last_t_us}"
        )
    if header.fact_count < header.transaction_count or header.transaction_count == 0:
        raise CorruptionError(
            f"frame at seq {header.first_seq} counts {header.transaction_count} transactions "
            f"and {header.fact_count} facts"
        )


def position_after(frame: Frame) -> LogPosition:
    """Where the log ends once ``frame`` is its last."""
    return LogPosition(frame.header.next_seq, frame.chain, frame.header.last_t_us)
