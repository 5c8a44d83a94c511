"""Which launches carry out one paged operation: append or attention.

Pure: addresses and sizes in, launches out. Chooses the kernel (tensor cores where storage and
widths allow it, else the reference), the grid and the shared memory; the sizes mirror
``paged_attention.cuh``. Checks what the sizes themselves can tell; arrays are the caller's affair.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from ..abi import KernelInputError, Storage
from .launch import GRID_YZ_MAX, Launch, SourceModule, address

LOG2_E = math.log2(math.e)
GQA_WIDTHS = (64, 96, 128, 192, 256)
TILE_TOKENS = 64
ROW_PAD_ELEMENTS = 8
WARPS = 4
THREADS = 32 * WARPS
LINES_PER_TILE = 16
APPEND_THREADS = 256
APPEND_UNIT_ELEMENTS = 8
GRID_BLOCKS_MAX = 4_096  # of a grid that strides over its work
SHARED_BYTES_MAX = 227 * 1024  # of one block on sm_90
_THREE_STAGES_ELEMENTS_MAX = 20_480


@dataclass(frozen=True, slots=True)
class SlabLayer:
    """One layer of a slab's pool: where it starts and how far apart things lie, in elements."""

    address: int
    page_stride: int
    token_stride: int
    head_stride: int
    width: int

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

    storage: Storage
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


def attention(call: AttentionCall) -> tuple[Launch, ...]:
    """Launches that compute every row of the batch; none when there are no rows.

    Tensor cores where they can: fp16 or bf16 pages, one key slab of a width in GQA_WIDTHS as wide
    as the values, or a latent slab that is the values, with a rotary slab beside it.
    """
    if call.kv_heads < 1 or call.q_heads % call.kv_heads:
        raise KernelInputError(
            f"{call.q_heads} query heads do not group over {call.kv_heads} KV heads"
        )
    if max(call.q_heads, call.kv_heads) > GRID_YZ_MAX:
        raise KernelInputError(f"at most {GRID_YZ_MAX} heads, not {call.q_heads}")
    if call.batch.rows == 0:
        return ()
    module = tensor_core_module(call)
    if module is None:
        return (_reference(call),)
    if call.batch.item_count == 0:
        return ()
    launches = [_tensor_core(call, module)]
    if call.batch.partial_slots:
        launches.append(_merge(call))
    return tuple(launches)


def reference_attention(call: AttentionCall) -> tuple[Launch, ...]:
    """As ``attention``, by the reference kernel whatever the shape."""
    return (_reference(call),) if call.batch.rows else ()


def tensor_core_module(call: AttentionCall) -> SourceModule | None:
    """The module whose kernels take this shape, or None when only the reference does."""
    if call.storage is Storage.F32:
        return None
    widths = tuple(slab.width for slab in call.keys)
    if len(widths) == 1 and widths[0] == call.values.width and widths[0] in GQA_WIDTHS:
        return SourceModule("gqa_mma.cu", (("HEAD_DIM", widths[0]),))
    latent_is_value = call.keys[0] == call.values
    if len(widths) == 2 and latent_is_value and widths[0] % 32 == 0 and widths[1] % 16 == 0:
        module = SourceModule("mla_mma.cu", (("LATENT", widths[0]), ("ROTARY", widths[1])))
        return module if attention_shared_bytes(module, 1) <= SHARED_BYTES_MAX else None
    return None


def row_tiles(module: SourceModule, lines: int) -> int:
    """Tiles of 16 lines a block takes: one for decode and MLA, more for many lines."""
    defines = dict(module.defines)
    if lines <= LINES_PER_TILE or "LATENT" in defines:
        return 1
    return 4 if defines["HEAD_DIM"] <= 128 else 2


def attention_shared_bytes(module: SourceModule, tiles: int) -> int:
    """Dynamic shared memory of a block: ring, queries, weights, maxima, sums."""
    defines = dict(module.defines)
    if "LATENT" in defines:
        key_width = defines["LATENT"] + defines["ROTARY"]
        stage = TILE_TOKENS * (key_width + ROW_PAD_ELEMENTS)
    else:
        key_width = defines["HEAD_DIM"]
        stage = 2 * TILE_TOKENS * (key_width + ROW_PAD_ELEMENTS)
    stages = 3 if stage <= _THREE_STAGES_ELEMENTS_MAX else 2
    lines = LINES_PER_TILE * tiles
    elements = stages * stage + lines * (key_width + TILE_TOKENS + 2 * ROW_PAD_ELEMENTS)
    return 2 * elements + 4 * 2 * WARPS * lines


def _no_rows(like: AppendRows) -> AppendRows:
    return replace(like, address=0, slab=replace(like.slab, address=0, width=0))


def _batch_arguments(batch: BatchLayout) -> tuple[np.uint64, ...]:
    return tuple(
        address(pointer)
        for pointer in (
            batch.q_indptr,
            batch.kv_len,
            batch.kv_base,
            batch.page_indptr,
            batch.page_ids,
        )
    )


def _tensor_core(call: AttentionCall, module: SourceModule) -> Launch:
    lines = call.batch.rows_per_item_max * (call.q_heads // call.kv_heads)
    tiles = row_tiles(module, lines)
    second = call.keys[1] if len(call.keys) == 2 else call.values
    arguments: tuple[np.generic, ...] = (
        address(call.q),
        address(call.keys[0].address),
        address(second.address),
        *_batch_arguments(call.batch),
        address(call.batch.items),
        address(call.out),
        address(call.lse),
        address(call.partial_o),
        address(call.partial_lse),
        np.int64(call.q_row_stride),
        np.int64(call.out_row_stride),
        *call.keys[0].strides,
        *second.strides,
        page_shift(call.batch.page_tokens),
        np.int32(call.q_storage),
        np.int32(call.out_storage),
        np.int32(call.q_heads),
        np.int32(call.kv_heads),
        np.int32(call.batch.window),
        np.float32(call.scale * LOG2_E),
    )
    blocks = -(-lines // (LINES_PER_TILE * tiles))
    return Launch(
        module,
        attention_kernel(module, call.storage, tiles),
        (call.batch.item_count, call.kv_heads, max(1, blocks)),
        THREADS,
        attention_shared_bytes(module, tiles),
        arguments,
    )


def attention_kernel(module: SourceModule, storage: Storage, tiles: int) -> str:
    """The kernel's name: ``gqa_mma_f16_d128``, ``mla_mma_bf16_d512_64``."""
    shape = "_".join(str(value) for _, value in module.defines)
    family = module.file.removesuffix(".cu")
    if tiles > 1:
        family = family.replace("gqa", "gqa_prefill")
    return f"{family}_{storage.name.lower()}_d{shape}"


def _merge(call: AttentionCall) -> Launch:
    arguments: tuple[np.generic, ...] = (
        address(call.partial_o),
        address(call.partial_lse),
        address(call.batch.merge_indptr),
        address(call.out),
        address(call.lse),
        np.int64(call.out_row_stride),
        np.int32(call.q_heads),
        np.int32(call.values.width),
        np.int32(call.out_storage),
    )
    grid = (call.batch.rows, call.q_heads, 1)
    return Launch(SourceModule("merge.cu"), "merge_states", grid, THREADS, 0, arguments)


def _reference(call: AttentionCall) -> Launch:
    first = call.keys[0]
    second = call.keys[1] if len(call.keys) == 2 else replace(first, address=0, width=0)
    arguments: tuple[np.generic, ...] = (
        address(call.q),
        address(first.address),
        address(second.address),
        address(call.values.address),
        *_batch_arguments(call.batch),
        address(call.out),
        address(call.lse),
        np.int64(call.q_row_stride),
        np.int64(call.out_row_stride),
        *first.strides,
        *second.strides,
        *call.values.strides,
        np.int32(call.batch.sequences),
        page_shift(call.batch.page_tokens),
        np.int32(call.q_storage),
        np.int32(call.storage),
        np.int32(call.out_storage),
        np.int32(call.q_heads),
        np.int32(call.kv_heads),
        np.int32(first.width),
        np.int32(second.width),
        np.int32(call.values.width),
        np.int32(call.batch.window),
        np.float32(call.scale * LOG2_E),
    )
    shared = 4 * (first.width + second.width + call.values.width)
    grid = (call.batch.rows, call.q_heads, 1)
    return Launch(SourceModule("gqa_ref.cu"), "gqa_ref", grid, 32, shared, arguments)


def page_shift(page_tokens: int) -> np.int32:
    """log2 of the page size, which is a power of two."""
    return np.int32(page_tokens.bit_length() - 1)
