"""The layers of a decoder over one step's rows: attention over pages, feed-forward, experts.

Every function works row by row through ``RowMath`` and ``Device``; numpy is used only for
elementwise work and copies, never for a product, whose bits it does not promise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pagetrail.kernels.abi import Floats, Int32s, RaggedBatch
from pagetrail.kernels.device import Activation, AttentionSpec, PagePool, StepDevice

from .descriptor import GqaSpec, MlaSpec, MoeSpec, Scoring
from .model_weights import DenseWeights, GqaWeights, MlaWeights, MoeWeights


class Workspace:
    """Arrays for intermediate rows, by name, kept between steps and grown when a step is larger.

    Bounded by the largest step the planner makes; nothing in it outlives a step.
    """

    def __init__(self, empty: Callable[[int, int], Floats]) -> None:
        self._empty = empty
        self._arrays: dict[str, Floats] = {}

    def rows(self, name: str, rows: int, width: int) -> Floats:
        """An uninitialised ``[rows, width]`` array; the last one of this name is overwritten."""
        array = self._arrays.get(name)
        if array is None or array.shape[0] < rows or array.shape[1] != width:
            array = self._empty(rows, width)
            self._arrays[name] = array
        return array[:rows]


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """What the layers of one step share. ``pools`` are those of the layer's page group."""

    device: StepDevice
    work: Workspace
    positions: Int32s
    eps: float
    norm_plus: float
    activation: Activation

    def norm(self, name: str, x: Floats, weight: Floats, groups: int = 1) -> Floats:
        out = self.work.rows(name, len(x), groups * len(weight))
        self.device.rms_norm(x, groups, weight, self.norm_plus, self.eps, out)
        return out


def gqa_rows(
    step: Step,
    spec: GqaSpec,
    weights: GqaWeights,
    x: Floats,
    tables: tuple[Floats, Floats],
    layer: int,
    pools: Sequence[PagePool],
    batch: RaggedBatch,
) -> Floats:
    """Queries ``[rows, q_heads * head_width]`` of ``x[rows, hidden]``; its K and V are in the pages
    when this returns. ``layer`` counts inside the page group."""
    device, width = step.device, spec.head_width
    q_end = spec.q_heads * width
    k_end = q_end + spec.kv_heads * width
    rows = step.work.rows("qkv", len(x), k_end + spec.kv_heads * width)
    device.linear(x, weights.qkv, rows)
    q, k, v = rows[:, :q_end], rows[:, q_end:k_end], rows[:, k_end:]
    for part, heads, norm in (
        (q, spec.q_heads, weights.q_norm),
        (k, spec.kv_heads, weights.k_norm),
    ):
        if norm is not None:
            device.rms_norm(part, heads, norm, step.norm_plus, step.eps, part)
    # Queries and keys stand side by side, head after head.
    both = rows[:, :k_end]
    device.rope(both, spec.q_heads + spec.kv_heads, width, 0, step.positions, tables)
    device.append(pools[0], layer, k, batch.slots)
    device.append(pools[1], layer, v, batch.slots)
    return q


def gqa(
    step: Step,
    spec: GqaSpec,
    q: Floats,
    layer: int,
    pools: Sequence[PagePool],
    batch: RaggedBatch,
) -> Floats:
    """Attention of the queries to what the pages hold; ``[rows, q_heads * head_width]``."""
    out = step.work.rows("attended", len(q), spec.q_heads * spec.head_width)
    what = AttentionSpec(spec.q_heads, spec.scale)
    step.device.attention(what, layer, q, pools[:1], pools[1], batch, out)
    return out


def mla_rows(
    step: Step,
    spec: MlaSpec,
    weights: MlaWeights,
    x: Floats,
    tables: tuple[Floats, Floats],
    interleaved: bool,
    layer: int,
    pools: Sequence[PagePool],
    batch: RaggedBatch,
) -> Floats:
    """Queries ``[rows, heads * (plain + rotary)]`` of ``x[rows, hidden]``; its latent and rotary
    rows are in the pages when this returns."""
    device, work, count = step.device, step.work, len(x)
    head = spec.plain + spec.rotary
    source = x
    if weights.q_down is not None and weights.q_down_norm is not None and spec.q_rank is not None:
        down = work.rows("q_down", count, spec.q_rank)
        device.linear(x, weights.q_down, down)
        source = step.norm("q_down_normed", down, weights.q_down_norm)
    q = work.rows("q", count, spec.heads * head)
    device.linear(source, weights.q_up, q)
    device.rope(q, spec.heads, head, spec.plain, step.positions, tables, interleaved)

    kv = work.rows("kv_down", count, spec.latent + spec.rotary)
    device.linear(x, weights.kv_down, kv)
    latent = step.norm("latent", kv[:, : spec.latent], weights.kv_down_norm)
    rotary = kv[:, spec.latent :]
    device.rope(rotary, 1, spec.rotary, 0, step.positions, tables, interleaved)
    device.append(pools[0], layer, latent, batch.slots)
    device.append(pools[1], layer, rotary, batch.slots)
    return q


def mla(
    step: Step,
    spec: MlaSpec,
    weights: MlaWeights,
    q: Floats,
    layer: int,
    pools: Sequence[PagePool],
    batch: RaggedBatch,
) -> Floats:
    """Absorbed latent attention: queries are mapped into the latent, pages are read as they lie.

    Returns ``[rows, heads * value]``.
    """
    device, work, count = step.device, step.work, len(q)
    head, wide = spec.plain + spec.rotary, spec.latent + spec.rotary
    absorbed = work.rows("absorbed", count, spec.heads * wide)
    for h, key_up in enumerate(weights.key_up):
        at = absorbed[:, h * wide : (h + 1) * wide]
        device.linear(q[:, h * head : h * head + spec.plain], key_up, at[:, : spec.latent])
        at[:, spec.latent :] = q[:, h * head + spec.plain : (h + 1) * head]
    mixed = work.rows("mixed", count, spec.heads * spec.latent)
    what = AttentionSpec(spec.heads, spec.scale)
    device.attention(what, layer, absorbed, pools, pools[0], batch, mixed)

    out = work.rows("attended", count, spec.heads * spec.value)
    for h, value_up in enumerate(weights.value_up):
        device.linear(
            mixed[:, h * spec.latent : (h + 1) * spec.latent],
            value_up,
            out[:, h * spec.value : (h + 1) * spec.value],
        )
    return out


def dense_mlp(step: Step, weights: DenseWeights, x: Floats, out: Floats, add: bool) -> None:
    """Gated feed-forward of ``x``, written to or added to ``out``."""
    both = step.work.rows("gate_up", len(x), weights.gate_up.outputs)
    step.device.linear(x, weights.gate_up, both)
    gated = step.work.rows("gated", len(x), weights.down.depth)
    step.device.gated(both, step.activation, gated)
    step.device.linear(gated, weights.down, out, add)


def moe_mlp(step: Step, spec: MoeSpec, weights: MoeWeights, x: Floats, out: Floats) -> None:
    """Routed experts of every row, in rising order of expert, then the shared expert, added up."""
    logits = step.work.rows("router", len(x), spec.experts)
    step.device.linear(x, weights.router, logits)
    chosen, shares = route(logits, spec, weights.router_bias)
    total = np.zeros_like(x)
    for expert in np.unique(chosen):
        row, place = np.nonzero(chosen == expert)
        result = np.empty((len(row), x.shape[1]), np.float32)
        dense_mlp(step, weights.experts[expert], np.ascontiguousarray(x[row]), result, add=False)
        total[row] += result * shares[row, place][:, None]
    if weights.shared is not None:
        dense_mlp(step, weights.shared, x, total, add=True)
    out[:] = total


def route(logits: Floats, spec: MoeSpec, bias: Floats | None) -> tuple[Int32s, Floats]:
    """``(experts[rows, chosen], shares[rows, chosen])``; among equals the lower number wins."""
    if spec.scoring is Scoring.SIGMOID:
        scores = 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))
    else:
        shifted = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
        scores = shifted / _row_sums(shifted)
    ranked = scores if bias is None else scores + bias
    if spec.groups > 1:
        ranked = _best_groups(ranked, spec)
    order = np.argsort(-ranked, axis=1, kind="stable")[:, : spec.chosen]
    shares = np.take_along_axis(scores, order, axis=1)
    if spec.normalise:
        shares = shares / (_row_sums(shares) + 1e-20)
    return order.astype(np.int32), (shares * spec.scale).astype(np.float32)


def _best_groups(scores: np.ndarray, spec: MoeSpec) -> np.ndarray:
    """Scores outside the best groups become -inf; a group counts its two best experts."""
    grouped = scores.reshape(len(scores), spec.groups, -1)
    best_two = np.sort(grouped, axis=2)[:, :, -2:]
    group_scores = best_two[:, :, 0] + best_two[:, :, -1]
    order = np.argsort(-group_scores, axis=1, kind="stable")[:, : spec.chosen_groups]
    kept = np.zeros(group_scores.shape, bool)
    np.put_along_axis(kept, order, True, axis=1)
    return np.where(kept[:, :, None], grouped, -np.inf).reshape(scores.shape)


def _row_sums(values: np.ndarray) -> np.ndarray:
    """Sums from left to right, so that a row's sum does not depend on the array's shape."""
    return np.cumsum(values, axis=1)[:, -1:]
