"""Helpers of the serving tests: requests, quiet, and transformers as the oracle."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
import transformers
from streams import generated

TINY_SETTINGS = (
    "worker.pages=80",
    "worker.page_tokens=16",
    "worker.chunk_tokens=128",
    "worker.context=1024",
    "worker.lanes=4",
    "worker.prefill_tile=64",
    "worker.step_rows=128",
    "worker.ram_bytes=0",
    "gateway.heartbeat_ms=50",
    "gateway.expiry_ms=2000",
)
WAIT_S = 60.0
TEXT = (Path(__file__).resolve().parents[2] / "LICENSE").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Oracle:
    """transformers' own generate: contiguous cache, fp32."""

    model: Any

    @classmethod
    def open(cls, directory: Path) -> Oracle:
        return cls(
            transformers.AutoModelForCausalLM.from_pretrained(
                directory, dtype=torch.float32, attn_implementation="eager"
            ).eval()
        )

    def greedy(self, prompt: list[int], new: int) -> list[int]:
        """The ``new`` greedy tokens after a prompt; the model's end token does not end them."""
        return generated(self.model, prompt, new)

    def logprobs(self, tokens: list[int]) -> list[float]:
        """log P(token i+1 | tokens before it), for every i."""
        with torch.inference_mode():
            logits = self.model(torch.tensor([tokens])).logits[0].double()
        rows = torch.log_softmax(logits, dim=-1)
        return [float(rows[place, token]) for place, token in enumerate(tokens[1:])]


def prompt_tokens(start: int, count: int, vocabulary: int = 512) -> list[int]:
    """A prompt of token ids, different for every start."""
    return [
        3 + (start * 7_919 + place * place * 31 + place) % (vocabulary - 3)
        for place in range(count)
    ]


def completion(client: httpx.Client, model: str, prompt: Any, **options: Any) -> dict[str, Any]:
    """``POST /v1/completions``, which must succeed; greedy and without end token by default."""
    body = {"model": model, "prompt": prompt, "temperature": 0, "ignore_eos": True} | options
    response = client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def state(client: httpx.Client) -> dict[str, Any]:
    """``GET /v1/cluster``."""
    answer: dict[str, Any] = client.get("/v1/cluster").json()
    return answer


def wait_until_settled(client: httpx.Client) -> dict[str, Any]:
    """Wait until nothing is open and the log has shown everything to everyone."""
    deadline = time.monotonic() + WAIT_S
    while True:
        seen = state(client)
        if seen["settled"]:
            return seen
        assert time.monotonic() < deadline, f"the cluster does not settle: {seen}"
        time.sleep(0.02)
