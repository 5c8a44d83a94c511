"""One device for the engine out of two: pages and attention here, dense row math there.

For devices that hold pages only: the CUDA device and the host emulator of its kernels. Nothing is
decided and nothing is kept here; every call goes to the part that implements it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .abi import Floats, Int32s, Int64s, RaggedBatch, SlabSpec, Storage
from .device import Activation, AttentionSpec, Device, PackedLinear, PagePool, RowMath
from .plan import Cut


class SplitDevice:
    """Implements ``StepDevice``. ``name`` stands for the pages' implementation in the identity."""

    def __init__(self, pages: Device, math: RowMath, name: str) -> None:
        self._pages, self._math, self._name = pages, math, name

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        return (("pages", self._name), *self._math.identity)

    # Pages

    def allocate(self, spec: SlabSpec, pages: int, page_tokens: int) -> PagePool:
        return self._pages.allocate(spec, pages, page_tokens)

    def append(self, pool: PagePool, layer: int, rows: Floats, slots: Int64s) -> None:
        self._pages.append(pool, layer, rows, slots)

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
        self._pages.attention(what, layer, q, keys, values, batch, out, lse)

    def cut(self, q_heads: int, kv_heads: int, sequences: int) -> Cut:
        return self._pages.cut(q_heads, kv_heads, sequences)

    def page_copy(self, pool: PagePool, source: int, target: int) -> None:
        self._pages.page_copy(pool, source, target)

    def gather(
        self, pool: PagePool, page_ids: Int32s, start: int, end: int
    ) -> npt.NDArray[np.uint8]:
        return self._pages.gather(pool, page_ids, start, end)

    def scatter(
        self, pool: PagePool, page_ids: Int32s, start: int, end: int, packed: npt.NDArray[np.uint8]
    ) -> None:
        self._pages.scatter(pool, page_ids, start, end, packed)

    def poison(self, pool: PagePool, page_ids: Int32s) -> None:
        self._pages.poison(pool, page_ids)

    # Row math

    def pack(self, weight: Floats, storage: Storage, bias: Floats | None = None) -> PackedLinear:
        return self._math.pack(weight, storage, bias)

    def linear(self, x: Floats, weight: PackedLinear, out: Floats, add: bool = False) -> None:
        self._math.linear(x, weight, out, add)

    def rows_of(self, weight: PackedLinear, rows: Int32s) -> Floats:
        return self._math.rows_of(weight, rows)

    def rms_norm(
        self, x: Floats, groups: int, weight: Floats, plus: float, eps: float, out: Floats
    ) -> None:
        self._math.rms_norm(x, groups, weight, plus, eps, out)

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
        self._math.rope(x, heads, head_width, offset, positions, tables, interleaved)

    def gated(self, x: Floats, kind: Activation, out: Floats) -> None:
        self._math.gated(x, kind, out)

    def empty(self, rows: int, width: int) -> Floats:
        return self._math.empty(rows, width)

    def take(self, x: Floats, rows: Int32s) -> Floats:
        return self._math.take(x, rows)

    def soft_cap(self, x: Floats, cap: float) -> None:
        self._math.soft_cap(x, cap)

    def fetch(self, x: Floats) -> Floats:
        return self._math.fetch(x)
