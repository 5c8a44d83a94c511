"""Random models with a trained byte-level tokenizer, in the form that transformers writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

ROOT = Path(__file__).resolve().parents[2]
VOCABULARY = 512
WEIGHT_SPREAD = 0.08  # wide enough that greedy choices are not near ties

COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 160,
    "max_position_embeddings": 1024,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
    "mscale": 1.0,
    "mscale_all_dim": 0.8,
}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama3-rope": (
        "Llama",
        {
            "attention_bias": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10_000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 128,
            },
        },
    ),
    "mistral": ("Mistral", {"head_dim": 16, "sliding_window": 40}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "qwen3-moe": (
        "Qwen3Moe",
        {
            "head_dim": 16,
            "num_experts": 8,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 48,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
    ),
    "gemma3": (
        "Gemma3",
        {
            "head_dim": 32,
            "sliding_window": 33,
            "query_pre_attn_scalar": 32,
            "tie_word_embeddings": True,
            "num_hidden_layers": 4,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "deepseek-v3": (
        "DeepseekV3",
        {
            "num_key_value_heads": 6,
            "q_lora_rank": 48,
            "kv_lora_rank": 64,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 16,
            "v_head_dim": 24,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_shared_experts": 1,
            "n_group": 4,
            "topk_group": 2,
            "moe_intermediate_size": 48,
            "first_k_dense_replace": 1,
            "routed_scaling_factor": 1.5,
            "rope_parameters": YARN,
        },
    ),
}


def save_tiny(family: str, directory: Path, **changes: Any) -> None:
    """Write a random model of ``family``, its tokenizer and chat template."""
    transformers.logging.set_verbosity_error()
    name, extra = FAMILIES[family]
    text = "Text" if name == "Gemma3" else ""
    config = getattr(transformers, f"{name}{text}Config")(**{**COMMON, **extra, **changes})
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, WEIGHT_SPREAD)
            elif "norm" in key:
                parameter.normal_(0.0 if name == "Gemma3" else 1.0, 0.1)
            else:
                parameter.normal_(0, 0.1)
        for key, buffer in model.named_buffers():
            if "e_score_correction_bias" in key:
                buffer.normal_(0, 0.1)
    model.save_pretrained(directory)
    tokenizer = _tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    tokenizer.save_pretrained(directory)


def reference(directory: Path) -> Any:
    """The same model as transformers runs it: fp32, contiguous cache, plain attention."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        directory, dtype=torch.float32, attn_implementation="eager"
    ).eval()


def _tokenizer() -> Any:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([(ROOT / "LICENSE").read_text(encoding="utf-8")], trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<bos>", eos_token="<eos>", pad_token="<pad>"
    )
