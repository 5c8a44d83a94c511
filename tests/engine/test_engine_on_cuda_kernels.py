"""The whole engine over the CUDA kernels, which the host emulator runs."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from streams import greedy, poison_all
from tiny_models import save_tiny

from pagetrail.engine.arena import Arena
from pagetrail.engine.decoder import Decoder
from pagetrail.engine.model import EngineModel, EngineOptions, load, model_facts
from pagetrail.engine.model_weights import load_weights
from pagetrail.engine.weights import open_model
from pagetrail.kernels.abi import Storage
from pagetrail.kernels.cpu_open import open_cpu
from pagetrail.kernels.emulator.device import EmulatedDevice
from pagetrail.kernels.emulator.library import HostLauncher
from pagetrail.kernels.native_build import COMPILERS
from pagetrail.kernels.split_device import SplitDevice

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="the emulator needs a C++ compiler"
)

TEXTS = ("Licensed under the Apache License, Version 2.0: you may not use", "the License", "a")
NEW_TOKENS = 12


def emulated(directory: Path, options: EngineOptions, *, reference: bool) -> EngineModel:
    """As ``load``, with pages and attention on the emulated kernels."""
    pages = EmulatedDevice(HostLauncher(), reference=reference)
    device = SplitDevice(pages, open_cpu(options.threads).device, "emulated")
    facts = model_facts(str(directory), options)
    groups = facts.descriptor.groups(options.kv_storage)
    arena = Arena(device, groups, (options.pages,) * len(groups), options.page_tokens)
    weights = load_weights(
        open_model(str(directory), None), facts.descriptor, device, options.weight_storage
    )
    layers = [group.layers for group in groups]
    decoder = Decoder(device, facts.descriptor, weights, layers, facts.context)
    return EngineModel(facts, device, decoder, arena, None)


@pytest.mark.parametrize(
    ("family", "changes", "storage"),
    [
        pytest.param("llama", {"head_dim": 64}, Storage.F16, id="gqa-tensor-cores"),
        pytest.param("mistral", {"head_dim": 64}, Storage.F16, id="window-tensor-cores"),
        pytest.param("qwen2", {}, Storage.F32, id="gqa-reference"),
    ],
)
def test_greedy_tokens_equal_the_cpu_path(
    family: str, changes: dict[str, int], storage: Storage, tmp_path: Path
) -> None:
    save_tiny(family, tmp_path, **changes)
    options = EngineOptions(pages=64, page_tokens=16, kv_storage=storage)
    outputs = []
    for model in (
        load(str(tmp_path), options),
        emulated(tmp_path, options, reference=storage is Storage.F32),
    ):
        poison_all(model)
        prompts = [model.tokenizer.encode(text) for text in TEXTS]
        outputs.append([stream.out for stream in greedy(model, prompts, new=NEW_TOKENS, chunk=24)])
    assert outputs[0] == outputs[1]
