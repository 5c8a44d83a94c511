"""Steps on a card: batches are staged, and decode steps are captured once and replayed.

A decode step, one row a sequence, is padded to the next power of two of rows and to fixed
capacities of its arrays, so one graph serves every step of that size whatever its lengths and
pages: a replay reads what was staged last. Steps that are larger, or that prefill, run eagerly.
Bounded: one graph for each power of two up to ``CAPTURED_ROWS_MAX``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from pagetrail.kernels.abi import (
    KV_SPAN_TOKENS,
    Floats,
    Int32s,
    RaggedBatch,
)
from pagetrail.kernels.cuda_staging import batch_bytes
from pagetrail.kernels.device import StepDevice
from pagetrail.kernels.plan import Capacity, Cut, SequenceRows, plan

from .arena import Arena
from .decoder import Batch, Decoder
from .layers import Workspace

CAPTURED_ROWS_MAX = 64
ROWS_PER_ITEM = 1


class CardDevice(StepDevice, Protocol):
    """A step device whose steps can be captured."""

    def begin(self, batches: tuple[RaggedBatch, ...], rows_per_item: int | None = None) -> None:
        """Upload a step's batches, each to its group's place."""
        ...

    def write(self, tensor: Any, values: Int32s) -> None:
        """Put host values into a tensor that a captured step reads."""
        ...

    def on_card(self, values: Int32s) -> Any:
        """A tensor of its own with these values."""
        ...

    def of_model(self, array: npt.NDArray[np.generic]) -> Any:
        """An array of the model on the card, uploaded once."""
        ...

    def captured(self, step: Callable[[], Any]) -> tuple[Any, Any]:
        """A graph of ``step``, and the tensor it answers with."""
        ...

    def replay(self, graph: Any) -> None:
        """Run a captured step."""
        ...

    @property
    def batch_bytes_max(self) -> int:
        """Room for the arrays of one staged batch."""
        ...

    def split_items_max(self, q_heads: int, width: int) -> int:
        """Items of a batch whose partial results there is room for."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class _Captured:
    """A graph, what it reads beside the staged batches, and where it leaves the logits.

    ``work`` keeps the intermediate rows alive that the graph writes.
    """

    graph: Any
    tokens: Any
    logits: Any
    work: Workspace


class CardSteps:
    """See the module. Used by the engine's thread alone."""

    def __init__(
        self,
        device: CardDevice,
        decoder: Decoder,
        arena: Arena,
        context: int,
        heads: tuple[int, int, int],
    ) -> None:
        """``heads`` are query heads, KV heads and the width of a value."""
        self._device, self._decoder, self._arena = device, decoder, arena
        self._context, self._heads = context, heads
        self._captured: dict[int, _Captured] = {}

    def forward(self, batch: Batch) -> Floats:
        """An eager step; logits on the card."""
        self._device.begin(batch.pages)
        return self._decoder.forward(batch, self._arena.pools)

    def decode(self, tokens: Int32s, sequences: Sequence[Sequence[SequenceRows]]) -> Floats | None:
        """Logits ``[rows, vocabulary]`` of one row a sequence, ``sequences`` per page group.

        None, with nothing done, when the step is past what is captured.
        """
        rows = 1 << (len(tokens) - 1).bit_length()
        pages = self._planned(rows, sequences)
        if pages is None:
            return None
        if rows not in self._captured:
            self._captured[rows] = self._capture(rows, pages)
        one = self._captured[rows]
        padded = np.zeros(rows, np.int32)
        padded[: len(tokens)] = tokens
        self._device.write(one.tokens, padded)
        self._device.begin(pages, ROWS_PER_ITEM)
        self._device.replay(one.graph)
        logits: Floats = one.logits[: len(tokens)]
        return logits

    def _capture(self, rows: int, pages: tuple[RaggedBatch, ...]) -> _Captured:
        device = self._device
        tokens = device.on_card(np.zeros(rows, np.int32))
        wanted = device.on_card(np.arange(rows, dtype=np.int32))
        work = Workspace(device.empty)
        # The warm-up appends rows of token 0; the replay that follows writes the same slots anew.
        device.begin(pages, ROWS_PER_ITEM)
        graph, logits = device.captured(
            lambda: self._decoder.forward(Batch(tokens, pages, wanted), self._arena.pools, work)
        )
        return _Captured(graph, tokens, logits, work)

    def _planned(
        self, rows: int, sequences: Sequence[Sequence[SequenceRows]]
    ) -> tuple[RaggedBatch, ...] | None:
        """The padded batches of every group, or None when the step is past the capacities."""
        q_heads, kv_heads, width = self._heads
        if rows > CAPTURED_ROWS_MAX:
            return None
        pages_each = -(-self._context // self._arena.page_tokens) + 1
        most = self._device.split_items_max(q_heads, width)
        items = min(rows * (-(-self._context // KV_SPAN_TOKENS) + 1), max(rows, most))
        capacity = Capacity(rows, rows, rows * pages_each, items)
        if batch_bytes(capacity) > self._device.batch_bytes_max:
            return None
        split = self._device.cut(q_heads, kv_heads, len(sequences[0])).split_keys
        planned = []
        for group, members in zip(self._arena.groups, sequences, strict=True):
            if max(sum(-(-s.kv_len // KV_SPAN_TOKENS) + 1 for s in members), rows) > items:
                split = False
            planned.append(
                plan(
                    [_trimmed(member, self._arena.page_tokens) for member in members],
                    self._arena.page_tokens,
                    window=group.window,
                    cut=Cut(ROWS_PER_ITEM, split),
                    capacity=capacity,
                )
            )
        return tuple(planned)


def _trimmed(rows: SequenceRows, page_tokens: int) -> SequenceRows:
    """Without the pages that a table holds for tokens to come."""
    entries = -(-rows.kv_len // page_tokens) - rows.kv_base // page_tokens
    return replace(rows, page_ids=rows.page_ids[:entries])
