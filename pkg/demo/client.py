"""The demo's HTTP client: streams one request and measures what its user would see."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

TIMEOUT_S = 180.0


@dataclass(slots=True)
class Reply:
    """What came back."""

    name: str
    request: str
    texts: list[str]
    finishes: list[str | None]
    ttft_s: float
    total_s: float
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    error: str | None = None
    chunk_times_s: list[float] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether it ended as it should."""
        return self.error is None and all(finish in ("stop", "length") for finish in self.finishes)


async def ask(
    client: httpx.AsyncClient,
    model: str,
    name: str,
    said: list[dict[str, str]],
    *,
    max_tokens: int,
    samples: int = 1,
    temperature: float = 0.0,
    first_token: Callable[[], None] | None = None,
) -> Reply:
    """Send one chat request and read its stream to the end."""
    body: dict[str, Any] = {
        "model": model,
        "messages": said,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "seed": 7,
        "n": samples,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started_s = time.monotonic()
    reply = Reply(name, "", [""] * samples, [None] * samples, 0.0, 0.0, 0, 0, 0)
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            reply.request = response.headers.get("x-request-id", "")
            if response.status_code != 200:
                await response.aread()
                reply.error = response.text[:300]
                return reply
            async for line in response.aiter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    reply.error = str(event["error"]["message"])
                    continue
                _take(reply, event, time.monotonic() - started_s, first_token)
    except httpx.HTTPError as error:
        reply.error = f"{type(error).__name__}: {error}"
    reply.total_s = time.monotonic() - started_s
    return reply


def _take(
    reply: Reply, event: dict[str, Any], at_s: float, first_token: Callable[[], None] | None
) -> None:
    for choice in event["choices"]:
        if choice["delta"].get("role"):
            continue
        if not reply.ttft_s:
            reply.ttft_s = at_s
            if first_token is not None:
                first_token()
        reply.chunk_times_s.append(at_s)
        reply.texts[choice["index"]] += choice["delta"].get("content", "")
        reply.finishes[choice["index"]] = choice["finish_reason"] or reply.finishes[choice["index"]]
    usage = event.get("usage")
    if usage:
        reply.prompt_tokens = usage["prompt_tokens"]
        reply.completion_tokens = usage["completion_tokens"]
        reply.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
