"""What the kernels should give, in float64 numpy and as plainly as possible.

Shares nothing with the kernels but the meaning of the arrays, and what they say they round: no
tiles, no running maximum. Slow; for tests and for checking another device.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .abi import RaggedBatch, Storage

Doubles = npt.NDArray[np.float64]
SPAN_TOKENS = 256  # of weights that have one maximum; spans lie at multiples of it


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
    *,
    paired: bool = False,
) -> tuple[Doubles, Doubles]:
    """``(out[rows, q_heads, dv], lse[rows, q_heads])`` of ``q[rows, q_heads, d]``.

    ``keys`` and ``values`` are one layer's pools ``[pages, page_tokens, kv_heads, d or dv]``.
    ``paired``: as the native core reads bf16 pages, the scaled query and the weights, which are
    those of a span, rounded to bf16; all else is exact.
    """
    attend = _attend_paired if paired else _attend
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
                out[row, head], lse[row, head] = attend(
                    k[:, kv_head], v[:, kv_head], q[row, head], scale, seen
                )
    return out, lse


def _attend(
    k: Doubles, v: Doubles, q: Doubles, scale: float, positions: npt.NDArray[np.int64]
) -> tuple[Doubles, float]:
    """One query over all its keys at once."""
    scores = (k @ q) * scale
    weights = np.exp(scores - scores.max())
    total = weights.sum()
    out: Doubles = weights @ v / total
    return out, float((scores.max() + np.log(total)) / np.log(2.0))


def _attend_paired(
    k: Doubles, v: Doubles, q: Doubles, scale: float, positions: npt.NDArray[np.int64]
) -> tuple[Doubles, float]:
    factor = np.float32(scale) * np.float32(np.log2(np.e))
    scores = k @ _rounded(q.astype(np.float32) * factor)  # base 2
    spans = positions // SPAN_TOKENS
    top = scores.max()
    out, total = np.zeros(v.shape[1]), 0.0
    for span in np.unique(spans):
        within = scores[spans == span]
        weights = _rounded(np.exp2(within - within.max()).astype(np.float32))
        share = np.exp2(within.max() - top)
        out += weights @ v[spans == span] * share
        total += weights.sum() * share
    return out / total, float(top + np.log2(total))


def _rounded(x: npt.NDArray[np.float32]) -> Doubles:
    """To bf16, nearest and ties to even: the numbers that a float's upper 16 bits can hold."""
    bits = x.view(np.uint32).astype(np.uint64)
    upper = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
    return upper.astype(np.uint32).view(np.float32).astype(np.float64)


def rms_norm(x: Doubles, weight: Doubles, eps: float) -> Doubles:
    """Rows divided by the root of their mean square, scaled."""
    root: Doubles = np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps)
    return x / root * weight
