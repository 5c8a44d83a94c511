"""GGUF files: every kind of block, names and orders undone, tokenizers, and clear refusals.

The oracle of a block is the gguf package's own dequantisation, of a tokenizer the sentencepiece
package; files are written here in the order that llama.cpp's converter gives tensors.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import load_file
from streams import greedy
from tiny_models import ROOT, reference, save_tiny

from pagetrail.catalog.errors import BadInputError
from pagetrail.engine.gguf_convert import open_gguf
from pagetrail.engine.model import EngineOptions, load
from pagetrail.engine.weights import open_model

HEADS, KV_HEADS, HIDDEN = 4, 2, 256
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
PLAIN = (Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0)
# Of a super-block of 256 weights: its bytes, and where its fp16 scales lie.
SUPER = {
    Kind.Q2_K: (84, (80, 82)),
    Kind.Q3_K: (110, (108,)),
    Kind.Q4_K: (144, (0, 2)),
    Kind.Q5_K: (176, (0, 2)),
    Kind.Q6_K: (210, (208,)),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama whose rows are whole super-blocks."""
    directory = tmp_path_factory.mktemp("llama-256")
    save_tiny(
        "llama",
        directory,
        hidden_size=HIDDEN,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
    )
    return directory


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of a head as llama.cpp wants them: 0, h/2, 1, h/2 + 1, ..."""
    width = weight.shape[0] // heads
    order = np.stack([np.arange(width // 2), np.arange(width // 2) + width // 2], axis=1).ravel()
    rows = (np.arange(heads)[:, None] * width + order).ravel()
    return weight[rows]


def gguf_name(name: str) -> str:
    if name.startswith("model.layers."):
        _, _, layer, *role, _ = name.split(".")
        return f"blk.{layer}.{NAMES['.'.join(role)]}.weight"
    tops = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    return f"{tops[name.removesuffix('.weight')]}.weight"


def random_blocks(kind: Kind, shape: tuple[int, int], seed: int) -> np.ndarray:
    """Any bytes are a super-block, once its scales are numbers of a sensible size."""
    size, scales = SUPER[kind]
    rng = np.random.default_rng(seed)
    blocks = rng.integers(0, 256, (shape[0] * shape[1] // 256, size), dtype=np.uint8)
    for at in scales:
        half = rng.uniform(1e-4, 2e-4, len(blocks)).astype(np.float16)
        blocks[:, at : at + 2] = half.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(shape[0], -1)


def quantised(kind: Kind, weight: np.ndarray, seed: int) -> np.ndarray:
    if kind in SUPER:
        return random_blocks(kind, weight.shape, seed)
    return gguf.quantize(weight, kind)


def write(
    path: Path,
    source: Path,
    kind: Kind,
    *,
    architecture: str = "llama",
    tokenizer: Callable[[gguf.GGUFWriter], None] | None = None,
) -> dict[str, np.ndarray]:
    """A GGUF of ``source`` with matrices of ``kind``; what it stands for, by Hugging Face name."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(1024)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(256)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10_000.0)
    (tokenizer or byte_level)(writer)
    want = {}
    for seed, (name, weight) in enumerate(sorted(load_file(source / "model.safetensors").items())):
        heads = {"q_proj": HEADS, "k_proj": KV_HEADS}.get(name.split(".")[-2], 0)
        if weight.ndim < 2:
            writer.add_tensor(gguf_name(name), weight)
            want[name] = weight
            continue
        stored = interleaved(weight, heads) if heads else weight
        data = quantised(kind, stored, seed)
        writer.add_tensor(gguf_name(name), data, raw_dtype=kind)
        plain = gguf.dequantize(data, kind)
        if heads:
            back = np.empty_like(plain)
            back[interleaved(np.arange(len(plain)), heads)] = plain
            plain = back
        want[name] = plain
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return want


def byte_level(writer: gguf.GGUFWriter) -> None:
    alphabet = [chr(code) for code in range(256, 767)]
    alphabet.append(alphabet[0] + alphabet[1])
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(alphabet)
    writer.add_token_types([gguf.TokenType.NORMAL] * len(alphabet))
    writer.add_token_merges([f"{alphabet[0]} {alphabet[1]}"])


@pytest.mark.parametrize("kind", [*PLAIN, *SUPER], ids=lambda kind: kind.name)
def test_every_kind_of_block_gives_the_weights_that_the_gguf_package_gives(
    kind: Kind, source: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    want = write(path, source, kind)
    opened = open_gguf(path, tmp_path / "cache")
    assert set(opened.files) == set(want)
    for name, weight in want.items():
        np.testing.assert_array_equal(opened.tensor(name), weight)


def test_a_quantised_model_decodes_what_transformers_decodes_with_its_weights(
    source: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    want = write(path, source, Kind.Q8_0)
    oracle = reference(source)
    oracle.load_state_dict({name: torch.from_numpy(weight) for name, weight in want.items()})
    model = load(str(path), EngineOptions(pages=16, cache=tmp_path / "cache"))
    prompt = [5, 300, 17, 44, 201, 9]
    got = greedy(model, [prompt], new=16)[0]
    with torch.inference_mode():
        answer = oracle.generate(
            torch.tensor([prompt]),
            max_new_tokens=16,
            min_new_tokens=16,
            do_sample=False,
            eos_token_id=None,
        )
    assert got.out == answer[0, len(prompt) :].tolist(), f"smallest gap {got.gap}"


@pytest.mark.parametrize("architecture", ["qwen3moe", "deepseek2", "mamba"])
def test_a_family_that_gguf_is_not_read_for_is_refused_by_name(
    architecture: str, source: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.gguf"
    write(path, source, Kind.Q8_0, architecture=architecture)
    with pytest.raises(BadInputError, match=f"family '{architecture}'; known are gemma3, llama"):
        open_model(str(path), tmp_path / "cache")


def test_a_tokenizer_of_another_kind_is_refused_by_name(source: Path, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"

    def other(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("t5")
        writer.add_token_list([str(i) for i in range(512)])

    write(path, source, Kind.Q8_0, tokenizer=other)
    with pytest.raises(BadInputError, match="t5"):
        open_model(str(path), tmp_path / "cache")


TEXTS = (
    "Licensed under the Apache License, Version 2.0",
    "  two  spaces,\ta tab\nand a line",
    "caf\u00e9 \u4f60\u597d \U0001f600 end",
    "",
    "x",
    " ",
)


@pytest.mark.parametrize("prefix", [True, False])
def test_sentence_piece_tokens_and_texts_equal_those_of_its_own_package(
    prefix: bool, source: Path, tmp_path: Path
) -> None:
    sentencepiece = pytest.importorskip("sentencepiece")
    file = io.BytesIO()
    lines = (ROOT / "LICENSE").read_text(encoding="utf-8").splitlines()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=file,
        model_type="bpe",
        vocab_size=512,
        byte_fallback=True,
        add_dummy_prefix=prefix,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
    )
    oracle: Any = sentencepiece.SentencePieceProcessor(model_proto=file.getvalue())

    def pieces(writer: gguf.GGUFWriter) -> None:
        count = range(oracle.get_piece_size())
        kinds = [
            gguf.TokenType.UNKNOWN
            if oracle.is_unknown(i)
            else gguf.TokenType.CONTROL
            if oracle.is_control(i)
            else gguf.TokenType.BYTE
            if oracle.is_byte(i)
            else gguf.TokenType.NORMAL
            for i in count
        ]
        writer.add_tokenizer_model("llama")
        writer.add_token_list([oracle.id_to_piece(i) for i in count])
        writer.add_token_scores([oracle.get_score(i) for i in count])
        writer.add_token_types(kinds)
        writer.add_add_space_prefix(prefix)
        writer.add_add_bos_token(True)
        writer.add_bos_token_id(oracle.bos_id())
        writer.add_eos_token_id(oracle.eos_id())
        writer.add_unk_token_id(oracle.unk_id())

    path = tmp_path / "model.gguf"
    write(path, source, Kind.Q8_0, tokenizer=pieces)
    tokenizer = load(str(path), EngineOptions(pages=4, cache=tmp_path / "cache")).tokenizer
    for text in TEXTS:
        tokens = tokenizer.encode(text)
        assert tokens == [oracle.bos_id(), *oracle.encode(text)]
        assert tokenizer.decode(tokens) == text
        stream = tokenizer.detokenizer()
        assert "".join(map(stream.push, tokens)) + stream.finish() == text
    accented = tokenizer.encode("caf\u00e9", special=False)
    spelt = b"".join(map(tokenizer.token_bytes, accented))
    assert spelt.decode().lstrip(" ") == "caf\u00e9"
