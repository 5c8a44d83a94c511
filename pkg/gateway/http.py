"""The HTTP surface: `/v1/chat/completions`, `/v1/completions`, `/v1/models`, `/v1/cluster`,
`/health`, `/version`.

Owns routes, streaming and keys. It turns bodies into submissions and events into answers; a client
that goes away cancels its request. Nothing is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

import pagetrail
from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.identity import tenant_salt
from pagetrail.engine.streams import Generation
from pagetrail.engine.tokenizer import ModelTokenizer

from .answers import (
    Answer,
    Choice,
    Piece,
    chat_logprobs,
    chunk,
    completion_logprobs,
    stop_reason,
    usage_of,
)
from .openai_api import (
    ApiError,
    ChatRequest,
    Common,
    CompletionRequest,
    generation_of,
    prompts_of,
    read_chat,
    read_completion,
)
from .requests import BusyError, NewTokens, Submission
from .service import RouterService

DISCONNECT_POLL_S = 0.2
SSE = "text/event-stream; charset=utf-8"
_JSON = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class Served:
    """What this gateway serves."""

    name: str
    context_tokens: int
    tokenizer: ModelTokenizer
    created: int


class Surface:
    """The handlers. ``keys``: API keys, each with its tenant; empty: none is asked for."""

    def __init__(self, router: RouterService, served: Served, keys: Mapping[str, str]) -> None:
        self._router = router
        self._served = served
        self._keys = keys

    def app(self) -> Starlette:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._guarded(self.chat), methods=["POST"]),
                Route("/v1/completions", self._guarded(self.completions), methods=["POST"]),
                Route("/v1/models", self._guarded(self.models), methods=["GET"]),
                Route("/v1/models/{name:path}", self._guarded(self.model), methods=["GET"]),
                Route("/v1/cluster", self._guarded(self.cluster), methods=["GET"]),
                Route("/health", self.health, methods=["GET"]),
                Route("/version", self.version, methods=["GET"]),
            ]
        )

    def _guarded(
        self, handler: Callable[[Request], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                request.state.tenant = self._tenant(request)
                return await handler(request)
            except ApiError as error:
                return _json(error.body(), status=error.status)
            except BusyError as error:
                return _json(ApiError(str(error), status=503).body(), status=503)
            except BadInputError as error:
                return _json(ApiError(str(error)).body(), status=400)

        return guarded

    def _tenant(self, request: Request) -> str:
        """Whose key a request brings. Raises ApiError when one is needed and it brings none."""
        if not self._keys:
            return ""
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        found = [
            tenant
            for key, tenant in self._keys.items()
            if hmac.compare_digest(given.encode(), key.encode())
        ]
        if scheme.lower() != "bearer" or not found:
            raise ApiError("a valid API key is needed: Authorization: Bearer KEY", status=401)
        return found[0]

    # ---- small ones

    async def health(self, request: Request) -> Response:
        """200 while requests can be taken."""
        return Response(status_code=503 if self._router.failure is not None else 200)

    async def version(self, request: Request) -> Response:
        """The program's version."""
        return _json({"version": pagetrail.__version__})

    async def models(self, request: Request) -> Response:
        """The one model."""
        return _json({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        """One model by name."""
        self._check_model(request.path_params["name"])
        return _json(self._model())

    async def cluster(self, request: Request) -> Response:
        """Workers, open requests, and whether everything has settled."""
        return _json(self._router.state())

    def _model(self) -> dict[str, Any]:
        return {
            "id": self._served.name,
            "object": "model",
            "created": self._served.created,
            "owned_by": "pagetrail",
            "max_model_len": self._served.context_tokens,
        }

    def _check_model(self, name: str) -> None:
        if name != self._served.name:
            raise ApiError(
                f"the model {name!r} is not served here; served is {self._served.name!r}",
                status=404,
                param="model",
                code="model_not_found",
            )

    # ---- chat

    async def chat(self, request: Request) -> Response:
        """``POST /v1/chat/completions``."""
        body = read_chat(await request.body())
        self._check_model(body.model)
        tokens = self._served.tokenizer.encode_chat([message.plain() for message in body.messages])
        wanted = None
        if body.logprobs or body.top_logprobs is not None:
            wanted = body.top_logprobs or 0
        generation = self._generation(body, len(tokens), wanted)
        answer = await self._submit(request, body, tokens, generation)
        identity = f"chatcmpl-{secrets.token_hex(12)}"
        if body.stream:
            return StreamingResponse(
                self._chat_stream(identity, body, answer),
                media_type=SSE,
                headers=answer.headers(),
            )
        await self._finish(request, answer)
        choices = [
            {
                "index": choice.index,
                "message": {"role": "assistant", "content": choice.text},
                "logprobs": chat_logprobs(
                    self._served.tokenizer, tuple(choice.tokens), tuple(choice.logprobs)
                ),
                "finish_reason": choice.finish,
            }
            | stop_reason(choice)
            for choice in answer.choices
        ]
        tail = {"choices": choices, "usage": usage_of([answer])}
        return _json(self._head(identity, "chat.completion", body) | tail, answer.headers())

    async def _chat_stream(
        self, identity: str, body: ChatRequest, answer: Answer
    ) -> AsyncIterator[bytes]:
        head = self._head(identity, "chat.completion.chunk", body)
        for choice in answer.choices:
            delta = {"role": "assistant", "content": ""}
            yield _event(head | {"choices": [chunk(choice.index, delta=delta)]})
        async for piece in self._pieces(answer):
            logprobs = chat_logprobs(self._served.tokenizer, piece.tokens, piece.logprobs)
            delta = {"content": piece.text}
            made = chunk(piece.index, delta=delta, logprobs=logprobs, piece=piece)
            yield _event(head | {"choices": [made]})
        for last in self._closing(head, body, answer):
            yield last

    # ---- completions

    async def completions(self, request: Request) -> Response:
        """``POST /v1/completions``."""
        body = read_completion(await request.body())
        self._check_model(body.model)
        prompts = [self._prompt_tokens(prompt) for prompt in prompts_of(body)]
        if body.stream and (body.echo or len(prompts) > 1):
            raise ApiError("stream takes one prompt, without echo", param="stream")
        generations = [self._generation(body, len(tokens), body.logprobs) for tokens in prompts]
        answers: list[Answer] = []
        identity = f"cmpl-{secrets.token_hex(12)}"
        try:
            for tokens, generation in zip(prompts, generations, strict=True):
                place = len(answers) * body.n
                answers.append(await self._submit(request, body, tokens, generation, place))
            if not body.stream:
                for answer in answers:
                    await self._finish(request, answer)
        except BaseException:
            for answer in answers:
                await asyncio.shield(self._router.cancel(answer.handle))
            raise
        if body.stream:
            return StreamingResponse(
                self._completion_stream(identity, body, answers[0]),
                media_type=SSE,
                headers=answers[0].headers(),
            )
        choices = [
            self._completion_choice(body, answer, choice)
            for answer in answers
            for choice in answer.choices
        ]
        tail = {"choices": choices, "usage": usage_of(answers)}
        return _json(self._head(identity, "text_completion", body) | tail, answers[0].headers())

    def _prompt_tokens(self, prompt: str | list[int]) -> list[int]:
        tokens = prompt if isinstance(prompt, list) else self._served.tokenizer.encode(prompt)
        if not tokens:
            raise ApiError("the prompt has no tokens", param="prompt")
        if any(not 0 <= token < self._served.tokenizer.vocabulary for token in tokens):
            raise ApiError("a prompt token is outside the vocabulary", param="prompt")
        return tokens

    def _completion_choice(
        self, body: CompletionRequest, answer: Answer, choice: Choice
    ) -> dict[str, Any]:
        text, tokens = choice.text, list(choice.tokens)
        logprobs: list[Any] = list(choice.logprobs)
        if body.echo:
            text = self._served.tokenizer.decode(list(answer.prompt)) + text
            if body.logprobs is not None:
                tokens = [*answer.prompt, *tokens]
                logprobs = [None, *answer.prompt_logprobs, *logprobs]
        return {
            "index": choice.index,
            "text": text,
            "logprobs": completion_logprobs(self._served.tokenizer, tokens, logprobs),
            "finish_reason": choice.finish,
        } | stop_reason(choice)

    async def _completion_stream(
        self, identity: str, body: CompletionRequest, answer: Answer
    ) -> AsyncIterator[bytes]:
        head = self._head(identity, "text_completion", body)
        async for piece in self._pieces(answer):
            logprobs = completion_logprobs(
                self._served.tokenizer, list(piece.tokens), list(piece.logprobs)
            )
            made = chunk(piece.index, text=piece.text, logprobs=logprobs, piece=piece)
            yield _event(head | {"choices": [made]})
        for last in self._closing(head, body, answer):
            yield last

    # ---- shared

    def _generation(
        self, body: ChatRequest | CompletionRequest, prompt_tokens: int, logprobs: int | None
    ) -> Generation:
        return generation_of(
            body,
            prompt_tokens=prompt_tokens,
            context_tokens=self._served.context_tokens,
            vocabulary=self._served.tokenizer.vocabulary,
            logprobs=logprobs,
            fresh_seed=secrets.randbits(63),
        )

    async def _submit(
        self,
        request: Request,
        body: Common,
        tokens: list[int],
        generation: Generation,
        first_index: int = 0,
    ) -> Answer:
        tenant: str = request.state.tenant
        salt = None if body.cache_salt is None else body.cache_salt.encode()
        handle = await self._router.submit(
            Submission(
                request=f"req-{secrets.token_hex(8)}",
                tenant=tenant,
                salt=tenant_salt(tenant, salt),
                priority=body.priority,
                tokens=tuple(tokens),
                generation=generation,
                samples=body.n,
            )
        )
        choices = [
            Choice.begin(first_index + sample, generation, self._served.tokenizer)
            for sample in range(body.n)
        ]
        return Answer(handle, choices)

    async def _pieces(self, answer: Answer) -> AsyncIterator[Piece]:
        """The answer's pieces as they come; leaving early cancels the request."""
        try:
            async for event in answer.handle.stream():
                if isinstance(event, NewTokens):
                    yield answer.choices[event.sample].take(event)
                else:
                    answer.ended = event
        finally:
            if answer.ended is None:
                await asyncio.shield(self._router.cancel(answer.handle))

    async def _finish(self, request: Request, answer: Answer) -> None:
        """Run an answer to its end, or cancel it when the client has gone away."""

        async def run() -> None:
            async for _ in self._pieces(answer):
                pass

        task = asyncio.create_task(run())
        while not task.done():
            await asyncio.wait({task}, timeout=DISCONNECT_POLL_S)
            if not task.done() and await request.is_disconnected():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                raise ApiError("the client went away", status=499)
        task.result()
        answer.check()

    def _head(self, identity: str, kind: str, body: Common) -> dict[str, Any]:
        return {"id": identity, "object": kind, "created": int(time.time()), "model": body.model}

    def _closing(self, head: dict[str, Any], body: Common, answer: Answer) -> list[bytes]:
        """The last events of a stream."""
        events = []
        try:
            answer.check()
        except ApiError as error:
            events.append(_event(error.body()))
        if body.stream_options is not None and body.stream_options.include_usage:
            events.append(_event(head | {"choices": [], "usage": usage_of([answer])}))
        events.append(b"data: [DONE]\n\n")
        return events


def _event(value: dict[str, Any]) -> bytes:
    return b"data: " + _JSON.encode(value) + b"\n\n"


def _json(
    value: dict[str, Any], headers: dict[str, str] | None = None, status: int = 200
) -> Response:
    return Response(
        _JSON.encode(value), status_code=status, headers=headers, media_type="application/json"
    )
