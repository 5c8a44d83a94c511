"""From a request's events to the text, log-probabilities and chunks of its answer.

An ``Answer`` collects one request's events; one ``Choice`` per sample turns tokens into text with
the engine's own stop rules, so what is streamed and what is returned whole are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pagetrail.catalog.kinds.worker import FinishReason
from pagetrail.controlplane.cluster.messages import Verdict
from pagetrail.engine.stopping import OutputStream
from pagetrail.engine.streams import Generation, TokenLogprobs, decode_logprobs, stop_rules
from pagetrail.engine.tokenizer import ModelTokenizer

from .openai_api import FINISH_TEXT, ApiError, usage
from .requests import Handle, NewTokens, RequestEnded


@dataclass(slots=True)
class Piece:
    """What one event adds to a choice."""

    index: int
    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish: str | None
    stop: str | int | None


@dataclass(slots=True)
class Choice:
    """One sample of an answer."""

    index: int
    tokenizer: ModelTokenizer
    output: OutputStream
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: str | None = None
    stop: str | int | None = None

    @classmethod
    def begin(cls, index: int, generation: Generation, tokenizer: ModelTokenizer) -> Choice:
        """An empty choice."""
        rules = stop_rules(generation, tokenizer)
        return cls(index, tokenizer, OutputStream(tokenizer.detokenizer(), rules))

    def take(self, event: NewTokens) -> Piece:
        """Add tokens; answers what is new."""
        text = ""
        for token in event.tokens:
            self.tokens.append(token)
            emitted = self.output.push(token)
            text += emitted.text
            if emitted.finish is not None:
                self.finish, self.stop = emitted.finish.value, emitted.stop
        if event.finish is not None and self.finish is None:
            self.finish = FINISH_TEXT.get(FinishReason(event.finish), "stop")
        self.text += text
        logprobs = decode_logprobs(event.logprobs)
        self.logprobs += logprobs
        self.prompt_logprobs += decode_logprobs(event.prompt_logprobs)
        return Piece(self.index, text, event.tokens, logprobs, self.finish, self.stop)


@dataclass(slots=True)
class Answer:
    """What came of one request so far."""

    handle: Handle
    choices: list[Choice]
    ended: RequestEnded | None = None

    @property
    def prompt(self) -> tuple[int, ...]:
        """The client's prompt."""
        return self.handle.submission.tokens

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs]:
        """Of the prompt's tokens but the first, when they were asked for."""
        return self.choices[0].prompt_logprobs

    @property
    def completion_tokens(self) -> int:
        """Generated tokens of all samples."""
        return sum(len(choice.tokens) for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        """Verified prompt rows that did not have to be computed."""
        return self.ended.cached_tokens if self.ended is not None else 0

    def headers(self) -> dict[str, str]:
        """The id under which the log knows the request."""
        return {"x-request-id": self.handle.submission.request}

    def check(self) -> None:
        """Raises ApiError unless the request has ended as it should."""
        verdict = self.ended.verdict if self.ended is not None else Verdict.FAILED
        if verdict is Verdict.TOO_LONG:
            raise ApiError("no worker's context and pages hold this request")
        if verdict is not Verdict.COMPLETED:
            raise ApiError(
                f"the request ended as {verdict.name.lower()} after "
                f"{self.completion_tokens} tokens; it may be sent again",
                status=503,
            )


def usage_of(answers: list[Answer]) -> dict[str, Any]:
    """``usage`` over the prompts of one call."""
    return usage(
        sum(len(answer.prompt) for answer in answers),
        sum(answer.completion_tokens for answer in answers),
        sum(answer.cached_tokens for answer in answers),
    )


def chunk(
    index: int,
    *,
    delta: dict[str, str] | None = None,
    text: str | None = None,
    logprobs: dict[str, Any] | None = None,
    piece: Piece | None = None,
) -> dict[str, Any]:
    """One element of a stream event's ``choices``."""
    made: dict[str, Any] = {"index": index, "logprobs": logprobs, "finish_reason": None}
    if delta is not None:
        made["delta"] = delta
    if text is not None:
        made["text"] = text
    if piece is not None and piece.finish is not None:
        made["finish_reason"] = piece.finish
        made |= stop_reason(piece)
    return made


def stop_reason(ended: Piece | Choice) -> dict[str, Any]:
    """``stop_reason``: the stop string or token that ended a sample, when one did."""
    return {} if ended.stop is None else {"stop_reason": ended.stop}


def chat_logprobs(
    tokenizer: ModelTokenizer, tokens: tuple[int, ...], logprobs: tuple[TokenLogprobs, ...]
) -> dict[str, Any] | None:
    """``choices[].logprobs`` of the chat endpoint."""
    if not logprobs:
        return None
    return {
        "content": [
            _chat_token(tokenizer, token, entry.logprob)
            | {"top_logprobs": [_chat_token(tokenizer, *pair) for pair in entry.top]}
            for token, entry in zip(tokens, logprobs, strict=False)
        ]
    }


def _chat_token(tokenizer: ModelTokenizer, token: int, logprob: float) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token)
    return {
        "token": raw.decode("utf-8", "replace"),
        "logprob": logprob,
        "bytes": list(raw),
    }


def completion_logprobs(
    tokenizer: ModelTokenizer,
    tokens: list[int],
    logprobs: list[TokenLogprobs | None],
    offset: int = 0,
) -> dict[str, Any] | None:
    """``choices[].logprobs`` of the completions endpoint; an entry of None is a prompt's first."""
    if not logprobs:
        return None
    texts = [tokenizer.token_bytes(token).decode("utf-8", "replace") for token in tokens]
    offsets = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [None if entry is None else entry.logprob for entry in logprobs],
        "top_logprobs": [
            None
            if entry is None
            else {
                tokenizer.token_bytes(token).decode("utf-8", "replace"): value
                for token, value in entry.top
            }
            for entry in logprobs
        ],
        "text_offset": offsets,
    }
