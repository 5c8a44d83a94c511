"""The seam between the engine and a device: page pools, and row math over packed weights.

``Device`` owns memory and carries out one step's launches in the order it is given them. It never
decides anything, never looks at a request, and knows a page only by its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .abi import Floats, Int32s, Int64s, RaggedBatch, SlabSpec, Storage
from .plan import Cut


class Activation(IntEnum):
    """The function on the gate of a gated layer."""

    SILU = 0
    GELU_TANH = 1


@dataclass(frozen=True, slots=True, eq=False)
class PagePool:
    """One slab's pages on a device: ``[layers, pages, page_tokens, heads, width]``."""

    spec: SlabSpec
    pages: int
    page_tokens: int
    array: npt.NDArray[np.generic]


@dataclass(frozen=True, slots=True, eq=False)
class PackedLinear:
    """Weights ``[outputs, depth]`` in the device's own order, and the bias if there is one."""

    outputs: int
    depth: int
    storage: Storage
    data: npt.NDArray[np.generic]
    bias: Floats | None = None


@dataclass(frozen=True, slots=True)
class AttentionSpec:
    """What one attention call needs beside its arrays."""

    q_heads: int
    scale: float  # on the scores, before the softmax


class Device(Protocol):
    """Pages. A failed check raises KernelInputError before anything is launched."""

    def allocate(self, spec: SlabSpec, pages: int, page_tokens: int) -> PagePool:
        """Memory for the pool, filled with zeros. Raises MemoryError when there is no room."""
        ...

    def append(self, pool: PagePool, layer: int, rows: Floats, slots: Int64s) -> None:
        """Write ``rows[B, heads * width]``, rounded to nearest even, each to its slot.

        Slot -1 is skipped. A slot past the pool raises; the other rows may have been written.
        """
        ...

    def attention(
        self,
        what: AttentionSpec,
        layer: int,
        q: Floats,
        keys: Sequence[PagePool],
        values: PagePool,
        batch: RaggedBatch,
        out: Floats,
        lse: Floats | None = None,
    ) -> None:
        """``out[rows, q_heads * values.width]`` of ``q[rows, q_heads * key width]``.

        Several key pools stand side by side in a query head (latent, then rotary). ``lse[rows,
        q_heads]`` is base 2. A row that sees no key gives 0 and -inf.
        """
        ...

    def cut(self, q_heads: int, kv_heads: int, sequences: int) -> Cut:
        """How to cut a step's items so that this device is busy."""
        ...

    def page_copy(self, pool: PagePool, source: int, target: int) -> None:
        """Copy one page over all layers."""
        ...

    def gather(
        self, pool: PagePool, page_ids: Int32s, start: int, end: int
    ) -> npt.NDArray[np.uint8]:
        """Bytes of token rows ``[start, end)`` of a page table: layer by layer, row by row."""
        ...

    def scatter(
        self, pool: PagePool, page_ids: Int32s, start: int, end: int, packed: npt.NDArray[np.uint8]
    ) -> None:
        """The inverse of ``gather``."""
        ...

    def poison(self, pool: PagePool, page_ids: Int32s) -> None:
        """Fill pages with NaN, so that reading a released page cannot go unnoticed."""
        ...


class RowMath(Protocol):
    """Dense math, row by row: a row's result depends on that row and the weights alone."""

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        """What the bits depend on: implementation, version, instruction set."""
        ...

    def pack(self, weight: Floats, storage: Storage, bias: Floats | None = None) -> PackedLinear:
        """Weights ``[outputs, depth]`` rounded to ``storage`` and laid out for ``linear``."""
        ...

    def linear(self, x: Floats, weight: PackedLinear, out: Floats, add: bool = False) -> None:
        """``out[M, outputs] = x[M, depth] @ weight.T + bias``, or ``out +=`` that.

        Sums are fp32. A bf16 weight multiplies rows rounded to bf16, as processors with an
        instruction for it do; on a card rows take the weight's type.
        """
        ...

    def rows_of(self, weight: PackedLinear, rows: Int32s) -> Floats:
        """Rows of the weight as fp32: the embedding of tokens, when it is tied to the output."""
        ...

    def rms_norm(
        self, x: Floats, groups: int, weight: Floats, plus: float, eps: float, out: Floats
    ) -> None:
        """Norm each of ``groups`` equal stretches of every row; scale by ``weight + plus``."""
        ...

    def rope(
        self,
        x: Floats,
        heads: int,
        head_width: int,
        offset: int,
        positions: Int32s,
        tables: tuple[Floats, Floats],
        interleaved: bool = False,
    ) -> None:
        """Rotate, in place, ``2 * tables[0].shape[1]`` values of every head from ``offset`` on."""
        ...

    def gated(self, x: Floats, kind: Activation, out: Floats) -> None:
        """``out[M, n] = kind(x[:, :n]) * x[:, n:]``."""
        ...

    # Arrays of a step lie where the device computes: numpy's on the host, torch's on a card.

    def empty(self, rows: int, width: int) -> Floats:
        """An uninitialised ``[rows, width]`` for results."""
        ...

    def take(self, x: Floats, rows: Int32s) -> Floats:
        """Those rows of ``x``, contiguous."""
        ...

    def soft_cap(self, x: Floats, cap: float) -> None:
        """``x = cap * tanh(x / cap)`` in place."""
        ...

    def fetch(self, x: Floats) -> Floats:
        """The array on the host, when it is there."""
        ...


class StepDevice(Device, RowMath, Protocol):
    """A device that holds pages and does the row math of a step."""
