"""An open request as the HTTP side and the router service share it.

The HTTP side hands in a ``Submission`` and reads events from its ``Handle``; the service keeps in
the handle what the client has been sent, so that another attempt goes on from there. Pure values
and one bounded queue.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from pagetrail.catalog.errors import PagetrailError
from pagetrail.catalog.kinds.worker import FinishReason
from pagetrail.controlplane.cluster import wire
from pagetrail.controlplane.cluster.messages import Incoming, Verdict
from pagetrail.engine.prompts import prompt_of
from pagetrail.engine.streams import Generation, encode_generation

EVENTS_MAX = 65_536  # unread events of one request; a client that lags further is cut off


class BusyError(PagetrailError):
    """No room for another request now; the client should try again later."""


@dataclass(frozen=True, slots=True)
class Submission:
    """A request as the HTTP side understood it."""

    request: str
    tenant: str
    salt: bytes | None
    priority: int
    tokens: tuple[int, ...]
    generation: Generation
    samples: int

    def incoming(self, sent: tuple[int, ...], page_tokens: int, chunk_tokens: int) -> Incoming:
        """The router's value for an attempt that follows after ``sent``."""
        return Incoming(
            request=self.request,
            tenant=self.tenant,
            priority=self.priority,
            deadline_us=0,
            prompt=prompt_of(
                self.tokens + sent,
                self.salt,
                page_tokens,
                chunk_tokens,
                fresh=not sent and self.generation.prompt_logprobs is not None,
            ),
            max_new_tokens=self.generation.max_tokens - len(sent),
            samples=self.samples,
        )


@dataclass(frozen=True, slots=True)
class NewTokens:
    """Tokens of one sample, each exactly once and in order."""

    sample: int
    tokens: tuple[int, ...]
    logprobs: bytes
    prompt_logprobs: bytes
    finish: FinishReason | None


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """The last event of a request."""

    verdict: Verdict
    worker: str
    attempts: int
    cached_tokens: int
    resident_tokens: int


Event = NewTokens | RequestEnded


@dataclass(slots=True)
class Handle:
    """An open request. ``release`` gives its headroom in the spool back."""

    number: int
    submission: Submission
    release: Callable[[], None]
    sent: list[list[int]]  # tokens the client has, by sample
    events: asyncio.Queue[Event] = field(default_factory=lambda: asyncio.Queue(EVENTS_MAX))
    finished: dict[int, FinishReason] = field(default_factory=dict)  # by sample
    worker: str = ""
    attempt: int = 0
    cached_tokens: int = 0
    resident_tokens: int = 0

    async def stream(self) -> AsyncIterator[Event]:
        """Events until the request has ended."""
        while True:
            event = await self.events.get()
            yield event
            if isinstance(event, RequestEnded):
                return

    @property
    def boundary(self) -> tuple[int, ...]:
        """Tokens that the next attempt takes as given. With several samples there are none: they
        are drawn again, which gives the same tokens, and what was sent is skipped."""
        return tuple(self.sent[0]) if self.submission.samples == 1 else ()

    @property
    def complete(self) -> bool:
        """Whether the client has every sample to its end."""
        return len(self.finished) == self.submission.samples

    def take(self, message: wire.TokensWire) -> NewTokens | None:
        """What of a worker's tokens is new to the client; None when nothing is.

        Tokens that would leave a gap are not taken either: the attempt lost some on the way, and
        its end is then no completion.
        """
        if not 0 <= message.sample < len(self.sent):
            return None
        sent = self.sent[message.sample]
        skip = len(sent) - message.first
        if not 0 <= skip < len(message.tokens):
            return None
        new = message.tokens[skip:]
        sent.extend(new)
        if message.finish is not None:
            self.finished[message.sample] = message.finish
        return NewTokens(
            message.sample, new, message.logprobs, message.prompt_logprobs, message.finish
        )

    def offer(self, router_epoch: int, worker_epoch: int) -> wire.OfferWire:
        """The current attempt as its worker gets it."""
        submission, boundary = self.submission, self.boundary
        return wire.OfferWire(
            router_epoch=router_epoch,
            number=self.number,
            attempt=self.attempt,
            worker=self.worker,
            worker_epoch=worker_epoch,
            request=submission.request,
            tenant=submission.tenant,
            salt=submission.salt,
            priority=submission.priority,
            deadline_us=0,
            tokens=submission.tokens + boundary,
            prompt_tokens=len(submission.tokens),
            max_new_tokens=submission.generation.max_tokens - len(boundary),
            samples=submission.samples,
            sampling=encode_generation(submission.generation),
        )

    def ended(self, verdict: Verdict) -> RequestEnded:
        """The last event."""
        return RequestEnded(
            verdict, self.worker, self.attempt, self.cached_tokens, self.resident_tokens
        )
