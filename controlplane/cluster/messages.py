"""What router, worker and their surroundings tell each other, as values.

Events go into a machine, effects come out of it; both are plain data, so that a socket, a thread
or a simulator may carry them. Nothing here is a fact.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from pagetrail.catalog.kinds.router import Answer, WorkerObserved
from pagetrail.catalog.kinds.worker import FinishReason


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as bookkeeping knows it: digests and lengths, not tokens.

    ``pages`` has a chain digest for every page column that may be kept, ``chunks`` one for every
    whole durable chunk; both commit to everything before them. ``root`` is the tenant's. At most
    the first ``adoptable`` columns may be reused: the last prompt token is always computed.
    ``fresh``: nothing may be reused, because the logits of every prompt row are wanted.
    """

    tokens: int
    digest: bytes
    root: bytes
    pages: tuple[bytes, ...]
    chunks: tuple[bytes, ...]
    adoptable: int
    fresh: bool = False

    @property
    def reusable_chunks(self) -> tuple[bytes, ...]:
        """The chunks that may be restored instead of computed."""
        return () if self.fresh else self.chunks

    @property
    def reusable_pages(self) -> tuple[bytes, ...]:
        """The page columns that may be adopted instead of computed."""
        return () if self.fresh else self.pages


@dataclass(frozen=True, slots=True)
class Incoming:
    """A request as it reaches the router."""

    request: str
    tenant: str
    priority: int
    deadline_us: int
    prompt: Prompt
    max_new_tokens: int
    samples: int = 1


# ---------------------------------------------------------------- router -> worker


@dataclass(frozen=True, slots=True)
class Offer:
    """One attempt at a request, offered to one worker epoch."""

    number: int
    attempt: int
    worker: str
    worker_epoch: int
    incoming: Incoming
    generated: int  # tokens the client has already been sent; the prompt includes them


@dataclass(frozen=True, slots=True)
class CancelAttempt:
    """Give one attempt up; an attempt that is not running is ignored."""

    number: int
    attempt: int
    worker: str


# ---------------------------------------------------------------- worker -> router


@dataclass(frozen=True, slots=True)
class Answered:
    """A worker's answer to an offer."""

    number: int
    attempt: int
    answer: Answer


@dataclass(frozen=True, slots=True)
class Ended:
    """An attempt ended at its worker."""

    number: int
    attempt: int
    reason: FinishReason
    cached_tokens: int  # verified rows the prompt did not have to compute
    resident_tokens: int  # of those, on the device when it was admitted
    ttft_ns: int  # from the worker's acceptance to its first token; 0: there was none


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A worker's state, unrecorded until a decision uses it."""

    seen: WorkerObserved


# ---------------------------------------------------------------- router -> its surroundings


class Verdict(IntEnum):
    """How a request ended for its client."""

    COMPLETED = 0
    CANCELLED = 1
    NO_WORKER = 2
    TOO_LONG = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class Close:
    """The request is over."""

    number: int
    verdict: Verdict
    reason: FinishReason


@dataclass(frozen=True, slots=True)
class ArmOfferTimeout:
    """Tell the router when this attempt has waited too long for its answer."""

    number: int
    attempt: int


RouterEffect = Offer | CancelAttempt | Close | ArmOfferTimeout


# ---------------------------------------------------------------- worker -> its device and tiers


@dataclass(frozen=True, slots=True)
class Restore:
    """Bring chunks of a stream's prefix into its own pages, verified, root first."""

    stream: int
    tier: int
    worker: str  # holder; empty for the object store
    first_token: int  # what is resident ends here
    tokens: int  # prefix length to reach
    chunks: tuple[bytes, ...]  # prefix digests of the chunks to read


@dataclass(frozen=True, slots=True)
class Run:
    """The stream may be scheduled: rows below ``rows`` are present, the rest is to be computed."""

    stream: int
    rows: int


@dataclass(frozen=True, slots=True)
class Forked:
    """A stream of the same attempt that shares the source's pages and continues on its own."""

    stream: int
    source: int
    sample: int  # from 1; the source is sample 0


@dataclass(frozen=True, slots=True)
class Capture:
    """Read whole chunks of a finished prompt from its pages and store them."""

    stream: int
    chunks: tuple[int, ...]  # places in the prompt's chunks


@dataclass(frozen=True, slots=True)
class KeepInRam:
    """Copy whole chunks of a finished prompt from its pages to host memory."""

    stream: int
    chunks: tuple[int, ...]  # places in the prompt's chunks


@dataclass(frozen=True, slots=True)
class SwapOut:
    """Schedule the stream no more and copy its first rows to host memory; then report."""

    stream: int
    rows: int


@dataclass(frozen=True, slots=True)
class Parked:
    """The stream holds no page any more and waits; it keeps its tokens and its sampler."""

    stream: int


@dataclass(frozen=True, slots=True)
class SwapIn:
    """Write rows that were swapped out into a stream's own pages again; then report."""

    stream: int
    first_row: int  # those before are there
    rows: int  # it is to have


@dataclass(frozen=True, slots=True)
class SwapDrop:
    """What was swapped out of a stream is needed no longer."""

    stream: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Fence a stream's work; report when the device has let go of its pages."""

    stream: int


WorkerEffect = (
    Answered
    | Ended
    | Restore
    | Run
    | Forked
    | Capture
    | KeepInRam
    | SwapOut
    | Parked
    | SwapIn
    | SwapDrop
    | Stop
)
