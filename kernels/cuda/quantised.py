"""Append into 8-bit pools with a scale per row and head: which launch, and its checks.

A reader gets ``code * scale``. Pools are ``uint8[pages, page_tokens, heads, width]`` (e4m3 codes,
or the bits of signed bytes), scales ``float32[pages, page_tokens, heads]``; both contiguous. No
attention kernel reads these pools yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ..abi import KernelInputError
from .arrays import DeviceArray, Element, check_matrix, check_same_place, check_vector
from .launch import Launch, SourceModule, address
from .paged import APPEND_THREADS, GRID_BLOCKS_MAX

MODULE = SourceModule("append_quantised.cu")
WARPS_PER_BLOCK = APPEND_THREADS // 32


class Code(Enum):
    """How a number becomes eight bits."""

    E4M3 = "e4m3"
    I8 = "i8"


@dataclass(frozen=True, slots=True)
class QuantisedPool:
    """One layer of a quantised slab."""

    codes: DeviceArray
    scales: DeviceArray


def append(
    code: Code,
    pools: Sequence[QuantisedPool],
    rows: Sequence[DeviceArray],
    slots: DeviceArray,
    error: DeviceArray,
) -> tuple[Launch, ...]:
    """Write fp32 ``rows[i][B, heads * width]`` to ``pools[i]``, keys and values, at int64 slots.

    Slot -1 is skipped; a slot past the pools is skipped and raises ``error``. Slots must be unique.
    """
    if len(pools) != 2 or len(rows) != 2:
        raise KernelInputError(
            f"a quantised append writes two slabs, keys and values, not {len(pools)}"
        )
    pages, page_tokens, heads, _ = pools[0].codes.shape
    for name, pool, matrix in zip(("keys", "values"), pools, rows, strict=True):
        width = pool.codes.shape[3]
        _check_contiguous(name, pool.codes, (pages, page_tokens, heads, width), Element.U8)
        shape = (pages, page_tokens, heads)
        _check_contiguous(f"scales of {name}", pool.scales, shape, Element.F32)
        check_matrix(f"rows of {name}", matrix, slots.shape[0], heads * width, (Element.F32,))
    check_vector("slots", slots, slots.shape[0], Element.I64)
    check_vector("error", error, 1, Element.I32)
    check_same_place(
        {
            "keys": pools[0].codes,
            "values": pools[1].codes,
            "key rows": rows[0],
            "value rows": rows[1],
            "slots": slots,
            "error": error,
        }
    )
    if slots.shape[0] == 0:
        return ()
    arguments = (
        address(rows[0].address),
        address(rows[1].address),
        address(slots.address),
        address(pools[0].codes.address),
        address(pools[1].codes.address),
        address(pools[0].scales.address),
        address(pools[1].scales.address),
        address(error.address),
        np.int64(pages * page_tokens),
        np.int64(rows[0].strides[0]),
        np.int64(rows[1].strides[0]),
        np.int32(slots.shape[0]),
        np.int32(heads),
        np.int32(pools[0].codes.shape[3]),
        np.int32(pools[1].codes.shape[3]),
    )
    units = slots.shape[0] * heads
    grid = (min(GRID_BLOCKS_MAX, -(-units // WARPS_PER_BLOCK)), 1, 1)
    kernel = f"kv_append_{code.value}"
    return (Launch(MODULE, kernel, grid, APPEND_THREADS, 0, arguments),)


def _check_contiguous(
    name: str, array: DeviceArray, shape: tuple[int, ...], element: Element
) -> None:
    strides = tuple(int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape)))
    if array.element is not element or array.shape != shape or array.strides != strides:
        raise KernelInputError(
            f"{name} must be contiguous {element.value} {shape}, not {array.element.value} "
            f"{array.shape} with strides {array.strides}"
        )
