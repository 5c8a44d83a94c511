"""Every bound of the log, the writer, the client and its spool, in one frozen value."""

from __future__ import annotations

import msgspec

from pagetrail.catalog.envelope import TRANSACTION_BYTES_MAX
from pagetrail.catalog.errors import BadInputError

_MIB = 1024 * 1024
MESSAGE_BYTES_MAX = TRANSACTION_BYTES_MAX + _MIB
"""No message, and no frame body, is larger: the largest transaction with its framing fits."""


class LogLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds, with defaults for one machine. Times are ``_ns``, sizes ``_bytes``."""

    segment_bytes: int = 64 * _MIB
    """A segment is closed once it holds at least this much."""

    unsealed_segments: int = 1
    """Closed segments that stay as they are behind the active one; the writer has older ones
    sealed. 0: it seals nothing, and whoever runs it calls ``facts seal``.

    Readers just behind the head are served frames from these; a replica that is rebuilt takes
    their facts one by one, ten times as slowly as sealed ones.
    """

    frame_bytes: int = 4 * _MIB
    """A commit takes queued messages until its frame holds at least this much."""

    queue_bytes: int = 64 * _MIB
    """Messages the writer holds beyond the commit under way; above it the answer is busy."""

    answers: int = 65_536
    """Transactions per client epoch (writer), or in all (client), whose answer is kept in memory.

    Older answers are found by scanning the log.
    """

    message_bytes: int = 256 * 1024
    """The shipper fills an append message up to this; one larger transaction travels alone."""

    window_transactions: int = 32_768
    """Transactions a client may have shipped and not yet acknowledged."""

    window_bytes: int = 4 * _MIB
    """Bytes a client may have shipped and not yet acknowledged."""

    spool_bytes: int = 256 * _MIB
    """Bytes of records in a client's spool, reservations included."""

    spool_file_bytes: int = 8 * _MIB
    """A spool file is closed once it holds at least this much; removed when acknowledged."""

    spool_sync_after_ns: int = 5_000_000
    """Spooled bytes still unacknowledged after this long are fdatasynced by the client."""

    fetch_bytes: int = 2 * _MIB
    """A range fetch answers with frames up to about this much."""

    live_frames: int = 1_024
    """Frames queued per live subscriber; beyond it the subscriber loses some and refetches."""

    heartbeat_ns: int = 200_000_000
    """The writer publishes its head at least this often."""

    retry_ns: int = 500_000_000
    """A client without any answer for this long says hello again and resends."""

    hello_ns: int = 1_000_000_000
    """An idle client says hello this often, so that a log that lost facts is found out."""

    registers: int = 4_194_304
    """Registers (see ``CompareAndSet``) that may be set at one time; a few hundred bytes each."""

    index_stride_bytes: int = 256 * 1024
    """The writer remembers the place of one frame per this many bytes of log."""


def check_limits(limits: LogLimits) -> LogLimits:
    """Return ``limits``; ``BadInputError`` names the first bound that cannot work."""
    for name in LogLimits.__struct_fields__:
        least = 0 if name == "unsealed_segments" else 1
        if getattr(limits, name) < least:
            raise BadInputError(
                f"limit {name} is {getattr(limits, name)}; it must be at least {least}"
            )
    if limits.spool_file_bytes * 4 > limits.spool_bytes:
        raise BadInputError(
            f"spool_file_bytes is {limits.spool_file_bytes}, which must be at most a quarter of "
            f"spool_bytes ({limits.spool_bytes}); otherwise acknowledged files free too little room"
        )
    for name in ("message_bytes", "frame_bytes"):
        if getattr(limits, name) > MESSAGE_BYTES_MAX:
            raise BadInputError(
                f"limit {name} is {getattr(limits, name)}; at most {MESSAGE_BYTES_MAX} is allowed"
            )
    return limits
