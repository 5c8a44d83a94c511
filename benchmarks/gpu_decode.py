"""Decode of a whole small model on a card, each step eager and captured.

The model has random weights in the shape of SmolLM2-135M: what is measured is time, and that both
ways give the same logits.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from pagetrail.engine.arena import Arena
from pagetrail.engine.card_steps import CardSteps
from pagetrail.engine.decoder import Batch, Decoder
from pagetrail.engine.descriptor import DenseSpec, GqaSpec, LayerSpec, ModelDescriptor, RopeSpec
from pagetrail.engine.model_weights import DenseWeights, GqaWeights, LayerWeights, ModelWeights
from pagetrail.kernels.abi import Storage
from pagetrail.kernels.cuda_step import CudaStepDevice
from pagetrail.kernels.device import Activation, PackedLinear
from pagetrail.kernels.plan import SequenceRows, plan

PAGE_TOKENS = 16
TOLERANCE = 5e-2  # of logits: products of other shapes round bf16 differently
SPREAD = 0.02


@dataclass(frozen=True, slots=True)
class Shape:
    """A Llama-like model and the decode it is measured on."""

    layers: int = 30
    hidden: int = 576
    q_heads: int = 9
    kv_heads: int = 3
    head_width: int = 64
    width: int = 1_536
    vocabulary: int = 49_152
    context: int = 2_048
    tokens: int = 1_024  # in the pages before the first measured step
    steps: int = 40
    storage: Storage = Storage.BF16


REHEARSAL = Shape(2, 64, 2, 1, 64, 96, 128, 128, 40, 2, Storage.F16)
BATCHES = (1, 8, 32)


class SmallModel:
    """A decoder over random weights, its pages, and one decode step either way."""

    def __init__(self, device: CudaStepDevice, shape: Shape, batch_max: int) -> None:
        self.shape = shape
        self._device = device
        attention = GqaSpec(shape.q_heads, shape.kv_heads, shape.head_width, shape.head_width**-0.5)
        descriptor = ModelDescriptor(
            family="llama",
            hidden=shape.hidden,
            vocabulary=shape.vocabulary,
            context=shape.context,
            layers=(LayerSpec(0, 0, DenseSpec(shape.width)),) * shape.layers,
            attention=attention,
            ropes=(RopeSpec(10_000.0, shape.head_width),),
            eps=1e-5,
            activation=Activation.SILU,
            tied_embeddings=True,
        )
        groups = descriptor.groups(shape.storage)
        self._pages_each = shape.context // PAGE_TOKENS
        self._arena = Arena(device, groups, (self._pages_each * batch_max,), PAGE_TOKENS)
        for pool in self._arena.pools[0]:
            pool.array.normal_()  # type: ignore[attr-defined]
        weights = self._weights(np.random.default_rng(0))
        self._decoder = Decoder(device, descriptor, weights, [groups[0].layers], shape.context)
        heads = (shape.q_heads, shape.kv_heads, shape.head_width)
        self._steps = CardSteps(device, self._decoder, self._arena, shape.context, heads)
        self._order = np.random.default_rng(1).permutation(self._pages_each * batch_max)

    def _weights(self, rng: np.random.Generator) -> ModelWeights:
        shape = self.shape
        ones = np.ones(shape.hidden, np.float32)

        def packed(outputs: int, depth: int) -> PackedLinear:
            values = rng.standard_normal((outputs, depth), np.float32) * np.float32(SPREAD)
            return self._device.pack(values, shape.storage)

        def layer() -> LayerWeights:
            q = shape.q_heads * shape.head_width
            qkv = packed(q + 2 * shape.kv_heads * shape.head_width, shape.hidden)
            attention = GqaWeights(qkv, packed(shape.hidden, q), None, None)
            mlp = DenseWeights(
                packed(2 * shape.width, shape.hidden), packed(shape.hidden, shape.width)
            )
            return LayerWeights(ones, attention, None, ones, mlp, None)

        embedding = packed(shape.vocabulary, shape.hidden)
        layers = tuple(layer() for _ in range(shape.layers))
        return ModelWeights(embedding, layers, ones, embedding)

    def sequences(self, batch: int, tokens: int) -> list[SequenceRows]:
        each = self._pages_each
        return [
            SequenceRows(1, tokens, self._order[i * each : (i + 1) * each].astype(np.int32))
            for i in range(batch)
        ]

    def captured(self, tokens: np.ndarray[Any, Any], rows: list[SequenceRows]) -> Any:
        """Logits of one captured step, fetched."""
        logits = self._steps.decode(tokens, [rows])
        if logits is None:
            raise SystemExit(f"a step of {len(rows)} rows is past what is captured")
        return self._device.fetch(logits)

    def eager(self, tokens: np.ndarray[Any, Any], rows: list[SequenceRows]) -> Any:
        """Logits of one eager step, fetched."""
        shape = self.shape
        cut = self._device.cut(shape.q_heads, shape.kv_heads, len(rows))
        pages = plan(rows, PAGE_TOKENS, cut=cut)
        wanted = np.arange(len(rows), dtype=np.int32)
        return self._device.fetch(self._steps.forward(Batch(tokens, (pages,), wanted)))


def measure(device: CudaStepDevice, rehearsal: bool) -> list[dict[str, Any]]:
    """Time of a step, from planning to logits on the host, for each batch; 0 in a rehearsal."""
    shape = REHEARSAL if rehearsal else Shape()
    batches = BATCHES[:2] if rehearsal else BATCHES
    model = SmallModel(device, shape, max(batches))
    found = []
    for batch in batches:
        tokens = np.random.default_rng(batch).integers(0, shape.vocabulary, batch, np.int32)
        first = model.sequences(batch, shape.tokens + 1)
        eager, captured = model.eager(tokens, first), model.captured(tokens, first)
        error = float(np.linalg.norm(captured - eager) / np.linalg.norm(eager))
        if not error < TOLERANCE:
            raise SystemExit(f"captured decode of {batch} rows is wrong: relative error {error}")
        times = {}
        for name, step in (("eager", model.eager), ("captured", model.captured)):
            started_ns = time.perf_counter_ns()
            for i in range(shape.steps):
                step(tokens, model.sequences(batch, shape.tokens + 1 + i))
            elapsed_ns = time.perf_counter_ns() - started_ns
            times[name] = 0 if rehearsal else elapsed_ns // shape.steps
        found.append(
            {
                "batch": batch,
                "tokens": shape.tokens,
                "relative_error": error,
                "eager_ns": times["eager"],
                "captured_ns": times["captured"],
            }
        )
    return found
