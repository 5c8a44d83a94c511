"""Which launches carry out one attention.

Pure: sizes and addresses in, launches out. Chooses the kernel (tensor cores where storage and
widths allow it, else the reference), the grid and the shared memory, whose sizes mirror
``paged_attention.cuh`` and ``tiles.cuh``.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ..abi import KernelInputError, Storage
from .codes import Code
from .launch import GRID_YZ_MAX, Launch, SourceModule, address
from .paged import AttentionCall, BatchLayout, page_shift

LOG2_E = math.log2(math.e)
GQA_WIDTHS = (64, 96, 128, 192, 256)
TILE_TOKENS = 64
ROW_PAD_ELEMENTS = 8
WARPS = 4
THREADS = 32 * WARPS
LINES_PER_TILE = 16
SHARED_BYTES_MAX = 227 * 1024  # of one block on sm_90
_PLAIN_STAGE_BYTES_OF_THREE = 40_960  # widest stage of a ring of three
_CODED_STAGE_BYTES_OF_THREE = 20_480


def attention(call: AttentionCall) -> tuple[Launch, ...]:
    """Launches that compute every row of the batch; none when there are no rows.

    Tensor cores where they can: pages of 16 or 8 bits, one key slab of a width in GQA_WIDTHS as
    wide as the values, or a latent slab that is the values, with a rotary slab beside it.
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
    suffix = "_coded.cu" if isinstance(call.storage, Code) else ".cu"
    widths = tuple(slab.width for slab in call.keys)
    if len(widths) == 1 and widths[0] == call.values.width and widths[0] in GQA_WIDTHS:
        return SourceModule(f"gqa_mma{suffix}", (("HEAD_DIM", widths[0]),))
    latent_is_value = call.keys[0] == call.values
    if len(widths) == 2 and latent_is_value and widths[0] % 32 == 0 and widths[1] % 16 == 0:
        defines = (("LATENT", widths[0]), ("ROTARY", widths[1]))
        module = SourceModule(f"mla_mma{suffix}", defines)
        return module if attention_shared_bytes(module, 1) <= SHARED_BYTES_MAX else None
    return None


def row_tiles(module: SourceModule, lines: int) -> int:
    """Tiles of 16 lines a block takes: one for decode and MLA, more for many lines."""
    defines = dict(module.defines)
    if lines <= LINES_PER_TILE or "LATENT" in defines:
        return 1
    return 4 if defines["HEAD_DIM"] <= 128 and not _coded(module) else 2


def attention_shared_bytes(module: SourceModule, tiles: int) -> int:
    """Dynamic shared memory of a block: ring, landed tile, queries, weights, maxima, sums."""
    defines = dict(module.defines)
    if "LATENT" in defines:
        key_width = elements_width = defines["LATENT"] + defines["ROTARY"]
        tile = TILE_TOKENS * (key_width + ROW_PAD_ELEMENTS)
    else:
        key_width = defines["HEAD_DIM"]
        elements_width = 2 * key_width
        tile = 2 * TILE_TOKENS * (key_width + ROW_PAD_ELEMENTS)
    if _coded(module):
        stage_bytes = TILE_TOKENS * (elements_width + 2 * 4)
        stages = 3 if stage_bytes <= _CODED_STAGE_BYTES_OF_THREE else 2
        landed_bytes = 2 * tile
    else:
        stage_bytes = 2 * tile
        stages = 3 if stage_bytes <= _PLAIN_STAGE_BYTES_OF_THREE else 2
        landed_bytes = 0
    lines = LINES_PER_TILE * tiles
    lines_bytes = 2 * lines * (key_width + TILE_TOKENS + 2 * ROW_PAD_ELEMENTS)
    return stages * stage_bytes + landed_bytes + lines_bytes + 4 * 2 * WARPS * lines


def _coded(module: SourceModule) -> bool:
    return module.file.endswith("_coded.cu")


def attention_kernel(module: SourceModule, storage: Storage | Code, tiles: int) -> str:
    """The kernel's name: ``gqa_mma_f16_d128``, ``mla_mma_e4m3_d512_64``."""
    shape = "_".join(str(value) for _, value in module.defines)
    family = module.file.removesuffix(".cu").removesuffix("_coded")
    if tiles > 1:
        family = family.replace("gqa", "gqa_prefill")
    return f"{family}_{storage.name.lower()}_d{shape}"


def _tensor_core(call: AttentionCall, module: SourceModule) -> Launch:
    lines = call.batch.rows_per_item_max * (call.q_heads // call.kv_heads)
    tiles = row_tiles(module, lines)
    second = call.keys[1] if len(call.keys) == 2 else call.values
    arguments: tuple[np.generic, ...] = (
        address(call.q),
        address(call.keys[0].address),
        address(second.address),
        address(call.keys[0].scales),
        address(second.scales),
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
        address(first.scales),
        address(second.scales),
        address(call.values.scales),
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
