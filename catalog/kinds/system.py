"""Facts that the writer itself states."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta


class Refused(msgspec.Struct, frozen=True, array_like=True):
    """Stands in the place of a transaction whose precondition did not hold.

    What the client had expected is the client's to know: only its digest stands here.
    """

    register: Annotated[bytes, Meta(description="register that did not match")]
    actual: Annotated[bytes | None, Meta(description="value the register held")]
    transaction_digest: Annotated[
        bytes, Meta(description="SHA-256 of the refused transaction's bytes")
    ]


class WriterEpochStarted(msgspec.Struct, frozen=True, array_like=True):
    """First fact of every run of the writer; fences every smaller epoch."""

    writer_epoch: Annotated[int, Meta(description="strictly rising over the log")]
    format_version: Annotated[int, Meta(description="frame format")]
    clock: Annotated[str, Meta(description="wall or logical")]
