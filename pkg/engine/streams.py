"""A running stream as the engine thread knows it: its tokens, its sampler, where it stands.

Owns nothing shared: the page owner has the pages, the machine the decision history.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import msgspec

from pagetrail.catalog.kinds.worker import FinishReason
from pagetrail.controlplane.cluster.wire import OfferWire
from pagetrail.controlplane.scheduler import Phase, Work
from pagetrail.kernels.abi import Floats

from .sampling import SamplingParams, TokenCounts, logprobs_of
from .stopping import FinishReason as StopReason
from .stopping import OutputStream, StopRules
from .tokenizer import ModelTokenizer


class Generation(msgspec.Struct, frozen=True):
    """How a request wants its tokens, as the gateway sends it (opaque to the control plane)."""

    params: SamplingParams
    stop_strings: tuple[str, ...]
    stop_tokens: tuple[int, ...]
    ignore_eos: bool
    min_tokens: int
    max_tokens: int  # of the whole request, earlier attempts included
    prompt_logprobs: int | None = None  # of every prompt token, with so many of the best


class TokenLogprobs(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of one token and of the best ones, natural logarithm."""

    logprob: float
    top: tuple[tuple[int, float], ...]


_ENCODER = msgspec.msgpack.Encoder()
_GENERATION = msgspec.msgpack.Decoder(Generation)
_LOGPROBS = msgspec.msgpack.Decoder(tuple[TokenLogprobs, ...])


def encode_generation(generation: Generation) -> bytes:
    """For an offer."""
    return _ENCODER.encode(generation)


def decode_generation(encoded: bytes) -> Generation:
    """From an offer."""
    return _GENERATION.decode(encoded)


def decode_logprobs(encoded: bytes) -> tuple[TokenLogprobs, ...]:
    """From a tokens message; empty when none were asked for."""
    return _LOGPROBS.decode(encoded) if encoded else ()


def encode_logprobs(logprobs: list[TokenLogprobs]) -> bytes:
    """For a tokens message."""
    return _ENCODER.encode(tuple(logprobs)) if logprobs else b""


def sample_seed(seed: int, sample: int) -> int:
    """The seed of a request's n-th sample; sample 0 has the request's own."""
    return (seed + sample) % 2**64


def stop_rules(generation: Generation, tokenizer: ModelTokenizer) -> StopRules:
    """When a generation ends, the model's own end tokens included."""
    ends = set(generation.stop_tokens)
    if not generation.ignore_eos:
        ends.update(tokenizer.eos_token_ids)
    return StopRules(
        strings=generation.stop_strings,
        token_ids=frozenset(ends),
        max_tokens=generation.max_tokens,
        min_tokens=generation.min_tokens,
    )


@dataclass(slots=True)
class ActiveStream:
    """One stream between its admission and its end."""

    stream: int
    number: int
    attempt: int
    sample: int
    samples: int
    priority: int
    deadline_us: int
    arrival_us: int
    tokens: list[int]  # prompt, what earlier attempts generated, what this one does
    prompt_rows: int  # tokens that were there when the attempt began
    client_prompt_tokens: int
    params: SamplingParams
    counts: TokenCounts
    output: OutputStream
    processed: int  # rows in the pages
    accepted_ns: int
    ready: bool = False
    forked: bool = False
    parked_steps: int = 0
    first_token_ns: int = 0
    prefill_ns: int = 0
    prefill_rows: int = 0
    finish: FinishReason | None = None
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_best: int | None = None  # log-probabilities of the prompt's own tokens are wanted

    @classmethod
    def begin(
        cls,
        stream: int,
        offer: OfferWire,
        generation: Generation,
        tokenizer: ModelTokenizer,
        *,
        arrival_us: int,
        accepted_ns: int,
    ) -> ActiveStream:
        """A stream from its offer; what earlier attempts generated is behind it already."""
        tokens = list(offer.tokens)
        generated = tokens[offer.prompt_tokens :]
        output = OutputStream(tokenizer.detokenizer(), stop_rules(generation, tokenizer))
        for token in generated:
            output.push(token)
        return cls(
            stream=stream,
            number=offer.number,
            attempt=offer.attempt,
            sample=0,
            samples=offer.samples,
            priority=offer.priority,
            deadline_us=offer.deadline_us,
            arrival_us=arrival_us,
            tokens=tokens,
            prompt_rows=len(tokens),
            client_prompt_tokens=offer.prompt_tokens,
            params=generation.params,
            counts=TokenCounts.of(tokens[: offer.prompt_tokens], generated),
            output=output,
            processed=0,
            accepted_ns=accepted_ns,
            # The client has an earlier attempt's already when it has tokens.
            prompt_best=None if generated else generation.prompt_logprobs,
        )

    def twin(self, stream: int, sample: int, tokenizer: ModelTokenizer) -> ActiveStream:
        """Another sample of the same request, from the same boundary."""
        params = replace(self.params, seed=sample_seed(self.params.seed, sample))
        return ActiveStream(
            stream=stream,
            number=self.number,
            attempt=self.attempt,
            sample=sample,
            samples=self.samples,
            priority=self.priority,
            deadline_us=self.deadline_us,
            arrival_us=self.arrival_us,
            tokens=list(self.tokens),
            prompt_rows=self.prompt_rows,
            client_prompt_tokens=self.client_prompt_tokens,
            params=params,
            counts=TokenCounts.of(self.tokens),
            output=OutputStream(tokenizer.detokenizer(), self.output.rules),
            processed=self.processed,
            accepted_ns=self.accepted_ns,
            ready=True,
            forked=True,
        )

    @property
    def generated(self) -> int:
        """Tokens of the request that have been generated, earlier attempts included."""
        return len(self.tokens) - self.client_prompt_tokens

    def run_from(self, rows: int) -> None:
        """The pages hold the first ``rows`` rows: the stream may be scheduled from there.

        After it gave way they may be fewer than it had; the rest are prompt rows now.
        """
        self.processed = rows
        self.prompt_rows = len(self.tokens)
        del self.prompt_logprobs[rows:]
        self.ready = True

    def work(self, *, blocked: bool = False) -> Work:
        """What the planner may schedule; ``blocked``: it waits for pages."""
        left = len(self.tokens) - self.processed
        prefilling = self.processed < self.prompt_rows - 1
        if prefilling and self.samples > 1 and not self.forked:
            left -= 1  # the samples branch off before the last prompt row
        return Work(
            stream=self.stream,
            phase=Phase.PREFILL if prefilling else Phase.DECODE,
            rows=left if prefilling else 1,
            priority=self.priority,
            deadline_us=self.deadline_us,
            arrival_us=self.arrival_us,
            ready=self.ready and not blocked and self.finish is None,
            parked_steps=self.parked_steps,
        )

    @property
    def must_fork(self) -> bool:
        """All prompt rows but the last are there and the other samples have not branched off."""
        return self.samples > 1 and not self.forked and self.processed == self.prompt_rows - 1

    def wanted_rows(self, rows: int) -> int:
        """How many of the next ``rows`` rows' logits are needed: the last ones."""
        if self.prompt_best is not None and self.processed < self.prompt_rows:
            return rows
        return 1 if self.processed + rows == len(self.tokens) else 0

    def take_prompt_logits(self, logits: Floats) -> None:
        """Logits ``[rows, vocabulary]`` of the rows from ``processed`` on; each foretells the next
        prompt token."""
        if self.prompt_best is None:
            return
        following = self.tokens[self.processed + 1 : self.prompt_rows]
        for row, token in zip(logits, following, strict=False):
            self.prompt_logprobs.append(TokenLogprobs(*logprobs_of(row, token, self.prompt_best)))

    def take_prompt_logprobs(self) -> list[TokenLogprobs]:
        """The prompt's own log-probabilities, once; afterwards none are collected."""
        taken, self.prompt_logprobs, self.prompt_best = self.prompt_logprobs, [], None
        return taken

    def append(self, token: int) -> None:
        """Take the next token; ``finish`` is set when it is the last."""
        self.tokens.append(token)
        self.counts.add(token)
        emitted = self.output.push(token)
        if emitted.finish is StopReason.STOP:
            self.finish = FinishReason.STOP
        elif emitted.finish is StopReason.LENGTH:
            self.finish = FinishReason.LENGTH
