"""The requests and answers of the OpenAI-compatible surface, as values.

Owns reading and checking of request bodies and the shapes of answers; no socket, no model. What is
absent is not zero, an unknown option is ignored as clients expect, and an option that would change
the answer and is not supported is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.worker import FinishReason
from pagetrail.engine.sampling import SamplingParams, parse_logit_bias
from pagetrail.engine.stopping import STOP_CHARS_MAX, STOP_STRINGS_MAX
from pagetrail.engine.streams import Generation

DEFAULT_MAX_NEW_TOKENS = 4_096  # of a chat
COMPLETION_MAX_NEW_TOKENS = 16  # of a completion, as its clients expect
TOKENS_MAX = 1 << 30
SALT_CHARS_MAX = 1_024
PRIORITY_MAX = 1_000_000
SAMPLES_MAX = 16
PROMPTS_MAX = 64
BODY_BYTES_MAX = 8 * 1024 * 1024


class ApiError(BadInputError):
    """An answer of status ``status`` in the API's error form."""

    def __init__(
        self, message: str, *, status: int = 400, param: str | None = None, code: str = ""
    ):
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code or {
            400: "invalid_request_error",
            401: "invalid_api_key",
            404: "not_found",
            413: "request_too_large",
            503: "overloaded",
        }.get(status, "internal_error")

    def body(self) -> dict[str, Any]:
        """The JSON body."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {
            "error": {
                "message": str(self),
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }


class StreamOptions(msgspec.Struct):
    """``stream_options``."""

    include_usage: bool = False


class Common(msgspec.Struct, kw_only=True):
    """Options of both endpoints."""

    model: str
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=SAMPLES_MAX)] = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    min_tokens: Annotated[int, Meta(ge=0, le=TOKENS_MAX)] = 0
    max_tokens: Annotated[int, Meta(ge=1, le=TOKENS_MAX)] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=SALT_CHARS_MAX)] | None = None
    priority: Annotated[int, Meta(ge=-PRIORITY_MAX, le=PRIORITY_MAX)] = 0


class TextPart(msgspec.Struct):
    """One part of a message's content."""

    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct):
    """One message."""

    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """As a chat template reads it."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text for part in content)
        return {"role": self.role, "content": content or ""}


class ChatRequest(Common, kw_only=True):
    """``POST /v1/chat/completions``."""

    messages: list[ChatMessage]
    max_completion_tokens: Annotated[int, Meta(ge=1, le=TOKENS_MAX)] | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: list[Any] | None = None
    response_format: dict[str, Any] | None = None


class CompletionRequest(Common, kw_only=True):
    """``POST /v1/completions``."""

    prompt: str | list[str | int | list[int]]
    echo: bool = False
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    suffix: str | None = None
    best_of: int | None = None


_CHAT = msgspec.json.Decoder(ChatRequest)
_COMPLETION = msgspec.json.Decoder(CompletionRequest)


def read_chat(body: bytes) -> ChatRequest:
    """Raises ApiError."""
    request: ChatRequest = _read(body, _CHAT)
    if not request.messages:
        raise ApiError("messages must hold at least one message", param="messages")
    if request.tools:
        raise ApiError("tools are not supported by this server", param="tools")
    kind = (request.response_format or {}).get("type", "text")
    if kind != "text":
        raise ApiError(
            f"response_format {kind!r} is not supported; only text is", param="response_format"
        )
    return request


def read_completion(body: bytes) -> CompletionRequest:
    """Raises ApiError."""
    request: CompletionRequest = _read(body, _COMPLETION)
    if request.suffix:
        raise ApiError("suffix is not supported by this server", param="suffix")
    if request.best_of is not None and request.best_of != request.n:
        raise ApiError("best_of other than n is not supported by this server", param="best_of")
    return request


def _read(body: bytes, decoder: msgspec.json.Decoder[Any]) -> Any:
    if len(body) > BODY_BYTES_MAX:
        raise ApiError(
            f"the body has {len(body)} bytes; at most {BODY_BYTES_MAX} are read", status=413
        )
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        text = str(error)
        place = text.rpartition("`$.")[2].rstrip("`") if "`$." in text else None
        raise ApiError(text, param=place) from error
    except msgspec.DecodeError as error:
        raise ApiError(f"the body is not valid JSON: {error}") from error


def prompts_of(request: CompletionRequest) -> list[str | list[int]]:
    """The prompts of a completion request, one or many."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return [prompt]
    tokens = [item for item in prompt if isinstance(item, int)]
    if tokens and len(tokens) == len(prompt):
        return [tokens]
    several = [item for item in prompt if isinstance(item, str | list)]
    if not several or len(several) != len(prompt) or len({type(item) for item in several}) > 1:
        raise ApiError(
            "prompt must be a text, a list of texts, a list of token ids or a list of such lists",
            param="prompt",
        )
    if len(several) > PROMPTS_MAX:
        raise ApiError(f"at most {PROMPTS_MAX} prompts in one request", param="prompt")
    return several


def generation_of(
    request: ChatRequest | CompletionRequest,
    *,
    prompt_tokens: int,
    context_tokens: int,
    vocabulary: int,
    logprobs: int | None,
    fresh_seed: int,
) -> Generation:
    """The engine's options. Raises ApiError for values it cannot use.

    ``logprobs``: of so many of the best tokens; None: none. ``fresh_seed`` is used when the
    request gives none.
    """
    room = context_tokens - prompt_tokens
    if room < 1:
        raise ApiError(
            f"the prompt has {prompt_tokens} tokens and the model's context is {context_tokens}; "
            "shorten the prompt to leave room for at least one new token",
            code="context_length_exceeded",
        )
    if isinstance(request, ChatRequest):
        name, usual = "max_completion_tokens", DEFAULT_MAX_NEW_TOKENS
        asked = request.max_completion_tokens or request.max_tokens
    else:
        name, usual = "max_tokens", COMPLETION_MAX_NEW_TOKENS
        asked = request.max_tokens
    if asked is not None and asked > room:
        raise ApiError(
            f"{name} {asked} and a prompt of {prompt_tokens} tokens pass the model's "
            f"context of {context_tokens}; ask for at most {room}",
            param=name,
            code="context_length_exceeded",
        )
    stop = request.stop
    strings = [stop] if isinstance(stop, str) else list(stop or ())
    if len(strings) > STOP_STRINGS_MAX or not all(
        0 < len(text) <= STOP_CHARS_MAX for text in strings
    ):
        raise ApiError(
            f"stop takes up to {STOP_STRINGS_MAX} strings of 1 to {STOP_CHARS_MAX} characters",
            param="stop",
        )
    echoes = isinstance(request, CompletionRequest) and request.echo
    return Generation(
        params=_sampling(request, vocabulary, logprobs, fresh_seed),
        stop_strings=tuple(strings),
        stop_tokens=_token_ids(request.stop_token_ids or (), vocabulary, "stop_token_ids"),
        ignore_eos=request.ignore_eos,
        min_tokens=request.min_tokens,
        max_tokens=min(usual, room) if asked is None else asked,
        prompt_logprobs=logprobs if echoes else None,
    )


def _sampling(
    request: Common, vocabulary: int, logprobs: int | None, fresh_seed: int
) -> SamplingParams:
    top_k = request.top_k or 0
    try:
        bias = parse_logit_bias(request.logit_bias or {})
        _token_ids([token for token, _ in bias], vocabulary, "logit_bias")
        return SamplingParams(
            temperature=_given(request.temperature, 1.0),
            top_k=0 if top_k == -1 else top_k,  # both mean every token
            top_p=_given(request.top_p, 1.0),
            min_p=_given(request.min_p, 0.0),
            presence_penalty=_given(request.presence_penalty, 0.0),
            frequency_penalty=_given(request.frequency_penalty, 0.0),
            repetition_penalty=_given(request.repetition_penalty, 1.0),
            logit_bias=bias,
            seed=fresh_seed if request.seed is None else request.seed % 2**64,
            logprobs=logprobs,
        )
    except ApiError:
        raise
    except BadInputError as error:
        raise ApiError(str(error)) from error


def _token_ids(ids: Sequence[int], vocabulary: int, name: str) -> tuple[int, ...]:
    for token in ids:
        if not 0 <= token < vocabulary:
            raise ApiError(
                f"{name} names token {token}; the model's are 0 to {vocabulary - 1}", param=name
            )
    return tuple(ids)


def _given(value: float | None, default: float) -> float:
    return default if value is None else value


FINISH_TEXT = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
}


def usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """``usage``; cached are only rows that were verified and not computed again."""
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": cached_tokens},
    }
