"""Eight-bit pools behind the ``Device`` calls that the ragged cases make.

A ``PagePool`` given out here shows the numbers its codes stand for: ``code * scale`` in fp32, and
rounded once more where the pool says fp16. So float64 answers and an fp16 device can read the very
pool that the coded kernels are measured on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from pagetrail.kernels.abi import RaggedBatch, SlabSpec
from pagetrail.kernels.cuda.codes import Code, CodedPool, CodedSlab
from pagetrail.kernels.device import AttentionSpec, PagePool


def numbers(codes: np.ndarray, code: Code) -> np.ndarray:
    """What codes stand for, by torch's own float8 and numpy's own bytes."""
    if code is Code.I8:
        return codes.view(np.int8).astype(np.float32)
    return torch.from_numpy(codes.copy()).view(torch.float8_e4m3fn).float().numpy()


class CodedDevice:
    """See the module. ``inner`` has ``allocate_coded`` and what goes with it."""

    def __init__(self, inner: Any, code: Code) -> None:
        self._inner, self._code = inner, code
        self._coded: dict[int, CodedPool] = {}

    def allocate(self, spec: SlabSpec, pages: int, page_tokens: int) -> PagePool:
        slab = CodedSlab(spec.name, spec.layers, spec.heads, spec.width, self._code)
        coded = self._inner.allocate_coded(slab, pages, page_tokens)
        shape = (spec.layers, pages, page_tokens, spec.heads, spec.width)
        pool = PagePool(spec, pages, page_tokens, np.zeros(shape, spec.storage.dtype))
        self._coded[id(pool)] = coded
        return pool

    def coded(self, pool: PagePool) -> CodedPool:
        return self._coded[id(pool)]

    def poison(self, pool: PagePool, page_ids: np.ndarray) -> None:
        coded = self.coded(pool)
        _host(coded.codes)[:, page_ids] = 0xFF
        _host(coded.scales)[:, page_ids] = np.nan
        pool.array[:, page_ids] = np.nan

    def append(self, pool: PagePool, layer: int, rows: np.ndarray, slots: np.ndarray) -> None:
        coded = self.coded(pool)
        self._inner.append_together([coded], layer, [rows], slots)
        with np.errstate(invalid="ignore", over="ignore"):
            shown = numbers(_host(coded.codes), self._code) * _host(coded.scales)[..., None]
            pool.array[...] = shown.astype(pool.array.dtype)

    def attention(
        self,
        what: AttentionSpec,
        layer: int,
        q: np.ndarray,
        keys: Sequence[PagePool],
        values: PagePool,
        batch: RaggedBatch,
        out: np.ndarray,
        lse: np.ndarray | None = None,
    ) -> None:
        coded = [self.coded(pool) for pool in keys]
        self._inner.attention(what, layer, q, coded, self.coded(values), batch, out, lse)


def _host(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.numpy()
