"""Page pools and the arrays of a step where the device's memory is the host's: plain numpy."""

from __future__ import annotations

import numpy as np

from .abi import Floats, Int32s, KernelInputError, SlabSpec, Storage, check_page_tokens
from .checks import check_indices, contiguous
from .device import PagePool


class HostArrays:
    """The part of ``Device`` and ``RowMath`` that makes, fills, picks and hands back arrays, for
    devices on the host."""

    def allocate(self, spec: SlabSpec, pages: int, page_tokens: int) -> PagePool:
        check_page_tokens(page_tokens)
        if pages < 1:
            raise KernelInputError(f"a pool needs at least one page, not {pages}")
        shape = (spec.layers, pages, page_tokens, spec.heads, spec.width)
        return PagePool(spec, pages, page_tokens, np.zeros(shape, spec.storage.dtype))

    def poison(self, pool: PagePool, page_ids: Int32s) -> None:
        ids = contiguous("page_ids", page_ids, np.int32)
        check_indices("page ids", ids, pool.pages)
        pool.array[:, ids] = 0x7FC0 if pool.spec.storage is Storage.BF16 else np.nan

    def empty(self, rows: int, width: int) -> Floats:
        return np.empty((rows, width), np.float32)

    def take(self, x: Floats, rows: Int32s) -> Floats:
        return np.ascontiguousarray(x[rows])

    def soft_cap(self, x: Floats, cap: float) -> None:
        np.tanh(x / np.float32(cap), out=x)
        x *= np.float32(cap)

    def fetch(self, x: Floats) -> Floats:
        return x
