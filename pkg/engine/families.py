"""From a Hugging Face configuration to a model descriptor, family by family.

A configuration asks for things; what this module does not know how to honour it refuses by name,
because a flag that is quietly ignored gives wrong text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pagetrail.catalog.errors import BadInputError
from pagetrail.kernels.device import Activation

from .descriptor import (
    DenseSpec,
    GqaSpec,
    LayerSpec,
    MlaSpec,
    ModelDescriptor,
    MoeSpec,
    RopeScaling,
    RopeSpec,
    Scoring,
)

Config = dict[str, Any]

_ACTIVATIONS = {
    "silu": Activation.SILU,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}
_SLIDING, _FULL = "sliding_attention", "full_attention"


def describe(config: Config) -> ModelDescriptor:
    """The descriptor of a configuration. Raises BadInputError for what is not known or missing."""
    kind = config.get("model_type")
    builder = _FAMILIES.get(str(kind))
    if builder is None:
        raise BadInputError(
            f"model_type {kind!r} is not known; known are {', '.join(sorted(_FAMILIES))}"
        )
    try:
        return builder(config)
    except KeyError as error:
        raise BadInputError(f"config.json of a {kind} model must have {error.args[0]!r}") from error


def _llama(config: Config) -> ModelDescriptor:
    return _dense(config, windows=_all_full(config))


def _mistral(config: Config) -> ModelDescriptor:
    window = config.get("sliding_window") or 0
    return _dense(config, windows=[window] * config["num_hidden_layers"])


def _qwen2(config: Config) -> ModelDescriptor:
    return _dense(config, windows=_qwen_windows(config))


def _qwen3(config: Config) -> ModelDescriptor:
    return _dense(config, windows=_qwen_windows(config), qk_norm=True)


def _qwen3_moe(config: Config) -> ModelDescriptor:
    sparse = MoeSpec(
        experts=config.get("num_experts") or config["num_local_experts"],
        chosen=config["num_experts_per_tok"],
        width=config["moe_intermediate_size"],
        scoring=Scoring.SOFTMAX,
        normalise=bool(config.get("norm_topk_prob", False)),
    )
    step, dense_only = (
        config.get("decoder_sparse_step", 1),
        set(config.get("mlp_only_layers") or ()),
    )
    mlps = [
        sparse
        if i not in dense_only and (i + 1) % step == 0
        else DenseSpec(config["intermediate_size"])
        for i in range(config["num_hidden_layers"])
    ]
    return _dense(config, windows=_qwen_windows(config), qk_norm=True, mlps=mlps)


def _gemma3(config: Config) -> ModelDescriptor:
    if config.get("attn_logit_softcapping"):
        raise BadInputError("attn_logit_softcapping is not supported; this model cannot be served")
    if config.get("use_bidirectional_attention"):
        raise BadInputError("use_bidirectional_attention is not supported; only causal models are")
    types = config.get("layer_types")
    if types is None:
        pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern", 6)
        types = [
            _SLIDING if (i + 1) % pattern else _FULL for i in range(config["num_hidden_layers"])
        ]
    windows = _typed_windows(types, config["sliding_window"])
    width = config["head_dim"]
    parameters = config.get("rope_parameters") or {}
    if parameters:
        full = _rope(parameters.get(_FULL, {}), config, width, 1_000_000.0)
        local = _rope(parameters.get(_SLIDING, {}), config, width, 10_000.0)
    else:
        full = _rope(
            {"rope_theta": config.get("rope_theta"), **(config.get("rope_scaling") or {})},
            config,
            width,
            1_000_000.0,
        )
        local = RopeSpec(float(config.get("rope_local_base_freq", 10_000.0)), width)
    dense = DenseSpec(config["intermediate_size"])
    return ModelDescriptor(
        family=config["model_type"],
        hidden=config["hidden_size"],
        vocabulary=config["vocab_size"],
        context=config["max_position_embeddings"],
        layers=tuple(
            LayerSpec(w, int(t == _SLIDING), dense) for w, t in zip(windows, types, strict=True)
        ),
        attention=GqaSpec(
            config["num_attention_heads"],
            config["num_key_value_heads"],
            width,
            float(config["query_pre_attn_scalar"]) ** -0.5,
            qk_norm=True,
        ),
        ropes=(full, local),
        eps=float(config["rms_norm_eps"]),
        activation=_activation(config.get("hidden_activation", "gelu_pytorch_tanh")),
        tied_embeddings=bool(config.get("tie_word_embeddings", True)),
        embedding_scale=math.sqrt(config["hidden_size"]),
        norm_plus=1.0,
        sandwich_norms=True,
        logit_cap=float(config.get("final_logit_softcapping") or 0.0),
    )


def _deepseek_v3(config: Config) -> ModelDescriptor:
    width = config["qk_rope_head_dim"]
    parameters = _rope_parameters(config)
    rope = _rope(parameters, config, width, 10_000.0, bool(config.get("rope_interleave", True)))
    plain = config["qk_nope_head_dim"]
    scale = (plain + width) ** -0.5
    stretch = parameters.get("mscale_all_dim")
    if rope.scaling is not RopeScaling.NONE and stretch:
        scale *= _yarn_magnitude(rope.factor, stretch) ** 2
    dense = DenseSpec(config["intermediate_size"])
    sparse = MoeSpec(
        experts=config.get("n_routed_experts") or config["num_local_experts"],
        chosen=config["num_experts_per_tok"],
        width=config["moe_intermediate_size"],
        scoring=Scoring.SIGMOID,
        normalise=bool(config.get("norm_topk_prob", True)),
        shared_width=config["moe_intermediate_size"] * (config.get("n_shared_experts") or 0),
        groups=config.get("n_group") or 1,
        chosen_groups=config.get("topk_group") or 1,
        scale=float(config.get("routed_scaling_factor", 1.0)),
    )
    first = config.get("first_k_dense_replace", 0)
    return ModelDescriptor(
        family=config["model_type"],
        hidden=config["hidden_size"],
        vocabulary=config["vocab_size"],
        context=config["max_position_embeddings"],
        layers=tuple(
            LayerSpec(0, 0, dense if i < first else sparse)
            for i in range(config["num_hidden_layers"])
        ),
        attention=MlaSpec(
            heads=config["num_attention_heads"],
            q_rank=config.get("q_lora_rank"),
            latent=config["kv_lora_rank"],
            rotary=width,
            plain=plain,
            value=config["v_head_dim"],
            scale=scale,
        ),
        ropes=(rope,),
        eps=float(config["rms_norm_eps"]),
        activation=_activation(config.get("hidden_act", "silu")),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


_FAMILIES: dict[str, Callable[[Config], ModelDescriptor]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma3_text": _gemma3,
    "deepseek_v3": _deepseek_v3,
}


def _dense(
    config: Config,
    windows: list[int],
    *,
    qk_norm: bool = False,
    mlps: list[DenseSpec | MoeSpec] | None = None,
) -> ModelDescriptor:
    heads = config["num_attention_heads"]
    width = config.get("head_dim") or config["hidden_size"] // heads
    mlps = mlps or [DenseSpec(config["intermediate_size"])] * config["num_hidden_layers"]
    return ModelDescriptor(
        family=config["model_type"],
        hidden=config["hidden_size"],
        vocabulary=config["vocab_size"],
        context=config["max_position_embeddings"],
        layers=tuple(LayerSpec(w, 0, mlp) for w, mlp in zip(windows, mlps, strict=True)),
        attention=GqaSpec(
            heads, config.get("num_key_value_heads") or heads, width, width**-0.5, qk_norm
        ),
        ropes=(_rope(_rope_parameters(config), config, width, 10_000.0),),
        eps=float(config["rms_norm_eps"]),
        activation=_activation(config.get("hidden_act", "silu")),
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
    )


def _all_full(config: Config) -> list[int]:
    return [0] * config["num_hidden_layers"]


def _qwen_windows(config: Config) -> list[int]:
    if not config.get("use_sliding_window"):
        return _all_full(config)
    window, first = config["sliding_window"], config.get("max_window_layers", 28)
    types = config.get("layer_types") or [
        _SLIDING if i >= first else _FULL for i in range(config["num_hidden_layers"])
    ]
    return _typed_windows(types, window)


def _typed_windows(types: list[str], window: int) -> list[int]:
    unknown = set(types) - {_SLIDING, _FULL}
    if unknown:
        raise BadInputError(f"layer_types {sorted(unknown)} are not known")
    return [window if kind == _SLIDING else 0 for kind in types]


def _rope_parameters(config: Config) -> Config:
    """One mapping out of the older form (rope_theta, rope_scaling) and the newer one."""
    if config.get("rope_parameters"):
        return dict(config["rope_parameters"])
    merged = dict(config.get("rope_scaling") or {})
    if config.get("rope_theta") is not None:
        merged["rope_theta"] = config["rope_theta"]
    return merged


def _rope(
    parameters: Config, config: Config, width: int, theta: float, interleaved: bool = False
) -> RopeSpec:
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    theta = float(parameters.get("rope_theta") or theta)
    partial = parameters.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    rotary = int(width * partial)
    if kind == "default":
        return RopeSpec(theta, rotary, interleaved=interleaved)
    if kind not in ("linear", "llama3", "yarn"):
        raise BadInputError(
            f"rotary scaling {kind!r} is not known; known are default, linear, llama3 and yarn"
        )
    factor = float(parameters["factor"])
    if kind == "linear":
        return RopeSpec(theta, rotary, RopeScaling.LINEAR, factor, interleaved=interleaved)
    original = int(
        parameters.get("original_max_position_embeddings") or config["max_position_embeddings"]
    )
    if kind == "llama3":
        return RopeSpec(
            theta,
            rotary,
            RopeScaling.LLAMA3,
            factor,
            low_frequency_factor=float(parameters["low_freq_factor"]),
            high_frequency_factor=float(parameters["high_freq_factor"]),
            original_context=original,
            interleaved=interleaved,
        )
    if parameters.get("truncate") is False:
        raise BadInputError("yarn with truncate = false is not known; this model cannot be served")
    return RopeSpec(
        theta,
        rotary,
        RopeScaling.YARN,
        factor,
        original_context=original,
        beta_fast=float(parameters.get("beta_fast") or 32.0),
        beta_slow=float(parameters.get("beta_slow") or 1.0),
        table_factor=_yarn_table_factor(parameters, factor),
        interleaved=interleaved,
    )


def _yarn_table_factor(parameters: Config, factor: float) -> float:
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)
    one, all_dims = parameters.get("mscale"), parameters.get("mscale_all_dim")
    if one and all_dims:
        return _yarn_magnitude(factor, one) / _yarn_magnitude(factor, all_dims)
    return _yarn_magnitude(factor, 1.0)


def _yarn_magnitude(factor: float, scale: float) -> float:
    """0.1 * scale * ln(factor) + 1 (YaRN, section 3.4)."""
    return 1.0 if factor <= 1.0 else 0.1 * scale * math.log(factor) + 1.0


def _activation(name: str) -> Activation:
    if name not in _ACTIVATIONS:
        raise BadInputError(
            f"activation {name!r} is not known; known are {', '.join(sorted(_ACTIVATIONS))}"
        )
    return _ACTIVATIONS[name]
