"""The whole engine over the CUDA kernels, which the host emulator runs.

Twice: pages and attention alone, with the CPU's row math, and the whole step as a card runs it
(row math by torch, decode steps captured), driven against recording stand-ins of its drivers.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from streams import greedy, poison_all
from tiny_models import FAMILIES, save_tiny

from pagetrail.catalog.errors import BadInputError
from pagetrail.engine import card_steps
from pagetrail.engine.card_experts import shares_of
from pagetrail.engine.descriptor import MoeSpec, Scoring
from pagetrail.engine.layers import route
from pagetrail.engine.model import (
    EngineModel,
    EngineOptions,
    PageTable,
    RowSpec,
    assemble,
    load,
    model_facts,
)
from pagetrail.engine.weights import open_model
from pagetrail.kernels.abi import Storage
from pagetrail.kernels.compiler import COMPILERS
from pagetrail.kernels.cpu_open import open_cpu
from pagetrail.kernels.cuda_device import CudaOptions
from pagetrail.kernels.cuda_runtime import CudaRuntime
from pagetrail.kernels.cuda_step import CudaStepDevice
from pagetrail.kernels.emulator.device import EmulatedDevice
from pagetrail.kernels.emulator.library import HostLauncher
from pagetrail.kernels.split_device import SplitDevice

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cuda"))
from recording_driver import Recorder, RecordingCupy, RecordingTorch

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="the emulator needs a C++ compiler"
)

TEXTS = ("Licensed under the Apache License, Version 2.0: you may not use", "the License", "a")
NEW_TOKENS = 12
CARD = CudaOptions(
    batch_bytes_max=1 << 18, partial_values_max=1 << 20, pinned_buffers=2, pinned_bytes=1 << 16
)
# Heads of 64 are the narrowest that the tensor-core kernels take.
WIDE = {"llama": 64, "llama3-rope": 64, "mistral": 64, "qwen3": 64, "qwen3-moe": 64, "gemma3": 64}


def emulated(directory: Path, options: EngineOptions, *, reference: bool) -> EngineModel:
    """As ``load``, with pages and attention on the emulated kernels."""
    pages = EmulatedDevice(HostLauncher(), reference=reference)
    device = SplitDevice(pages, open_cpu(options.threads).device, "emulated")
    facts = model_facts(str(directory), options)
    return assemble(facts, open_model(str(directory), None), device, options)


def on_card(directory: Path, options: EngineOptions, recorder: Recorder) -> EngineModel:
    """As ``load`` with a card, whose drivers are the recording stand-ins."""
    facts = model_facts(str(directory), options)
    cupy, fake = RecordingCupy(recorder), RecordingTorch(recorder)
    device = CudaStepDevice(CudaRuntime(cupy, fake, compiled=recorder.compiled), CARD)
    return assemble(facts, open_model(str(directory), None), device, replace(options, card=0))


def tokens_of(model: EngineModel) -> list[list[int]]:
    prompts = [model.tokenizer.encode(text) for text in TEXTS]
    return [stream.out for stream in greedy(model, prompts, new=NEW_TOKENS, chunk=24)]


def saved(family: str, directory: Path) -> EngineOptions:
    """A tiny model of the family, and fp16 pages where tensor cores serve it, else fp32."""
    save_tiny(family, directory, **({"head_dim": WIDE[family]} if family in WIDE else {}))
    fast = family in WIDE or family == "deepseek-v3"
    return EngineOptions(
        pages=64,
        page_tokens=16,
        context=512,
        kv_storage=Storage.F16 if fast else Storage.F32,
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_over_the_kernels_equal_the_cpu_path(family: str, tmp_path: Path) -> None:
    options = saved(family, tmp_path)
    outputs = []
    for model in (load(str(tmp_path), options), emulated(tmp_path, options, reference=False)):
        poison_all(model)
        outputs.append(tokens_of(model))
    assert outputs[0] == outputs[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_tokens_of_a_card_s_steps_equal_the_cpu_path(family: str, tmp_path: Path) -> None:
    options = saved(family, tmp_path)
    recorder = Recorder()
    card = on_card(tmp_path, options, recorder)
    poison_all(card)
    assert tokens_of(card) == tokens_of(load(str(tmp_path), options))
    replays = [call for call in recorder.calls if call[0] == "replay"]
    captures = [call for call in recorder.calls if call[0] == "capture"]
    assert set(replays) == {("replay", "compute")}
    assert len(captures) <= 3 < len(replays)  # graphs of 1, 2 and 4 rows at most


def test_a_captured_decode_step_gives_the_logits_of_an_eager_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Captured short and replayed over lengths that are split, padded and on other pages."""
    options = saved("llama", tmp_path)
    options = replace(options, pages=128, context=900)
    recorder = Recorder()
    captured, eager = on_card(tmp_path, options, recorder), on_card(tmp_path, options, Recorder())
    rng = np.random.default_rng(0)
    tables = [PageTable(ids.astype(np.int32)) for ids in rng.permutation(128).reshape(2, 64)]
    lengths = [0, 0]
    for step in ((1, 3), (600, 1), (1, 1), (1, 0), (1, 1)):
        specs = [
            RowSpec((table,), lengths[i], rng.integers(3, 500, n).tolist())
            for i, (table, n) in enumerate(zip(tables, step, strict=True))
            if n
        ]
        lengths = [length + n for length, n in zip(lengths, step, strict=True)]
        got = captured.step(specs)
        with monkeypatch.context() as patched:
            patched.setattr(card_steps, "CAPTURED_ROWS_MAX", 0)
            want = eager.step(specs)
        assert np.abs(got - want).max() < 2e-5
    assert ("replay", "compute") in recorder.calls


def test_pages_captured_on_a_card_are_restored_bit_for_bit(tmp_path: Path) -> None:
    options = saved("gemma3", tmp_path)
    card = on_card(tmp_path, options, Recorder())
    tokens_of(card)
    table = np.array([3, 60, 17, 9], np.int32)
    for group in range(len(card.arena.groups)):
        payload = card.capture(table, 5, 50, group)
        moved = np.array([8, 1, 33, 40], np.int32)
        card.restore(moved, 5, 50, payload, group)
        assert card.capture(moved, 5, 50, group) == payload


@pytest.mark.parametrize("scoring", list(Scoring))
@pytest.mark.parametrize("groups", [1, 4])
def test_experts_chosen_on_a_card_are_those_of_the_cpu(scoring: Scoring, groups: int) -> None:
    spec = MoeSpec(16, 4, 8, scoring, True, groups=groups, chosen_groups=2, scale=1.5)
    rng = np.random.default_rng(1)
    logits = rng.standard_normal((40, 16)).astype(np.float32)
    logits[:5] = 0.0  # ties
    bias = rng.standard_normal(16).astype(np.float32)
    chosen, shares = route(logits, spec, bias)
    want = np.zeros((40, 16), np.float32)
    np.put_along_axis(want, chosen, shares, axis=1)
    got = shares_of(torch.from_numpy(logits), spec, torch.from_numpy(bias)).numpy()
    assert ((got > 0) == (want > 0)).all()
    assert np.allclose(got, want, rtol=1e-6, atol=0)


def test_a_card_that_is_not_there_is_refused_with_a_reason(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a card here")
    save_tiny("llama", tmp_path)
    with pytest.raises(BadInputError, match=r"card 0: .*(not installed|sees no card)"):
        load(str(tmp_path), EngineOptions(pages=4, card=0))
