"""Operations on pools of eight-bit codes: which launches, and the checks before them.

Pure. A reader gets ``code * scale`` (codes.py). Attention on tensor cores turns a tile into fp16 on
its way, so its bits are those of an fp16 pool of the same numbers; a number past fp16's range is
infinite there, as it would be in that pool.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..abi import INT32_MAX, KernelInputError
from ..device import AttentionSpec
from .arrays import DeviceArray, Element, check_matrix, check_same_place, check_vector
from .codes import CodedSlab
from .copies import PageExtent
from .launch import Launch, SourceModule, address
from .operations import Partials, attention_launches, check_attention_rows
from .paged import GRID_BLOCKS_MAX, BatchLayout, SlabLayer

MODULE = SourceModule("append_quantised.cu")
THREADS = 128  # of an append; with more, the compiler saves registers by spilling
WARPS_PER_BLOCK = THREADS // 32


@dataclass(frozen=True, slots=True)
class CodedArrays:
    """One coded slab's pool as launches see it; shapes and elements as codes.py says."""

    slab: CodedSlab
    pages: int
    page_tokens: int
    codes: DeviceArray
    scales: DeviceArray

    @property
    def slots(self) -> int:
        return self.pages * self.page_tokens

    def layer(self, layer: int) -> SlabLayer:
        """One layer of the pool. Raises KernelInputError when there is no such layer."""
        if not 0 <= layer < self.slab.layers:
            raise KernelInputError(
                f"slab {self.slab.name!r} has {self.slab.layers} layers, not layer {layer}"
            )
        heads, width = self.slab.heads, self.slab.width
        return SlabLayer(
            address=self.codes.address + layer * self.slots * heads * width,
            page_stride=self.page_tokens * heads * width,
            token_stride=heads * width,
            head_stride=width,
            width=width,
            scales=self.scales.address + layer * self.slots * heads * 4,
        )

    @property
    def width(self) -> int:
        """Elements of a head."""
        return self.slab.width

    def extents(self) -> tuple[PageExtent, ...]:
        """Codes and scales in bytes, for copies of pages and rows."""
        return (
            self._extent(self.codes, self.slab.row_bytes),
            self._extent(self.scales, self.slab.scale_row_bytes),
        )

    def _extent(self, array: DeviceArray, row_bytes: int) -> PageExtent:
        page_bytes = self.page_tokens * row_bytes
        return PageExtent(
            array.address,
            self.slab.layers,
            self.pages * page_bytes,
            page_bytes,
            row_bytes,
            self.page_tokens,
        )


def append(
    pools: Sequence[CodedArrays],
    layer: int,
    rows: Sequence[DeviceArray],
    slots: DeviceArray,
    error: DeviceArray,
) -> tuple[Launch, ...]:
    """Write fp32 ``rows[i][B, heads * width]`` to one or two pools at int64 slots.

    Slot -1 is skipped; a slot past the pools is skipped and raises ``error``. Slots must be unique.
    """
    if not 1 <= len(pools) <= 2 or len(pools) != len(rows):
        raise KernelInputError(
            f"an append writes one or two slabs, not {len(pools)} with {len(rows)} arrays of rows"
        )
    first = pools[0]
    named: dict[str, DeviceArray] = {"slots": slots, "error": error}
    for pool, matrix in zip(pools, rows, strict=True):
        check_pool(pool)
        if _kind(pool) != _kind(first):
            raise KernelInputError(
                f"slabs {first.slab.name!r} and {pool.slab.name!r} are appended together, so "
                "heads, code, pages and page size must be equal"
            )
        name, width = pool.slab.name, pool.slab.heads * pool.slab.width
        check_matrix(f"rows of {name!r}", matrix, slots.shape[0], width, (Element.F32,))
        named |= {name: pool.codes, f"scales of {name}": pool.scales, f"rows of {name}": matrix}
    check_vector("slots", slots, slots.shape[0], Element.I64)
    check_vector("error", error, 1, Element.I32)
    check_same_place(named)
    units = slots.shape[0] * first.slab.heads
    if units == 0:
        return ()
    if units > INT32_MAX:
        raise KernelInputError(
            f"an append of {slots.shape[0]} rows of {first.slab.heads} heads is {units} units of "
            f"work, at most {INT32_MAX}; append fewer rows at a time"
        )
    views = [pool.layer(layer) for pool in pools]
    places = [
        (m.address, v.address, v.scales, m.strides[0]) for m, v in zip(rows, views, strict=True)
    ]
    (rows_a, codes_a, scales_a, stride_a), (rows_b, codes_b, scales_b, stride_b) = (
        *places,
        *([(0, 0, 0, 0)] * (2 - len(places))),
    )
    arguments = (
        address(rows_a),
        address(rows_b),
        address(slots.address),
        address(codes_a),
        address(codes_b),
        address(scales_a),
        address(scales_b),
        address(error.address),
        np.int64(first.slots),
        np.int64(stride_a),
        np.int64(stride_b),
        np.int32(slots.shape[0]),
        np.int32(first.slab.heads),
        np.int32(views[0].width),
        np.int32(views[-1].width),
    )
    grid = (min(GRID_BLOCKS_MAX, -(-units // WARPS_PER_BLOCK)), 1, 1)
    kernel = f"kv_append_{first.slab.code.name.lower()}"
    return (Launch(MODULE, kernel, grid, THREADS, 0, arguments),)


def attention(
    what: AttentionSpec,
    layer: int,
    q: DeviceArray,
    keys: Sequence[CodedArrays],
    values: CodedArrays,
    batch: BatchLayout,
    out: DeviceArray,
    lse: DeviceArray | None,
    partials: Partials,
    *,
    reference: bool = False,
) -> tuple[Launch, ...]:
    """As ``operations.attention``, over coded pools."""
    named: dict[str, DeviceArray] = {}
    for pool in (*keys, values):
        check_pool(pool)
        if _kind(pool) != _kind(values) or pool.page_tokens != batch.page_tokens:
            raise KernelInputError(
                f"slab {pool.slab.name!r} has other heads, code, pages or page size than "
                f"{values.slab.name!r} and the batch"
            )
        named |= {pool.slab.name: pool.codes, f"scales of {pool.slab.name}": pool.scales}
    widths = tuple(pool.slab.width for pool in keys)
    check_attention_rows(what, q, widths, values.slab.width, batch, out, lse, named)
    return attention_launches(
        what,
        values.slab.code,
        q,
        [pool.layer(layer) for pool in keys],
        values.layer(layer),
        values.slab.heads,
        batch,
        out,
        lse,
        partials,
        reference=reference,
    )


def check_pool(pool: CodedArrays) -> None:
    """Raise unless codes and scales have their slab's shape and element, contiguous."""
    slab = pool.slab
    shape = (slab.layers, pool.pages, pool.page_tokens, slab.heads)
    _check_contiguous(f"codes of {slab.name!r}", pool.codes, (*shape, slab.width), Element.U8)
    _check_contiguous(f"scales of {slab.name!r}", pool.scales, shape, Element.F32)


def _kind(pool: CodedArrays) -> tuple[object, ...]:
    return pool.slab.heads, pool.slab.code, pool.pages, pool.page_tokens


def _check_contiguous(
    name: str, array: DeviceArray, shape: tuple[int, ...], element: Element
) -> None:
    strides = tuple(int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape)))
    if array.element is not element or array.shape != shape or array.strides != strides:
        raise KernelInputError(
            f"{name} must be contiguous {element.value} {shape}, not {array.element.value} "
            f"{array.shape} with strides {array.strides}"
        )
