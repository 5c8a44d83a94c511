"""The decoder: tokens of a ragged batch in, K and V into the pages, logits out.

Driven by a descriptor; holds the packed weights and the rotary tables. Knows no request, no
sampler, no policy. In exact mode a row's logits depend on its own sequence alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from pagetrail.kernels.abi import Floats, Int32s, RaggedBatch
from pagetrail.kernels.device import PagePool, StepDevice

from .descriptor import GqaSpec, MlaSpec, ModelDescriptor, MoeSpec
from .layers import Step, Workspace, dense_mlp, gqa, gqa_rows, mla, mla_rows, moe_mlp
from .model_weights import GqaWeights, LayerWeights, MlaWeights, ModelWeights, MoeWeights
from .rope import rope_tables


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One step: a row per token, the planned pages of every group, and whose logits are wanted."""

    tokens: Int32s  # [rows]
    pages: tuple[RaggedBatch, ...]  # per page group; rows and positions are the same in each
    wanted: Int32s  # [n] rows whose logits are returned, in this order


# (step, spec, weights, x, out): the routed experts of every row.
Experts = Callable[[Step, MoeSpec, MoeWeights, Floats, Floats], None]


class Decoder:
    """A model on a device. ``context`` bounds the positions it can rotate."""

    def __init__(
        self,
        device: StepDevice,
        descriptor: ModelDescriptor,
        weights: ModelWeights,
        group_layers: Sequence[Sequence[int]],
        context: int,
        experts: Experts = moe_mlp,
    ) -> None:
        self._device, self._descriptor, self._weights = device, descriptor, weights
        self._tables = tuple(rope_tables(rope, context) for rope in descriptor.ropes)
        self._work = Workspace(device.empty)
        self._experts = experts
        places = {
            layer: (group, index)
            for group, layers in enumerate(group_layers)
            for index, layer in enumerate(layers)
        }
        self._places = tuple(places[layer] for layer in range(len(descriptor.layers)))

    def forward(
        self, batch: Batch, pools: Sequence[Sequence[PagePool]], work: Workspace | None = None
    ) -> Floats:
        """Logits ``[len(batch.wanted), vocabulary]`` in the device's memory; ``pools`` are per page
        group. ``work`` holds intermediate rows that must outlive the step, as a captured one's."""
        x = self.embed(batch.tokens)
        x = self.advance(x, batch.pages, pools, work, batch.wanted)
        return self.logits(x, work)

    @property
    def recordable(self) -> bool:
        """Whether the layers are operations of the device alone, in an order that no value decides:
        not where experts are chosen, nor where numpy adds up rows (latent attention, two norms)."""
        d = self._descriptor
        return (
            isinstance(d.attention, GqaSpec)
            and not d.sandwich_norms
            and not any(isinstance(layer.mlp, MoeSpec) for layer in d.layers)
        )

    def embed(self, tokens: Int32s) -> Floats:
        """Hidden rows ``[len(tokens), hidden]`` before the first layer; a new array."""
        x = self._device.rows_of(self._weights.embedding, tokens)
        if self._descriptor.embedding_scale != 1.0:
            x *= np.float32(self._descriptor.embedding_scale)
        return x

    def advance(
        self,
        x: Floats,
        pages: Sequence[RaggedBatch],
        pools: Sequence[Sequence[PagePool]],
        work: Workspace | None = None,
        wanted: Int32s | None = None,
    ) -> Floats:
        """All layers over hidden rows, in place; their K and V are in the pages afterwards.

        Returns the rows of x, or those in ``wanted`` in its order: then no other row goes through
        the last feed-forward, on which no page depends, and with none wanted no row through the
        last attention.
        """
        step = self._step(pages[0].positions, work)
        last = len(self._weights.layers) - 1
        for layer, weights in enumerate(self._weights.layers):
            group, index = self._places[layer]
            q = self._enter(step, layer, weights, x, index, pools[group], pages[group])
            if layer == last and wanted is not None and not len(wanted):
                return self._device.take(x, wanted)
            self._attend(step, weights, q, x, index, pools[group], pages[group])
            if layer == last and wanted is not None:
                x = self._device.take(x, wanted)
            self._feed_forward(step, layer, weights, x)
        return x

    def logits(self, x: Floats, work: Workspace | None = None) -> Floats:
        """Logits of rows after the last layer."""
        d, w = self._descriptor, self._weights
        normed = (work or self._work).rows("final", len(x), d.hidden)
        self._device.rms_norm(x, 1, w.final_norm, d.norm_plus, d.eps, normed)
        logits = self._device.empty(len(x), d.vocabulary)
        self._device.linear(normed, w.output, logits)
        if d.logit_cap:
            self._device.soft_cap(logits, d.logit_cap)
        return logits

    def _step(self, positions: Int32s, work: Workspace | None) -> Step:
        d = self._descriptor
        return Step(self._device, work or self._work, positions, d.eps, d.norm_plus, d.activation)

    def _enter(
        self,
        step: Step,
        layer: int,
        weights: LayerWeights,
        x: Floats,
        index: int,
        pools: Sequence[PagePool],
        pages: RaggedBatch,
    ) -> Floats:
        """Puts the attention state of a layer's rows into the pages; returns their queries."""
        d = self._descriptor
        rope = d.layers[layer].rope
        normed = step.norm("normed", x, weights.attention_norm)
        tables = self._tables[rope]
        if isinstance(d.attention, GqaSpec) and isinstance(weights.attention, GqaWeights):
            return gqa_rows(
                step, d.attention, weights.attention, normed, tables, index, pools, pages
            )
        if isinstance(d.attention, MlaSpec) and isinstance(weights.attention, MlaWeights):
            interleaved = d.ropes[rope].interleaved
            return mla_rows(
                step,
                d.attention,
                weights.attention,
                normed,
                tables,
                interleaved,
                index,
                pools,
                pages,
            )
        raise TypeError("the weights of a layer are of another kind than its descriptor")

    def _attend(
        self,
        step: Step,
        weights: LayerWeights,
        q: Floats,
        x: Floats,
        index: int,
        pools: Sequence[PagePool],
        pages: RaggedBatch,
    ) -> None:
        """Adds what the queries find in the pages to x."""
        d = self._descriptor
        if isinstance(d.attention, MlaSpec) and isinstance(weights.attention, MlaWeights):
            attended = mla(step, d.attention, weights.attention, q, index, pools, pages)
        elif isinstance(d.attention, GqaSpec):
            attended = gqa(step, d.attention, q, index, pools, pages)
        else:
            raise TypeError("the weights of a layer are of another kind than its descriptor")
        if weights.after_attention_norm is None:
            self._device.linear(attended, weights.attention.out, x, add=True)
            return
        out = step.work.rows("projected", len(x), d.hidden)
        self._device.linear(attended, weights.attention.out, out)
        x += step.norm("after", out, weights.after_attention_norm)

    def _feed_forward(self, step: Step, layer: int, weights: LayerWeights, x: Floats) -> None:
        d = self._descriptor
        normed = step.norm("normed", x, weights.mlp_norm)
        spec = d.layers[layer].mlp
        if isinstance(weights.mlp, MoeWeights) and isinstance(spec, MoeSpec):
            out = step.work.rows("projected", len(x), d.hidden)
            self._experts(step, spec, weights.mlp, normed, out)
        elif not isinstance(weights.mlp, MoeWeights):
            if weights.after_mlp_norm is None:
                dense_mlp(step, weights.mlp, normed, x, add=True)
                return
            out = step.work.rows("projected", len(x), d.hidden)
            dense_mlp(step, weights.mlp, normed, out, add=False)
        else:
            raise TypeError("the weights of a layer are of another kind than its descriptor")
        x += (
            out
            if weights.after_mlp_norm is None
            else step.norm("after", out, weights.after_mlp_norm)
        )
