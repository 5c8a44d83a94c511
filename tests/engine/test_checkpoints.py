"""Opening models: every form gives the same tensors, and every broken one says what to do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_torch

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.engine.checkpoint import MissingModelError, digest_files, open_checkpoint
from pagetrail.engine.families import describe
from pagetrail.engine.model import EngineOptions, load
from pagetrail.engine.weights import open_model

Maker = Callable[[str], Path]


@pytest.fixture
def copy(tiny_model: Maker, tmp_path: Path) -> Path:
    target = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), target)
    return target


def edit_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_shards_hold_the_same_tensors_as_one_file(copy: Path) -> None:
    whole = open_checkpoint(copy)
    tensors = load_file(copy / "model.safetensors")
    want = {name: whole.tensor(name) for name in tensors}
    names = sorted(tensors)
    weight_map = {}
    for index, part in enumerate((names[::2], names[1::2])):
        file = f"model-{index + 1:05d}-of-00002.safetensors"
        save_file({name: tensors[name] for name in part}, copy / file)
        weight_map |= dict.fromkeys(part, file)
    (copy / "model.safetensors").unlink()
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    sharded = open_checkpoint(copy)
    assert sharded.identity != whole.identity
    for name, tensor in want.items():
        np.testing.assert_array_equal(sharded.tensor(name), tensor)
    (copy / file).unlink()
    with pytest.raises(MissingModelError, match="model-00002-of-00002"):
        open_checkpoint(copy)


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float32])
def test_half_types_are_widened_exactly(copy: Path, kind: torch.dtype) -> None:
    value = torch.randn(5, 7).to(kind)
    save_torch({"x": value}, copy / "model.safetensors")
    got = open_checkpoint(copy).tensor("x")
    np.testing.assert_array_equal(got, value.float().numpy())
    assert got.dtype == np.float32


def test_the_identity_is_a_digest_of_the_weight_files(copy: Path) -> None:
    before = open_checkpoint(copy).identity
    assert before == digest_files([copy / "model.safetensors"])
    tensors = load_file(copy / "model.safetensors")
    name = next(iter(tensors))
    tensors[name].reshape(-1)[0] += 1
    save_file(tensors, copy / "model.safetensors")
    assert open_checkpoint(copy).identity != before


def test_a_pickle_is_never_opened(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "pytorch_model.bin")
    with pytest.raises(MissingModelError, match="is a pickle, which is never opened"):
        open_checkpoint(copy)


def test_an_index_that_names_files_outside_is_refused(copy: Path) -> None:
    index = copy / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": "../model/model.safetensors"}}))
    with pytest.raises(CorruptionError, match="outside"):
        open_checkpoint(copy)


@pytest.mark.parametrize("keep", [0, 4, 100, 5_000])
def test_a_cut_file_says_so(copy: Path, keep: int) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(CorruptionError, match="fetch it again"):
        open_checkpoint(copy)


def test_missing_models_name_what_would_do(tmp_path: Path) -> None:
    with pytest.raises(MissingModelError, match="smollm2-135m-instruct"):
        open_model(str(tmp_path / "nothing"))
    with pytest.raises(MissingModelError, match=r"no config\.json"):
        open_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CorruptionError, match="cannot be read as JSON"):
        open_model(str(tmp_path))
    gguf = tmp_path / "x.gguf"
    gguf.write_bytes(b"not one")
    with pytest.raises(CorruptionError, match="does not start as a GGUF"):
        open_model(str(gguf))
    gguf.write_bytes(b"GGUF\x03\0\0\0")
    with pytest.raises(CorruptionError, match="not a complete GGUF"):
        open_model(str(gguf), tmp_path / "cache")


def test_tensors_of_another_shape_and_absent_ones_are_named(copy: Path) -> None:
    edit_config(copy, intermediate_size=161)
    with pytest.raises(CorruptionError, match="do not belong together"):
        load(str(copy), EngineOptions(pages=4))
    edit_config(copy, intermediate_size=160, num_hidden_layers=4)
    with pytest.raises(CorruptionError, match=r"no tensor 'model\.layers\.3"):
        load(str(copy), EngineOptions(pages=4))


def test_weights_that_are_not_finite_are_refused(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    tensors["model.norm.weight"][3] = np.nan
    save_file(tensors, copy / "model.safetensors")
    with pytest.raises(BadInputError, match="not finite"):
        load(str(copy), EngineOptions(pages=4))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not known"),
        ({"hidden_act": "relu"}, "activation 'relu'"),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1.0}}, "longrope"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2, "truncate": False}}, "truncate"),
        ({"hidden_size": None}, None),
    ],
)
def test_what_a_configuration_asks_and_we_cannot_do_is_refused_by_name(
    copy: Path, changes: dict, message: str | None
) -> None:
    edit_config(copy, **changes)
    config = json.loads((copy / "config.json").read_text())
    if message is None:
        del config["hidden_size"]
        message = "must have 'hidden_size'"
    with pytest.raises(BadInputError, match=message):
        describe(config)


def test_pool_sizes_and_contexts_that_cannot_be_are_refused(copy: Path) -> None:
    with pytest.raises(BadInputError, match="1 page groups, 2 pool sizes"):
        load(str(copy), EngineOptions(pages=(4, 4)))
    with pytest.raises(BadInputError, match="context must lie in"):
        load(str(copy), EngineOptions(pages=4, context=2_000))
    with pytest.raises(ValueError, match="power of two"):
        load(str(copy), EngineOptions(pages=4, page_tokens=17))
