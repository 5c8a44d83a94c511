"""A checkpoint's tensors, packed for a device, by role.

Owns the concatenations that let one product serve several roles (query, key and value; gate and
up): an output's bits depend on its own row of weights only, so this changes none of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.kernels.abi import Floats, Storage
from pagetrail.kernels.device import PackedLinear, RowMath

from .checkpoint import Checkpoint
from .descriptor import (
    EMBEDDING,
    FINAL_NORM,
    OUTPUT,
    DenseSpec,
    GqaSpec,
    LayerSpec,
    MlaSpec,
    ModelDescriptor,
    MoeSpec,
    Role,
    tensor_name,
)


@dataclass(frozen=True, slots=True, eq=False)
class GqaWeights:
    qkv: PackedLinear
    out: PackedLinear
    q_norm: Floats | None
    k_norm: Floats | None


@dataclass(frozen=True, slots=True, eq=False)
class MlaWeights:
    """``key_up[h]`` maps a head's plain query into the latent; ``value_up[h]`` maps back."""

    q_down: PackedLinear | None
    q_down_norm: Floats | None
    q_up: PackedLinear
    kv_down: PackedLinear
    kv_down_norm: Floats
    key_up: tuple[PackedLinear, ...]
    value_up: tuple[PackedLinear, ...]
    out: PackedLinear


@dataclass(frozen=True, slots=True, eq=False)
class DenseWeights:
    gate_up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True, eq=False)
class MoeWeights:
    router: PackedLinear
    router_bias: Floats | None  # added for the choice of experts only
    experts: tuple[DenseWeights, ...]
    shared: DenseWeights | None


@dataclass(frozen=True, slots=True, eq=False)
class LayerWeights:
    attention_norm: Floats
    attention: GqaWeights | MlaWeights
    after_attention_norm: Floats | None
    mlp_norm: Floats
    mlp: DenseWeights | MoeWeights
    after_mlp_norm: Floats | None


@dataclass(frozen=True, slots=True, eq=False)
class ModelWeights:
    embedding: PackedLinear
    layers: tuple[LayerWeights, ...]
    final_norm: Floats
    output: PackedLinear


def load_weights(
    checkpoint: Checkpoint, descriptor: ModelDescriptor, math: RowMath, storage: Storage
) -> ModelWeights:
    """Pack every tensor. Raises CorruptionError when one is missing or has another shape."""
    return _Loader(checkpoint, descriptor, math, storage).model()


class _Loader:
    def __init__(
        self, checkpoint: Checkpoint, descriptor: ModelDescriptor, math: RowMath, storage: Storage
    ) -> None:
        self._checkpoint, self._descriptor = checkpoint, descriptor
        self._math, self._storage = math, storage

    def model(self) -> ModelWeights:
        d = self._descriptor
        embedding = self._pack(self._tensor(EMBEDDING, (d.vocabulary, d.hidden)))
        if d.tied_embeddings:
            output = embedding
        else:
            output = self._linear([(OUTPUT, d.vocabulary)], d.hidden)
        layers = tuple(self._layer(i, layer) for i, layer in enumerate(d.layers))
        return ModelWeights(embedding, layers, self._tensor(FINAL_NORM, (d.hidden,)), output)

    def _layer(self, index: int, layer: LayerSpec) -> LayerWeights:
        d = self._descriptor

        def norm(role: Role) -> Floats:
            return self._tensor(tensor_name(index, role), (d.hidden,))

        sandwich = d.sandwich_norms
        attention = (
            self._gqa(index, d.attention)
            if isinstance(d.attention, GqaSpec)
            else self._mla(index, d.attention)
        )
        mlp: DenseWeights | MoeWeights
        if isinstance(layer.mlp, MoeSpec):
            mlp = self._moe(index, layer.mlp)
        else:
            mlp = self._mlp(tensor_name(index, Role.GATE).removesuffix(".gate_proj"), layer.mlp)
        return LayerWeights(
            attention_norm=norm(Role.ATTENTION_NORM),
            attention=attention,
            after_attention_norm=norm(Role.AFTER_ATTENTION_NORM) if sandwich else None,
            mlp_norm=norm(Role.BEFORE_MLP_NORM if sandwich else Role.AFTER_ATTENTION_NORM),
            mlp=mlp,
            after_mlp_norm=norm(Role.AFTER_MLP_NORM) if sandwich else None,
        )

    def _gqa(self, index: int, a: GqaSpec) -> GqaWeights:
        hidden, width = self._descriptor.hidden, a.head_width
        q, kv = a.q_heads * width, a.kv_heads * width
        parts = [(tensor_name(index, r), n) for r, n in ((Role.Q, q), (Role.K, kv), (Role.V, kv))]
        norms: list[Floats | None] = [None, None]
        if a.qk_norm:
            norms = [
                self._tensor(tensor_name(index, role), (width,))
                for role in (Role.Q_NORM, Role.K_NORM)
            ]
        out = self._linear([(tensor_name(index, Role.O), hidden)], q)
        return GqaWeights(self._linear(parts, hidden), out, norms[0], norms[1])

    def _mla(self, index: int, a: MlaSpec) -> MlaWeights:
        hidden = self._descriptor.hidden
        head = a.plain + a.rotary
        q_down = q_down_norm = None
        if a.q_rank is not None:
            q_down = self._linear([(tensor_name(index, Role.Q_DOWN), a.q_rank)], hidden)
            q_down_norm = self._tensor(tensor_name(index, Role.Q_DOWN_NORM), (a.q_rank,))
            q_up = self._linear([(tensor_name(index, Role.Q_UP), a.heads * head)], a.q_rank)
        else:
            q_up = self._linear([(tensor_name(index, Role.Q), a.heads * head)], hidden)
        up = self._tensor(
            tensor_name(index, Role.KV_UP), (a.heads * (a.plain + a.value), a.latent)
        ).reshape(a.heads, a.plain + a.value, a.latent)
        return MlaWeights(
            q_down=q_down,
            q_down_norm=q_down_norm,
            q_up=q_up,
            kv_down=self._linear([(tensor_name(index, Role.KV_DOWN), a.latent + a.rotary)], hidden),
            kv_down_norm=self._tensor(tensor_name(index, Role.KV_DOWN_NORM), (a.latent,)),
            key_up=tuple(self._pack(up[h, : a.plain].T) for h in range(a.heads)),
            value_up=tuple(self._pack(up[h, a.plain :]) for h in range(a.heads)),
            out=self._linear([(tensor_name(index, Role.O), hidden)], a.heads * a.value),
        )

    def _mlp(self, prefix: str, spec: DenseSpec) -> DenseWeights:
        hidden = self._descriptor.hidden
        gate_up = [(f"{prefix}.gate_proj", spec.width), (f"{prefix}.up_proj", spec.width)]
        return DenseWeights(
            self._linear(gate_up, hidden),
            self._linear([(f"{prefix}.down_proj", hidden)], spec.width),
        )

    def _moe(self, index: int, spec: MoeSpec) -> MoeWeights:
        hidden = self._descriptor.hidden
        router = self._tensor(tensor_name(index, Role.ROUTER), (spec.experts, hidden))
        bias_name = tensor_name(index, Role.ROUTER_BIAS)
        bias = None
        if bias_name in self._checkpoint:
            bias = self._tensor(bias_name, (spec.experts,))
        shared = None
        if spec.shared_width:
            shared = self._mlp(tensor_name(index, Role.SHARED), DenseSpec(spec.shared_width))
        experts = tensor_name(index, Role.EXPERTS)
        return MoeWeights(
            # The choice of experts is discrete, so the router keeps full precision.
            router=self._math.pack(router, Storage.F32),
            router_bias=bias,
            experts=tuple(
                self._mlp(f"{experts}.{e}", DenseSpec(spec.width)) for e in range(spec.experts)
            ),
            shared=shared,
        )

    def _linear(self, parts: list[tuple[str, int]], depth: int) -> PackedLinear:
        """One product for several roles that read the same rows."""
        weights = [self._tensor(f"{name}.weight", (n, depth)) for name, n in parts]
        biased = [f"{name}.bias" in self._checkpoint for name, _ in parts]
        bias = None
        if any(biased):
            bias = np.concatenate(
                [
                    self._tensor(f"{name}.bias", (n,)) if has else np.zeros(n, np.float32)
                    for (name, n), has in zip(parts, biased, strict=True)
                ]
            )
        return self._pack(np.concatenate(weights) if len(weights) > 1 else weights[0], bias)

    def _pack(self, weight: Floats, bias: Floats | None = None) -> PackedLinear:
        return self._math.pack(np.ascontiguousarray(weight), self._storage, bias)

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Floats:
        tensor = self._checkpoint.tensor(name)
        if tensor.shape != shape:
            raise CorruptionError(
                f"tensor {name!r} has shape {list(tensor.shape)}, config.json asks for "
                f"{list(shape)}; the files do not belong together"
            )
        if not np.isfinite(tensor).all():
            raise BadInputError(f"tensor {name!r} holds values that are not finite")
        return tensor
