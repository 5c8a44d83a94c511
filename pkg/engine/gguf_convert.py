"""A GGUF file, converted once into a Hugging Face directory in the cache.

Owns the names and the undoing of GGUF's own conventions (rotary pairs of the Llama family are
stored interleaved, Gemma's norm weights have one added). The result is named by the digest of the
source file, written beside its place and renamed into it, so a reader sees all of it or nothing.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, dequantize
from safetensors.numpy import save_file

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.kernels.abi import Floats
from pagetrail.kernels.cache import cache_directory

from .checkpoint import CONFIG_FILE, SINGLE_FILE, Checkpoint, digest_files, open_checkpoint
from .gguf_fields import GgufFields
from .gguf_tokenizer import tokenizer_config_of, tokenizer_of

CONVERTER_VERSION = 2
GGUF_MAGIC = b"GGUF"

_TOP_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA_BLOCK_NAMES = _BLOCK_NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_ADDED_ONE = "norm"  # Gemma: tensors whose GGUF name holds this carry weight + 1


@dataclass(frozen=True, slots=True)
class _Family:
    architecture: str  # Hugging Face's class name
    model_type: str
    block_names: dict[str, str]
    interleaved_rope: bool = False
    norms_plus_one: bool = False


_FAMILIES = {
    "llama": _Family("LlamaForCausalLM", "llama", _BLOCK_NAMES, interleaved_rope=True),
    "qwen2": _Family("Qwen2ForCausalLM", "qwen2", _BLOCK_NAMES),
    "qwen3": _Family("Qwen3ForCausalLM", "qwen3", _BLOCK_NAMES),
    "gemma3": _Family("Gemma3ForCausalLM", "gemma3_text", _GEMMA_BLOCK_NAMES, norms_plus_one=True),
}


def open_gguf(path: Path, cache: Path | None = None) -> Checkpoint:
    """Open a GGUF file through its converted copy, converting it first when there is none.

    Raises CorruptionError when the file is cut short or is no GGUF, BadInputError when its family
    or tokenizer is not known.
    """
    with path.open("rb") as file:
        if file.read(4) != GGUF_MAGIC:
            raise CorruptionError(f"{path} does not start as a GGUF file does; fetch it again")
    source = digest_files([path])
    root = cache or cache_directory() / "models"
    target = root / f"{source.removeprefix('blake3:')}-{CONVERTER_VERSION}"
    if not target.is_dir():
        _convert(path, root, target)
    return open_checkpoint(target, f"gguf-{CONVERTER_VERSION}:{source}")


def _convert(path: Path, root: Path, target: Path) -> None:
    try:
        reader = GGUFReader(path)
    except (ValueError, IndexError, OSError, KeyError) as error:
        raise CorruptionError(
            f"{path} is not a complete GGUF file ({error}); fetch it again"
        ) from error
    fields = GgufFields(reader, path)
    architecture = fields.text("general.architecture")
    if architecture not in _FAMILIES:
        raise BadInputError(
            f"{path} holds a model of family {architecture!r}; known are "
            f"{', '.join(sorted(_FAMILIES))}"
        )
    family = _FAMILIES[architecture]
    config = _config(fields, architecture, family, reader)
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / "convert.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # processes that start together convert once
            if target.is_dir():
                return
            with tempfile.TemporaryDirectory(dir=root) as scratch:
                made = Path(scratch) / "model"
                made.mkdir()
                save_file(_tensors(reader, path, family, config), made / SINGLE_FILE)
                _write_json(made / CONFIG_FILE, config)
                tokenizer_of(fields).save(str(made / "tokenizer.json"))
                _write_json(made / "tokenizer_config.json", tokenizer_config_of(fields))
                made.rename(target)
    except OSError as error:
        raise BadInputError(
            f"cannot keep the converted model in {root}: {error.strerror}; free some space, or set "
            "XDG_CACHE_HOME to a directory that can be written"
        ) from error


def _config(
    fields: GgufFields, architecture: str, family: _Family, reader: GGUFReader
) -> dict[str, Any]:
    def number(key: str, default: Any = None) -> Any:
        name = f"{architecture}.{key}"
        return fields.need(name) if default is None else fields.get(name, default)

    names = {tensor.name for tensor in reader.tensors}
    heads, hidden = int(number("attention.head_count")), int(number("embedding_length"))
    head_width = int(number("attention.key_length", hidden // heads))
    config: dict[str, Any] = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "hidden_size": hidden,
        "intermediate_size": int(number("feed_forward_length")),
        "num_hidden_layers": int(number("block_count")),
        "num_attention_heads": heads,
        "num_key_value_heads": int(number("attention.head_count_kv", heads)),
        "head_dim": head_width,
        "rms_norm_eps": float(number("attention.layer_norm_rms_epsilon")),
        "rope_theta": float(number("rope.freq_base", 10_000.0)),
        "max_position_embeddings": int(number("context_length")),
        "vocab_size": len(fields.need("tokenizer.ggml.tokens")),
        "tie_word_embeddings": "output.weight" not in names,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": fields.get("tokenizer.ggml.eos_token_id"),
        "attention_bias": "blk.0.attn_q.bias" in names,
    }
    if fields.get(f"{architecture}.rope.scaling.type") not in (None, "none"):
        raise BadInputError(
            f"this GGUF scales its rotary angles ({architecture}.rope.scaling), which is read from "
            "Hugging Face directories only; use that form of the model"
        )
    if architecture == "gemma3":
        config |= {
            "sliding_window": int(number("attention.sliding_window")),
            "sliding_window_pattern": 6,
            "query_pre_attn_scalar": head_width,
            "rope_local_base_freq": 10_000.0,
            "hidden_activation": "gelu_pytorch_tanh",
        }
    return config


def _tensors(
    reader: GGUFReader, path: Path, family: _Family, config: dict[str, Any]
) -> dict[str, Floats]:
    tensors: dict[str, Floats] = {}
    for tensor in reader.tensors:
        try:
            data = np.ascontiguousarray(dequantize(tensor.data, tensor.tensor_type), np.float32)
        except (ValueError, NotImplementedError) as error:
            raise BadInputError(
                f"{path}: tensor {tensor.name!r} of type {tensor.tensor_type.name} cannot be "
                f"dequantised: {error}"
            ) from error
        data = data.reshape(tuple(int(n) for n in reversed(tensor.shape)))
        if family.norms_plus_one and _ADDED_ONE in tensor.name:
            data = data - np.float32(1.0)
        if family.interleaved_rope and tensor.name.split(".")[-2] in ("attn_q", "attn_k"):
            query = ".attn_q." in tensor.name
            data = _halves(data, config["num_attention_heads" if query else "num_key_value_heads"])
        tensors[_name(tensor.name, family, path)] = data
    return tensors


def _halves(data: Floats, heads: int) -> Floats:
    """Rows of each head from interleaved rotary order (0, h, 1, h+1, ...) back to halves."""
    width = data.shape[0] // heads
    split = data.reshape(heads, width // 2, 2, *data.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(data.shape)


def _name(name: str, family: _Family, path: Path) -> str:
    parts = name.split(".")
    if parts[0] == "blk" and len(parts) == 4 and parts[2] in family.block_names:
        return f"model.layers.{parts[1]}.{family.block_names[parts[2]]}.{parts[3]}"
    if parts[0] in _TOP_NAMES and len(parts) == 2:
        return f"{_TOP_NAMES[parts[0]]}.{parts[1]}"
    raise BadInputError(f"{path}: tensor {name!r} has no place in family {family.model_type}")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=1)
        file.flush()
        os.fsync(file.fileno())
