"""One paged operation as addresses and sizes, and the launches of an append.

Pure. What these values mean to the kernels is the ABI of the sources; ``attention.py`` makes the
launches of an attention. Checks what sizes can tell; arrays are the caller's affair.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ..abi import INT32_MAX, KernelInputError, Storage
from .codes import Code
from .launch import Launch, SourceModule, address

APPEND_THREADS = 256
APPEND_UNIT_ELEMENTS = 8
GRID_BLOCKS_MAX = 4_096  # of a grid that strides over its work


@dataclass(frozen=True, slots=True)
class SlabLayer:
    """One layer of a slab's pool: where it starts and how far apart things lie, in elements."""

    address: int
    page_stride: int
    token_stride: int
    head_stride: int
    width: int
    scales: int = 0  # address of the layer's scales, beside 8-bit codes

    @property
    def strides(self) -> tuple[np.int64, np.int64, np.int64]:
        return np.int64(self.page_stride), np.int64(self.token_stride), np.int64(self.head_stride)


@dataclass(frozen=True, slots=True)
class AppendRows:
    """fp32 rows that go into one slab; consecutive rows lie ``row_stride`` elements apart."""

    address: int
    row_stride: int
    slab: SlabLayer


@dataclass(frozen=True, slots=True)
class AppendCall:
    """Rows of one or two slabs by one list of int64 slots; ``error`` is one int32, raised to 1."""

    storage: Storage
    rows: tuple[AppendRows, ...]
    slots: int
    error: int
    row_count: int
    heads: int
    page_tokens: int
    slots_max: int


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """Addresses and sizes of a ragged batch on a device (abi.RaggedBatch)."""

    q_indptr: int
    kv_len: int
    kv_base: int
    page_indptr: int
    page_ids: int
    items: int
    merge_indptr: int
    rows: int
    sequences: int
    item_count: int
    rows_per_item_max: int
    partial_slots: int
    page_tokens: int
    window: int


@dataclass(frozen=True, slots=True)
class AttentionCall:
    """One attention over a batch. ``keys`` are one slab, or latent and rotary; strides of rows in
    elements; ``lse`` 0 when not wanted; partial arrays hold ``partial_slots`` rows of results."""

    storage: Storage | Code
    keys: tuple[SlabLayer, ...]
    values: SlabLayer
    batch: BatchLayout
    q: int
    q_row_stride: int
    q_storage: Storage
    out: int
    out_row_stride: int
    out_storage: Storage
    lse: int
    partial_o: int
    partial_lse: int
    q_heads: int
    kv_heads: int
    scale: float


def append(call: AppendCall) -> tuple[Launch, ...]:
    """Launches that write the rows into their slabs; none when there are no rows."""
    if not 1 <= len(call.rows) <= 2:
        raise KernelInputError(f"an append writes one or two slabs, not {len(call.rows)}")
    if call.row_count == 0:
        return ()
    first = call.rows[0]
    second = call.rows[1] if len(call.rows) == 2 else _no_rows(first)
    units = (
        call.row_count
        * call.heads
        * max(-(-rows.slab.width // APPEND_UNIT_ELEMENTS) for rows in call.rows)
    )
    if units > INT32_MAX:
        raise KernelInputError(
            f"an append of {call.row_count} rows is {units} units of work, at most {INT32_MAX}; "
            "append fewer rows at a time"
        )
    arguments: tuple[np.generic, ...] = (
        address(first.address),
        address(second.address),
        address(call.slots),
        address(first.slab.address),
        address(second.slab.address),
        address(call.error),
        np.int64(call.slots_max),
        np.int64(first.row_stride),
        np.int64(second.row_stride),
        *first.slab.strides,
        *second.slab.strides,
        np.int32(call.row_count),
        np.int32(call.heads),
        np.int32(first.slab.width),
        np.int32(second.slab.width),
        page_shift(call.page_tokens),
    )
    kernel = f"kv_append_{call.storage.name.lower()}"
    grid = (min(GRID_BLOCKS_MAX, -(-units // APPEND_THREADS)), 1, 1)
    return (Launch(SourceModule("append.cu"), kernel, grid, APPEND_THREADS, 0, arguments),)


def _no_rows(like: AppendRows) -> AppendRows:
    return replace(like, address=0, slab=replace(like.slab, address=0, width=0))


def page_shift(page_tokens: int) -> np.int32:
    """log2 of the page size, which is a power of two."""
    return np.int32(page_tokens.bit_length() - 1)
