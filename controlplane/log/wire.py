"""Messages between clients, subscribers and the writer (docs/log.md). Pure: bytes and values.

A request is [verb, header] and, for an append, the encoded array of transactions as a third part.
An answer is [verb, header] and, for frames and for a part of a file, its bytes. The live stream
sends [topic, head, frame]. Headers are msgpack arrays.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeVar

import msgspec

from pagetrail.catalog.errors import BadInputError

PROTOCOL_VERSION = 2


class Verb(bytes):
    """First part of a message: one byte."""


HELLO = Verb(b"H")
APPEND = Verb(b"A")
RESOLVE = Verb(b"R")
FETCH = Verb(b"F")
SNAPSHOT = Verb(b"N")
STATUS = Verb(b"S")
GET_FILE = Verb(b"G")
WELCOME = Verb(b"w")
ACKNOWLEDGED = Verb(b"a")
RESOLVED = Verb(b"r")
FRAMES = Verb(b"f")
MANIFEST = Verb(b"n")
STATUS_IS = Verb(b"s")
SEALED = Verb(b"d")
FILE_PART = Verb(b"g")
REFUSED = Verb(b"x")

TOPIC_FRAME = b"F"
TOPIC_HEAD = b"H"


class Refusal(IntEnum):
    """Why a request was not served, and what the client does about it."""

    BUSY = 1  # queue full: resend later
    GAP = 2  # resend from ``expected``
    STALE_EPOCH = 3  # a newer epoch of this client has appended: stop
    BAD_INPUT = 4  # can never be taken: stop
    BEHIND = 5  # the log lost acknowledged facts: stop, alarm
    BAD_RANGE = 6  # no such position is kept here
    OTHER_LOG = 7  # the client belongs to another log: stop


class Hello(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Who a client is, the log it belongs to (empty: none yet), and the highest position it saw
    acknowledged (0 and CHAIN_START: none)."""

    request: int
    protocol_version: int
    client: str
    client_epoch: int
    acknowledged_head: int
    acknowledged_chain: bytes
    log_id: bytes


class Welcome(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """``next_client_seq`` is the first transaction of this epoch that the log does not hold."""

    request: int
    protocol_version: int
    writer_epoch: int
    head: int
    chain: bytes
    next_client_seq: int
    newest_client_epoch: int
    publish_endpoint: str
    log_id: bytes


class Append(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Header of an append. ``request`` comes back in the answer."""

    request: int
    client: str
    client_epoch: int


class AnswerSpan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Where consecutive transactions of one client epoch lie.

    ``sizes`` is the number of facts of each transaction, or one number when all are alike.
    ``refused`` lists the ``client_seq`` of those that stand as refusals.
    """

    first_client_seq: int
    count: int
    first_seq: int
    sizes: int | tuple[int, ...]
    refused: tuple[int, ...]


class Acknowledged(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Everything up to and including the last span is durable. ``head`` is the next ``seq``."""

    request: int
    client_epoch: int
    spans: tuple[AnswerSpan, ...]
    head: int
    chain: bytes


class Resolve(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Ask where transactions that the log holds already lie."""

    request: int
    client: str
    client_epoch: int
    first_client_seq: int
    count: int


class Resolved(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    request: int
    spans: tuple[AnswerSpan, ...]


class Refused(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """``expected`` is the next ``client_seq`` for GAP, the newest epoch for STALE_EPOCH."""

    request: int
    reason: Refusal
    expected: int
    message: str


class Fetch(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Frames from the one that holds ``from_seq`` on, up to about ``max_bytes``. Bulk socket."""

    request: int
    from_seq: int
    max_bytes: int


class GetFile(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A part of a file of a sealed segment, up to ``max_bytes``. Bulk socket."""

    request: int
    directory: str
    name: str
    offset_bytes: int
    max_bytes: int


class FilePart(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Header of the answer to ``GetFile``; the bytes follow. ``size_bytes``: the whole file's."""

    request: int
    offset_bytes: int
    size_bytes: int


class Simple(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Header of a request without arguments."""

    request: int


class SegmentEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One stretch of the log. ``sealed`` names its directory; it is empty for the active form."""

    first_seq: int
    next_seq: int
    sealed: str


class Manifest(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What a new subscriber starts from: sealed stretches, then the tail up to ``head``, and the
    socket that serves both."""

    request: int
    log_id: bytes
    bulk_endpoint: str
    segments: tuple[SegmentEntry, ...]
    head: int
    chain: bytes


class StatusIs(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    request: int
    writer_epoch: int
    head: int
    chain: bytes
    clients: int
    registers: int
    queued_bytes: int
    frames: int
    publish_endpoint: str


class Head(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Carried by every live message, and alone when nothing is written."""

    writer_epoch: int
    head: int
    chain: bytes


class Frames(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Header of the answer to a fetch; the frames follow as they are stored, one after another."""

    request: int
    head: Head


class Sealed(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The position asked for lies in a sealed segment: ask for the files of this directory."""

    request: int
    head: Head
    directory: str


class MalformedError(BadInputError):
    """A message is not of the form that its verb asks for."""


_T = TypeVar("_T", bound=msgspec.Struct)
_ENCODER = msgspec.msgpack.Encoder()


def encode(header: msgspec.Struct) -> bytes:
    return _ENCODER.encode(header)


def decode(data: bytes, form: type[_T]) -> _T:
    """``BadInputError`` when ``data`` is not a ``form``."""
    try:
        return msgspec.msgpack.decode(data, type=form)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedError(f"malformed {form.__name__} message: {error}") from error


class _AnyHeader(msgspec.Struct, frozen=True, array_like=True):
    request: int


def request_of(header: bytes) -> int:
    """The request number that every header starts with; 0 when there is none to read."""
    try:
        return msgspec.msgpack.decode(header, type=_AnyHeader).request
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0


def span_answer(span: AnswerSpan, client_seq: int) -> tuple[int, int, bool]:
    """(first seq, number of facts, refused) of one transaction of the span."""
    place = client_seq - span.first_client_seq
    if not 0 <= place < span.count:
        raise BadInputError(
            f"transaction {client_seq} is not among the {span.count} from {span.first_client_seq}"
        )
    if isinstance(span.sizes, int):
        first, size = span.first_seq + place * span.sizes, span.sizes
    else:
        first, size = span.first_seq + sum(span.sizes[:place]), span.sizes[place]
    return first, size, client_seq in span.refused


def cut_span(span: AnswerSpan, first_client_seq: int, count: int) -> AnswerSpan:
    """The part of a span that covers ``count`` transactions from ``first_client_seq``."""
    place = first_client_seq - span.first_client_seq
    first_seq, _, _ = span_answer(span, first_client_seq)
    sizes = span.sizes if isinstance(span.sizes, int) else span.sizes[place : place + count]
    end = first_client_seq + count
    refused = tuple(seq for seq in span.refused if first_client_seq <= seq < end)
    return AnswerSpan(first_client_seq, count, first_seq, sizes, refused)
