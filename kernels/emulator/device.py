"""A Device whose pages are numpy arrays and whose kernels are the CUDA sources run on the host.

For checking the kernels and everything above them without a card. Slow by nature: every CUDA
thread is a fiber. Numbers follow the CUDA kernels, so results agree with a card's up to the order
in which a tensor core sums.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..abi import (
    ROWS,
    Floats,
    Int32s,
    Int64s,
    KernelInputError,
    RaggedBatch,
    SlabSpec,
    Storage,
    check_batch,
    check_pages,
    check_slots,
)
from ..cuda import any_pool, copies, operations
from ..cuda.any_pool import AnyArrays
from ..cuda.arrays import (
    ELEMENT_OF,
    DeviceArray,
    Element,
    PoolArray,
    batch_layout,
)
from ..cuda.codes import AnyPool, CodedPool, CodedSlab
from ..cuda.launch import Launch, Launcher
from ..cuda.operations import check_rows_of_table
from ..cuda.paged import BatchLayout
from ..cuda.quantised import CodedArrays
from ..device import AttentionSpec, PagePool
from ..plan import Cut

ROWS_PER_ITEM_LINES = 64
BATCH_ARRAYS = (
    "q_indptr",
    "kv_len",
    "kv_base",
    "page_indptr",
    "page_ids",
    "items",
    "merge_indptr",
)
NAN_BITS = {Storage.F32: 0x7FC00000, Storage.F16: 0x7E00, Storage.BF16: 0x7FC0}


class EmulatedDevice:
    """Implements ``Device``. ``reference`` computes attention with the plain kernel instead."""

    def __init__(self, launcher: Launcher, *, reference: bool = False) -> None:
        self._launcher = launcher
        self._reference = reference
        self._room: tuple[Floats, ...] = ()  # partial results of the call under way

    def allocate(self, spec: SlabSpec, pages: int, page_tokens: int) -> PagePool:
        check_pages(pages, page_tokens)
        shape = (spec.layers, pages, page_tokens, spec.heads, spec.width)
        return PagePool(spec, pages, page_tokens, np.zeros(shape, spec.storage.dtype))

    def append(self, pool: PagePool, layer: int, rows: Floats, slots: Int64s) -> None:
        self.append_together([pool], layer, [rows], slots)

    def append_together(
        self, pools: Sequence[AnyPool], layer: int, rows: Sequence[Floats], slots: Int64s
    ) -> None:
        """Append to one or two slabs in one launch, as a step on a card does."""
        check_slots(slots, pools[0].pages * pools[0].page_tokens)
        error = np.zeros(1, np.int32)
        self._run(
            any_pool.append(
                [_view(pool) for pool in pools],
                layer,
                [describe(matrix) for matrix in rows],
                describe(slots),
                describe(error),
            )
        )

    def attention(
        self,
        what: AttentionSpec,
        layer: int,
        q: Floats,
        keys: Sequence[AnyPool],
        values: AnyPool,
        batch: RaggedBatch,
        out: Floats,
        lse: Floats | None = None,
    ) -> None:
        view = _view(values)
        layout, partials = self._ready(what, batch, values.pages, view.width)
        self._run(
            any_pool.attention(
                what,
                layer,
                describe(q),
                [_view(pool) for pool in keys],
                view,
                layout,
                describe(out),
                None if lse is None else describe(lse),
                partials,
                reference=self._reference,
            )
        )

    def _ready(
        self, what: AttentionSpec, batch: RaggedBatch, pages: int, value_width: int
    ) -> tuple[BatchLayout, operations.Partials]:
        """A checked batch as launches see it, and room for its split rows, filled with NaN."""
        check_batch(batch, pages)
        rows_max = int(batch.items[:, ROWS].max()) if len(batch.items) else 0
        arrays = {name: describe(getattr(batch, name)) for name in BATCH_ARRAYS}
        layout = batch_layout(batch, arrays, rows_max)
        sizes = operations.Partials.sizes(layout, what.q_heads, value_width)
        self._room = tuple(np.full(size, np.nan, np.float32) for size in sizes)
        return layout, operations.Partials(*map(describe, self._room))

    # Coded pages

    def allocate_coded(self, slab: CodedSlab, pages: int, page_tokens: int) -> CodedPool:
        """Memory for a pool of eight-bit codes and their scales, filled with zeros."""
        check_pages(pages, page_tokens)
        shape = (slab.layers, pages, page_tokens, slab.heads)
        codes, scales = np.zeros((*shape, slab.width), np.uint8), np.zeros(shape, np.float32)
        return CodedPool(slab, pages, page_tokens, codes, scales)

    # Work and copies

    def cut(self, q_heads: int, kv_heads: int, sequences: int) -> Cut:
        del sequences
        return Cut(max(1, ROWS_PER_ITEM_LINES // (q_heads // kv_heads)), False)

    def page_copy(self, pool: AnyPool, source: int, target: int) -> None:
        if not (0 <= source < pool.pages and 0 <= target < pool.pages):
            raise KernelInputError(f"pages {source} and {target} must lie in [0, {pool.pages})")
        lists = np.array([source, target], np.int32)
        at = describe(lists).address
        for extent in _view(pool).extents():
            self._run(copies.page_copy(extent, at, at + lists.itemsize, 1))

    def gather(
        self, pool: AnyPool, page_ids: Int32s, start: int, end: int
    ) -> npt.NDArray[np.uint8]:
        """As ``Device.gather``; of a coded pool the codes of the rows, then their scales."""
        check_rows_of_table(pool.pages, pool.page_tokens, page_ids.tolist(), start, end)
        ids, parts = np.ascontiguousarray(page_ids, np.int32), []
        for extent in _view(pool).extents():
            packed = np.empty(extent.rows_bytes(end - start), np.uint8)
            at = describe(packed).address
            self._run(copies.gather(extent, at, describe(ids).address, start, end))
            parts.append(packed)
        return np.concatenate(parts)

    def scatter(
        self,
        pool: AnyPool,
        page_ids: Int32s,
        start: int,
        end: int,
        packed: npt.NDArray[np.uint8],
    ) -> None:
        """The inverse of ``gather``."""
        check_rows_of_table(pool.pages, pool.page_tokens, page_ids.tolist(), start, end)
        extents = _view(pool).extents()
        need = sum(extent.rows_bytes(end - start) for extent in extents)
        if packed.dtype != np.uint8 or packed.shape != (need,) or not packed.flags.c_contiguous:
            raise KernelInputError(
                f"rows [{start}, {end}) are {need} contiguous bytes, not {packed.shape} of "
                f"{packed.dtype}"
            )
        ids, at = np.ascontiguousarray(page_ids, np.int32), describe(packed).address
        for extent in extents:
            self._run(copies.scatter(extent, at, describe(ids).address, start, end))
            at += extent.rows_bytes(end - start)

    def poison(self, pool: PagePool, page_ids: Int32s) -> None:
        bits = pool.array.view(np.uint32 if pool.spec.storage is Storage.F32 else np.uint16)
        bits[:, page_ids] = NAN_BITS[pool.spec.storage]

    def _run(self, launches: tuple[Launch, ...]) -> None:
        for launch in launches:
            self._launcher.launch(launch)


def describe(array: npt.NDArray[np.generic], element: Element | None = None) -> DeviceArray:
    """A host array as a launch sees it. ``element`` says what its bits are when numpy cannot."""
    kind = element or Element(array.dtype.name)
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return DeviceArray(array.ctypes.data, array.shape, strides, kind)


def _view(pool: AnyPool) -> AnyArrays:
    if isinstance(pool, CodedPool):
        codes, scales = describe(pool.codes), describe(pool.scales)
        return CodedArrays(pool.slab, pool.pages, pool.page_tokens, codes, scales)
    array = describe(pool.array, ELEMENT_OF[pool.spec.storage])
    return PoolArray(pool.spec, pool.pages, pool.page_tokens, array)
