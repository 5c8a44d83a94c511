"""From a request's events to the text, log-probabilities and chunks of its answer.

One ``Choice`` per sample turns tokens into text with the engine's own stop rules, so what is
streamed and what is returned whole are the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pagetrail.catalog.kinds.worker import FinishReason
from pagetrail.engine.stopping import OutputStream
from pagetrail.engine.streams import Generation, TokenLogprobs, decode_logprobs, stop_rules
from pagetrail.engine.tokenizer import ModelTokenizer

from .openai_api import FINISH_TEXT
from .service import NewTokens


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
        return Piece(self.index, text, event.tokens, logprobs, self.finish, self.stop)


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
