"""Checks of shape, type and range that every launcher makes before it launches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from .abi import Floats, Int32s, KernelInputError, RaggedBatch
from .device import AttentionSpec, PagePool

KEY_SLABS_MAX = 2
Item = TypeVar("Item", bound=np.generic)


def check_rows(name: str, array: Floats, rows: int, width: int) -> None:
    """An fp32 matrix whose rows are contiguous; the rows themselves may lie apart."""
    if (
        array.dtype != np.float32
        or array.shape != (rows, width)
        or (array.size and array.strides[1] != 4)
        or array.strides[0] % 4
    ):
        raise KernelInputError(
            f"{name} must be fp32 [{rows}, {width}] with contiguous rows, "
            f"not {array.shape} of {array.dtype} with strides {array.strides}"
        )


def check_indices(name: str, indices: npt.NDArray[np.integer], limit: int) -> None:
    if indices.size and not (int(indices.min()) >= 0 and int(indices.max()) < limit):
        raise KernelInputError(
            f"{name} must lie in [0, {limit}), found {indices.min()}..{indices.max()}"
        )


def contiguous(name: str, array: npt.NDArray[Item], dtype: type[Item]) -> npt.NDArray[Item]:
    if array.dtype != dtype or array.ndim != 1 or not array.flags.c_contiguous:
        raise KernelInputError(
            f"{name} must be a contiguous vector of {np.dtype(dtype)}, "
            f"not {array.shape} of {array.dtype}"
        )
    return array


def check_range(pool: PagePool, page_ids: Int32s, start: int, end: int) -> Int32s:
    ids = np.ascontiguousarray(page_ids, np.int32)
    if not 0 <= start <= end or -(-end // pool.page_tokens) > len(ids):
        raise KernelInputError(
            f"rows [{start}, {end}) need {-(-end // pool.page_tokens)} pages of "
            f"{pool.page_tokens} tokens, the table has {len(ids)}"
        )
    used = ids[start // pool.page_tokens : -(-end // pool.page_tokens)]
    check_indices("page ids", used, pool.pages)
    return ids


def check_layer(pool: PagePool, layer: int) -> None:
    if not 0 <= layer < pool.spec.layers:
        raise KernelInputError(
            f"slab {pool.spec.name!r} has {pool.spec.layers} layers, not layer {layer}"
        )


def check_weight(weight: Floats, bias: Floats | None) -> None:
    if weight.ndim != 2 or weight.dtype != np.float32:
        raise KernelInputError(
            f"a linear weight is fp32 [outputs, depth], not {weight.shape} of {weight.dtype}"
        )
    if bias is not None and (bias.shape != weight.shape[:1] or bias.dtype != np.float32):
        raise KernelInputError(
            f"a bias is fp32 [{weight.shape[0]}], not {bias.shape} of {bias.dtype}"
        )


def check_attention(
    what: AttentionSpec,
    layer: int,
    q: Floats,
    keys: Sequence[PagePool],
    values: PagePool,
    batch: RaggedBatch,
    out: Floats,
    lse: Floats | None,
) -> None:
    """Everything but the batch's own indices, which ``abi.check_batch`` looks at."""
    heads, width = values.spec.heads, values.spec.width
    if not 1 <= len(keys) <= KEY_SLABS_MAX:
        raise KernelInputError(f"attention reads 1 to {KEY_SLABS_MAX} key slabs, not {len(keys)}")
    for pool in (*keys, values):
        check_layer(pool, layer)
        mine = (pool.spec.heads, pool.spec.storage, pool.page_tokens)
        if mine != (heads, values.spec.storage, batch.page_tokens):
            raise KernelInputError(
                f"slab {pool.spec.name!r} has other heads, storage or page size than "
                f"{values.spec.name!r} and the batch"
            )
    if what.q_heads % heads:
        raise KernelInputError(f"{what.q_heads} query heads do not group over {heads} KV heads")
    check_rows("q", q, batch.rows, what.q_heads * sum(pool.spec.width for pool in keys))
    check_rows("out", out, batch.rows, what.q_heads * width)
    if lse is not None:
        check_rows("lse", lse, batch.rows, what.q_heads)
        if not lse.flags.c_contiguous:
            raise KernelInputError("lse must be contiguous")
