"""The journal of a router: what it knew of workers and requests when it decided."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from .content import Digest
from .worker import Bound


class Answer(IntEnum):
    """A worker's answer to an offer, or the lack of one."""

    ACCEPTED = 0
    DECLINED = 1
    TIMED_OUT = 2


class RouterStarted(msgspec.Struct, frozen=True, array_like=True):
    """First fact of a router's epoch."""

    router: Annotated[str, Meta(description="router id")]
    router_epoch: Annotated[int, Meta(description="equals the client epoch")]
    fingerprint: Annotated[Digest, Meta(description="model compatibility fingerprint")]
    page_tokens: Annotated[int, Meta(description="tokens of a page")]
    chunk_tokens: Annotated[int, Meta(description="tokens of a durable chunk")]
    chunk_bytes: Annotated[int, Meta(description="bytes of a full chunk, all groups")]
    reserve_output: Annotated[bool, Meta(description="bookings count max_new_tokens")]
    evaluators: Annotated[tuple[Bound, ...], Meta(description="evaluators in force")]
    previous_epoch: Annotated[int, Meta(description="the router's epoch before; 0 none")]
    previous_chain: Annotated[bytes, Meta(description="its command chain's end; empty: none")]


class WorkerObserved(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A worker's newest heartbeat, recorded when a decision first uses it."""

    worker: Annotated[str, Meta(description="worker id")]
    worker_epoch: Annotated[int, Meta(description="worker's epoch")]
    observation: Annotated[int, Meta(description="heartbeat sequence inside the epoch")]
    fingerprint: Annotated[Digest, Meta(description="model that it serves")]
    online: Annotated[bool, Meta(description="takes new requests")]
    context_tokens: Annotated[int, Meta(description="longest sequence")]
    verify_rows: Annotated[int, Meta(description="width of its draft verify window")]
    free_pages: Annotated[int, Meta(description="scarcest group: free, neither held nor promised")]
    reclaimable_pages: Annotated[int, Meta(description="scarcest group: evictable")]
    queue_ns: Annotated[int, Meta(description="predicted wait before a new request runs")]
    costs: Annotated[tuple[int, ...], Meta(description="by Metric, calibrated")]
    samples: Annotated[tuple[int, ...], Meta(description="by Metric, samples behind the cost")]
    total_pages: Annotated[
        int, Meta(description="smallest pool of a group without a window; 0 none")
    ] = 0


class WorkerExpired(msgspec.Struct, frozen=True, array_like=True):
    """A worker's heartbeats stopped; what was observed of this epoch is void."""

    worker: Annotated[str, Meta(description="worker id")]
    worker_epoch: Annotated[int, Meta(description="epoch that expired")]


class RequestReceived(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request reaches the router, numbered from 1 in order of arrival."""

    number: Annotated[int, Meta(description="request number inside the epoch")]
    request: Annotated[str, Meta(description="request id")]
    tenant: Annotated[str, Meta(description="tenant; empty: none")]
    priority: Annotated[int, Meta(description="higher first")]
    arrival_us: Annotated[int, Meta(description="router clock reading")]
    prompt_tokens: Annotated[int, Meta(description="tokens of the prompt")]
    max_new_tokens: Annotated[int, Meta(description="most tokens to generate, after clamping")]
    prompt_digest: Annotated[Digest, Meta(description="chain digest of the whole prompt")]
    root: Annotated[Digest, Meta(description="root of its prefix chain: the tenant's, or zeros")]


class RequestExtended(msgspec.Struct, frozen=True, array_like=True):
    """The next attempt goes on from what the client has been sent: a longer prompt, less to do."""

    number: Annotated[int, Meta(description="request number")]
    prompt_tokens: Annotated[int, Meta(description="tokens of the prompt and those already sent")]
    max_new_tokens: Annotated[int, Meta(description="most tokens still to generate")]
    prompt_digest: Annotated[Digest, Meta(description="chain digest of all of them")]


class RequestOffered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A request is offered to one worker; the load is booked for this attempt."""

    number: Annotated[int, Meta(description="request number")]
    attempt: Annotated[int, Meta(description="from 1")]
    worker: Annotated[str, Meta(description="worker id")]
    worker_epoch: Annotated[int, Meta(description="epoch the offer is made to")]
    booked_pages: Annotated[int, Meta(description="pages booked until the attempt ends")]
    booked_ns: Annotated[int, Meta(description="work booked until the attempt ends")]


class OfferAnswered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The answer to an attempt. Anything but acceptance releases that attempt's booking."""

    number: Annotated[int, Meta(description="request number")]
    attempt: Annotated[int, Meta(description="attempt that is answered")]
    answer: Annotated[int, Meta(description="Answer")]


class AttemptEnded(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An assigned attempt ended; only its own booking is released."""

    number: Annotated[int, Meta(description="request number")]
    attempt: Annotated[int, Meta(description="attempt that ended")]
    completed: Annotated[bool, Meta(description="the request is done; false: it goes on elsewhere")]


class RequestClosed(msgspec.Struct, frozen=True, array_like=True):
    """The request ended without a completed attempt (cancelled, or no worker could take it)."""

    number: Annotated[int, Meta(description="request number")]
    reason: Annotated[int, Meta(description="FinishReason")]
