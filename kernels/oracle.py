"""What the kernels should give, in float64 numpy and as plainly as possible.

Shares nothing with the kernels but the meaning of the arrays: no tiles, no spans, no running
maximum. Slow; for tests and for checking another device.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .abi import RaggedBatch, Storage

Doubles = npt.NDArray[np.float64]


def as_float64(array: npt.NDArray[np.generic], storage: Storage) -> Doubles:
    """Stored elements as numbers; bf16 arrives as its 16 bits."""
    if storage is Storage.BF16:
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def attention(
    q: Doubles,
    keys: Doubles,
    values: Doubles,
    batch: RaggedBatch,
    scale: float,
) -> tuple[Doubles, Doubles]:
    """``(out[rows, q_heads, dv], lse[rows, q_heads])`` of ``q[rows, q_heads, d]``.

    ``keys`` and ``values`` are one layer's pools ``[pages, page_tokens, kv_heads, d or dv]``.
    """
    rows, q_heads, _ = q.shape
    kv_heads = keys.shape[2]
    out = np.zeros((rows, q_heads, values.shape[3]))
    lse = np.full((rows, q_heads), -np.inf)
    for s in range(batch.sequences):
        first, last = int(batch.q_indptr[s]), int(batch.q_indptr[s + 1])
        length, base = int(batch.kv_len[s]), int(batch.kv_base[s])
        table = batch.page_ids[int(batch.page_indptr[s]) : int(batch.page_indptr[s + 1])]
        for row in range(first, last):
            position = length - (last - row)
            low = max(base, position + 1 - batch.window if batch.window else 0)
            seen = np.arange(low, position + 1)
            if not len(seen):
                continue
            page = table[seen // batch.page_tokens - base // batch.page_tokens]
            k = keys[page, seen % batch.page_tokens]
            v = values[page, seen % batch.page_tokens]
            for head in range(q_heads):
                kv_head = head // (q_heads // kv_heads)
                scores = (k[:, kv_head] @ q[row, head]) * scale
                weights = np.exp(scores - scores.max())
                out[row, head] = weights @ v[:, kv_head] / weights.sum()
                lse[row, head] = (scores.max() + np.log(weights.sum())) / np.log(2.0)
    return out, lse


def rms_norm(x: Doubles, weight: Doubles, eps: float) -> Doubles:
    """Rows divided by the root of their mean square, scaled."""
    root: Doubles = np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return x / root * weight
