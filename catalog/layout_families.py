"""The layouts of model families, worked out from their published configurations.

Each function takes the fields of a ``config.json`` and gives a StateLayout. A field that is
missing, or a family that is not known, is refused by name; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from .errors import BadInputError
from .layout import ElementType, Extent, Group, Slab, StateLayout, one_group

Config = Mapping[str, object]


def layout_of(config: Config, page_tokens: int, dtype: ElementType) -> StateLayout:
    """The layout of a model. ``dtype``: how attention state is stored.

    Raises BadInputError for an unknown ``model_type`` or a missing field.
    """
    family = config.get("model_type")
    build = FAMILIES.get(family) if isinstance(family, str) else None
    if build is None:
        raise BadInputError(
            f"model_type {family!r} has no worked layout; known are {', '.join(sorted(FAMILIES))}"
        )
    return build(config, page_tokens, dtype)


def _grouped_query(config: Config, page_tokens: int, dtype: ElementType) -> StateLayout:
    """Keys and values of every layer, for every token."""
    if config.get("use_sliding_window"):
        raise BadInputError(
            f"{_family(config)} with use_sliding_window has no worked layout; only full attention "
            "of every layer is"
        )
    slabs = _key_value(config, _integer(config, "num_hidden_layers"), dtype)
    return StateLayout(_family(config), slabs, one_group(slabs), page_tokens)


def _interleaved_window(config: Config, page_tokens: int, dtype: ElementType) -> StateLayout:
    """Most layers attend a window; some, named by ``layer_types`` or by a pattern, everything."""
    layers = _integer(config, "num_hidden_layers")
    slabs = _key_value(config, layers, dtype)
    everything = _full_attention_layers(config, layers)
    windowed = [layer for layer in range(layers) if layer not in everything]
    groups = (
        Group("global", Extent.TOKEN, _both(everything)),
        Group("window", Extent.WINDOW, _both(windowed), _integer(config, "sliding_window")),
    )
    return StateLayout(_family(config), slabs, groups, page_tokens)


def _latent(config: Config, page_tokens: int, dtype: ElementType) -> StateLayout:
    """Multi-head latent attention: one latent and one rotary row a layer, whatever the heads."""
    layers = _integer(config, "num_hidden_layers")
    slabs = (
        Slab("latent", layers, _integer(config, "kv_lora_rank"), dtype),
        Slab("rotary", layers, _integer(config, "qk_rope_head_dim"), dtype),
    )
    return StateLayout(_family(config), slabs, one_group(slabs), page_tokens)


def _mamba_hybrid(config: Config, page_tokens: int, dtype: ElementType) -> StateLayout:
    """Few attention layers among recurrent ones: pages for those, one block a stream for these.

    The state is kept in 32 bits; of the convolution, the inputs before the current one.
    """
    pattern = config.get("hybrid_override_pattern")
    if not isinstance(pattern, str):
        raise BadInputError("the config has no hybrid_override_pattern; expected text of M, *, -")
    attention, recurrent = pattern.count("*"), pattern.count("M")
    heads, head_dim = _integer(config, "mamba_num_heads"), _integer(config, "mamba_head_dim")
    state = _integer(config, "ssm_state_size")
    channels = heads * head_dim + 2 * _integer(config, "n_groups") * state
    slabs = (
        *_key_value(config, attention, dtype),
        Slab("state", recurrent, heads * head_dim * state, ElementType.FP32),
        Slab("convolution", recurrent, channels * (_integer(config, "conv_kernel") - 1), dtype),
    )
    groups = (
        Group("tokens", Extent.TOKEN, _both(list(range(attention)))),
        Group(
            "recurrent",
            Extent.SEQUENCE,
            tuple((slab, layer) for layer in range(recurrent) for slab in (2, 3)),
        ),
    )
    block_bytes = recurrent * (slabs[2].row_bytes + slabs[3].row_bytes)
    return StateLayout(
        _family(config),
        slabs,
        groups,
        page_tokens,
        fixed_bytes=block_bytes,
        snap_bytes=block_bytes,
    )


FAMILIES: Mapping[str, Callable[[Config, int, ElementType], StateLayout]] = MappingProxyType(
    {
        "llama": _grouped_query,
        "qwen2": _grouped_query,
        "qwen3": _grouped_query,
        "gemma3_text": _interleaved_window,
        "deepseek_v3": _latent,
        "nemotron_h": _mamba_hybrid,
    }
)

WORKED: Mapping[str, Config] = MappingProxyType(
    {
        "llama-3.1-8b": {
            "model_type": "llama",
            "num_hidden_layers": 32,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
        "qwen3-8b": {
            "model_type": "qwen3",
            "num_hidden_layers": 36,
            "num_key_value_heads": 8,
            "head_dim": 128,
        },
        "gemma-3-270m": {
            "model_type": "gemma3_text",
            "num_hidden_layers": 18,
            "num_key_value_heads": 1,
            "head_dim": 256,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
        },
        "deepseek-v3": {
            "model_type": "deepseek_v3",
            "num_hidden_layers": 61,
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
        },
        "nemotron-3-nano": {
            "model_type": "nemotron_h",
            "hybrid_override_pattern": "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME",
            "num_key_value_heads": 2,
            "head_dim": 128,
            "mamba_num_heads": 64,
            "mamba_head_dim": 64,
            "ssm_state_size": 128,
            "n_groups": 8,
            "conv_kernel": 4,
        },
    }
)


def _family(config: Config) -> str:
    return str(config["model_type"])


def _key_value(config: Config, layers: int, dtype: ElementType) -> tuple[Slab, Slab]:
    heads = _integer(config, "num_key_value_heads")
    width = heads * _head_dim(config)
    return Slab("key", layers, width, dtype), Slab("value", layers, width, dtype)


def _full_attention_layers(config: Config, layers: int) -> list[int]:
    types = config.get("layer_types")
    if types is None:
        pattern = _integer(config, "sliding_window_pattern")
        return [layer for layer in range(layers) if (layer + 1) % pattern == 0]
    names = ("full_attention", "sliding_attention")
    if not isinstance(types, list) or len(types) != layers or not set(types) <= set(names):
        raise BadInputError(
            f"the config's layer_types is {types!r}; expected one of {names} for each of "
            f"{layers} layers"
        )
    return [layer for layer, name in enumerate(types) if name == names[0]]


def _head_dim(config: Config) -> int:
    if config.get("head_dim") is None and "hidden_size" in config:
        return _integer(config, "hidden_size") // _integer(config, "num_attention_heads")
    return _integer(config, "head_dim")


def _both(layers: list[int]) -> tuple[tuple[int, int], ...]:
    """Key and value members of the layers."""
    return tuple((slab, layer) for layer in layers for slab in (0, 1))


def _integer(config: Config, name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise BadInputError(f"the config's {name} is {value!r}; expected an integer of at least 1")
    return value
