"""What a model is made of, as data: the decoder reads this and nothing else about a family.

Owns the vocabulary (roles of tensors, kinds of attention and feed-forward layers, rotary
variants, page groups). Holds no weights. Everything here that changes a result is part of the
model's fingerprint, so a field that does not is left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from pagetrail.kernels.abi import SlabSpec, Storage
from pagetrail.kernels.device import Activation


class RopeScaling(StrEnum):
    """How rotary angles are stretched past the context a model was trained on."""

    NONE = "none"
    LINEAR = "linear"
    LLAMA3 = "llama3"
    YARN = "yarn"


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary embedding of the first ``width`` values of a head."""

    theta: float
    width: int
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    low_frequency_factor: float = 1.0
    high_frequency_factor: float = 4.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    table_factor: float = 1.0  # on cosines and sines
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class GqaSpec:
    """Grouped-query attention; multi-head when the head counts are equal."""

    q_heads: int
    kv_heads: int
    head_width: int
    scale: float
    qk_norm: bool = False


@dataclass(frozen=True, slots=True)
class MlaSpec:
    """Multi-head latent attention (DeepSeek): pages hold a latent and a shared rotary key."""

    heads: int
    q_rank: int | None
    latent: int
    rotary: int
    plain: int  # query and key values of a head without rotary embedding
    value: int
    scale: float


@dataclass(frozen=True, slots=True)
class DenseSpec:
    """A gated feed-forward layer of this width."""

    width: int


class Scoring(StrEnum):
    """How router logits become scores."""

    SOFTMAX = "softmax"
    SIGMOID = "sigmoid"


@dataclass(frozen=True, slots=True)
class MoeSpec:
    """Routed experts, and one shared expert when ``shared_width`` is positive."""

    experts: int
    chosen: int
    width: int
    scoring: Scoring
    normalise: bool
    shared_width: int = 0
    groups: int = 1
    chosen_groups: int = 1
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One decoder layer. ``window`` 0 sees every earlier token."""

    window: int
    rope: int  # index into ModelDescriptor.ropes
    mlp: DenseSpec | MoeSpec


@dataclass(frozen=True, slots=True)
class PageGroup:
    """Layers whose pages live and die together: equal windows, equal slabs."""

    window: int
    layers: tuple[int, ...]
    slabs: tuple[SlabSpec, ...]


@dataclass(frozen=True, slots=True)
class ModelDescriptor:
    """A decoder-only model."""

    family: str
    hidden: int
    vocabulary: int
    context: int  # tokens the model was made for
    layers: tuple[LayerSpec, ...]
    attention: GqaSpec | MlaSpec
    ropes: tuple[RopeSpec, ...]
    eps: float
    activation: Activation
    tied_embeddings: bool
    embedding_scale: float = 1.0
    norm_plus: float = 0.0  # added to every norm weight
    sandwich_norms: bool = False  # norms after attention and feed-forward as well
    logit_cap: float = 0.0  # cap * tanh(logits / cap); 0: none

    def slabs(self, layers: int, storage: Storage) -> tuple[SlabSpec, ...]:
        """What a token leaves in each of ``layers`` layers."""
        a = self.attention
        if isinstance(a, MlaSpec):
            return (
                SlabSpec("latent", layers, 1, a.latent, storage),
                SlabSpec("rotary", layers, 1, a.rotary, storage),
            )
        return (
            SlabSpec("key", layers, a.kv_heads, a.head_width, storage),
            SlabSpec("value", layers, a.kv_heads, a.head_width, storage),
        )

    def groups(self, storage: Storage) -> tuple[PageGroup, ...]:
        """Page groups: the group that keeps every token first, then by rising window."""
        windows = sorted({layer.window for layer in self.layers})
        groups = []
        for window in windows:
            members = tuple(i for i, layer in enumerate(self.layers) if layer.window == window)
            groups.append(PageGroup(window, members, self.slabs(len(members), storage)))
        return tuple(groups)


class Role(StrEnum):
    """What a tensor of a layer is for. The value is its name under ``model.layers.N.``."""

    ATTENTION_NORM = "input_layernorm.weight"
    Q = "self_attn.q_proj"
    K = "self_attn.k_proj"
    V = "self_attn.v_proj"
    O = "self_attn.o_proj"  # noqa: E741 - the projection's name everywhere
    Q_NORM = "self_attn.q_norm.weight"
    K_NORM = "self_attn.k_norm.weight"
    Q_DOWN = "self_attn.q_a_proj"
    Q_DOWN_NORM = "self_attn.q_a_layernorm.weight"
    Q_UP = "self_attn.q_b_proj"
    KV_DOWN = "self_attn.kv_a_proj_with_mqa"
    KV_DOWN_NORM = "self_attn.kv_a_layernorm.weight"
    KV_UP = "self_attn.kv_b_proj.weight"
    AFTER_ATTENTION_NORM = "post_attention_layernorm.weight"
    BEFORE_MLP_NORM = "pre_feedforward_layernorm.weight"
    AFTER_MLP_NORM = "post_feedforward_layernorm.weight"
    GATE = "mlp.gate_proj"
    UP = "mlp.up_proj"
    DOWN = "mlp.down_proj"
    ROUTER = "mlp.gate.weight"
    ROUTER_BIAS = "mlp.gate.e_score_correction_bias"
    EXPERTS = "mlp.experts"
    SHARED = "mlp.shared_experts"


EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
OUTPUT = "lm_head"


def tensor_name(layer: int, role: Role, suffix: str = "") -> str:
    """The full name of a layer's tensor."""
    return f"model.layers.{layer}.{role.value}{suffix}"
