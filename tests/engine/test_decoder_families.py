"""Every family decodes through pages what transformers decodes with a contiguous cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from contiguous import ContiguousModel
from streams import Stream, all_logits, greedy, poison_all, tables
from tiny_models import reference

from pagetrail.engine.model import EngineModel, EngineOptions, RowSpec, load
from pagetrail.kernels.abi import Storage

PROMPT = (
    "Licensed under the Apache License, Version 2.0: you may not use this file except in "
    "compliance with the License. Unless required by applicable law or agreed to in writing, "
    "software distributed under the License is distributed on an AS IS BASIS."
)


def engine(
    directory: Path, *, page_tokens: int = 16, threads: int = 1, pages: int = 96
) -> EngineModel:
    options = EngineOptions(pages=pages, page_tokens=page_tokens, threads=threads)
    model = load(str(directory), options)
    poison_all(model)
    return model


def prompts(model: EngineModel) -> list[list[int]]:
    words = PROMPT.split(" ")
    texts = [PROMPT, " ".join(words[5:20]), " ".join(words[3:4]), " ".join(words[10:])]
    return [model.tokenizer.encode(text) for text in texts]


def test_logits_of_every_row_equal_the_reference(
    family: str, tiny_model: Callable[[str], Path]
) -> None:
    directory = tiny_model(family)
    model = engine(directory)
    tokens = prompts(model)[0]
    assert len(tokens) > 90
    with torch.inference_mode():
        want = reference(directory)(torch.tensor([tokens])).logits[0].numpy()
    got = all_logits(model, Stream(tables(model, 0, 24), tokens), chunk=48)
    scale = float(np.abs(want).max())
    assert float(np.abs(got - want).max()) < 2e-5 * scale


def test_greedy_tokens_of_a_mixed_batch_equal_generate(
    family: str, tiny_model: Callable[[str], Path]
) -> None:
    directory = tiny_model(family)
    model = engine(directory)
    streams = greedy(model, prompts(model), new=20, chunk=48)
    oracle = reference(directory)
    for prompt, stream in zip(prompts(model), streams, strict=True):
        with torch.inference_mode():
            want = oracle.generate(
                torch.tensor([prompt]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                max_new_tokens=20,
                min_new_tokens=20,
                do_sample=False,
                eos_token_id=None,
            )[0, len(prompt) :].tolist()
        assert stream.out == want, f"smallest gap {stream.gap}"


def test_logits_have_the_same_bits_whatever_the_batch_the_chunks_the_pages_and_the_threads(
    family: str, tiny_model: Callable[[str], Path]
) -> None:
    directory = tiny_model(family)
    model = engine(directory)
    first, *others = prompts(model)
    want = all_logits(model, Stream(tables(model, 0, 24), list(first)), chunk=len(first))

    def same(other: EngineModel, chunk: int, seed: int = 0) -> None:
        stream = Stream(tables(other, 0, 24, seed), list(first))
        np.testing.assert_array_equal(
            all_logits(other, stream, chunk).view(np.uint32), want.view(np.uint32)
        )

    same(model, chunk=1)
    same(model, chunk=7)
    same(model, chunk=64, seed=9)
    same(engine(directory, page_tokens=32, pages=48), chunk=50)
    same(engine(directory, threads=2), chunk=33, seed=4)

    solo = [greedy(model, [prompt], new=8)[0].out for prompt in (first, *others)]
    together = greedy(model, [first, *others], new=8, chunk=40, seed=3)
    assert [stream.out for stream in together] == solo


def test_logits_of_some_rows_are_those_rows_of_all(
    family: str, tiny_model: Callable[[str], Path]
) -> None:
    model = engine(tiny_model(family))
    tokens, *_ = prompts(model)
    want = all_logits(model, Stream(tables(model, 0, 24), list(tokens)), chunk=len(tokens))
    poison_all(model)
    for wanted in (0, 1, 3):  # of the last rows of each chunk: the pages are complete all the same
        stream, at = Stream(tables(model, 0, 24, seed=wanted), list(tokens)), 0
        while at < len(tokens):
            spec = stream.rows(10, wanted=min(wanted, len(tokens) - at))
            got = model.step([spec])
            at = stream.processed = at + len(spec.tokens)
            np.testing.assert_array_equal(
                got.view(np.uint32), want[at - spec.wanted : at].view(np.uint32)
            )


def test_logits_have_the_same_bits_as_over_contiguous_keys_and_values(
    family: str, tiny_model: Callable[[str], Path]
) -> None:
    directory = tiny_model(family)
    paged, contiguous = engine(directory), ContiguousModel(directory, context=256, sequences=4)
    streams = [Stream(tables(paged, i, 24, 7), p) for i, p in enumerate(prompts(paged))]
    while running := [stream for stream in streams if len(stream.out) < 12]:
        rows = [stream.rows(40) for stream in running]
        got, want = paged.step(rows), contiguous.step(rows)
        np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))
        at = 0
        for stream, row in zip(running, rows, strict=True):
            stream.accept(row, got[at : at + row.wanted])
            at += row.wanted


def test_a_stream_whose_pages_were_moved_goes_on_with_the_same_bits(
    family: str, tiny_model: Callable[[str], Path]
) -> None:
    model = engine(tiny_model(family), pages=60)
    tokens = prompts(model)[0]
    here, there = tables(model, 0, 20), tables(model, 1, 20)
    model.step([RowSpec(here, 0, tokens[:-5])])
    for group, (old, new) in enumerate(zip(here, there, strict=True)):
        for source, target in zip(old.page_ids, new.page_ids, strict=True):
            model.copy_page(int(source), int(target), group)
    rest = tokens[-5:]
    start = len(tokens) - 5
    moved = model.step([RowSpec(there, start, rest, wanted=5)])
    original = model.step([RowSpec(here, start, rest, wanted=5)])
    np.testing.assert_array_equal(moved.view(np.uint32), original.view(np.uint32))


@pytest.mark.parametrize("storage", list(Storage))
@pytest.mark.parametrize("fast", [False, True])
def test_every_weight_storage_and_mode_stays_near_the_reference(
    tiny_model: Callable[[str], Path], storage: Storage, fast: bool
) -> None:
    directory = tiny_model("llama")
    options = EngineOptions(pages=64, weight_storage=storage, kv_storage=storage, fast=fast)
    model = load(str(directory), options)
    tokens = prompts(model)[0]
    with torch.inference_mode():
        want = reference(directory)(torch.tensor([tokens])).logits[0].numpy()
    got = all_logits(model, Stream(tables(model, 0, 24), tokens), chunk=48)
    tolerance = {Storage.F32: 2e-6, Storage.F16: 3e-3, Storage.BF16: 3e-2}[storage]
    assert np.linalg.norm(got - want) / np.linalg.norm(want) < tolerance
