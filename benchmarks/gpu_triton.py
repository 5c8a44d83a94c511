"""A paged decode in Triton, to compare with: one program for each sequence and KV head, no split.

Reads the same pools and page tables as the CUDA kernels. Imported only where Triton is installed;
with TRITON_INTERPRET=1 it runs without a card, which is how its numbers were checked.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

LINES = 16  # rows of a tensor-core product; a group's query heads fill the first ones
TILE_TOKENS = 64


@triton.jit
def _paged_decode(
    q_at,
    k_at,
    v_at,
    table_at,
    length_at,
    out_at,
    table_stride,
    scale_log2,
    KV_HEADS: tl.constexpr,  # noqa: N803 - Triton's custom for constants
    GROUP: tl.constexpr,  # noqa: N803
    DIM: tl.constexpr,  # noqa: N803
    PAGE: tl.constexpr,  # noqa: N803
    TILE: tl.constexpr,  # noqa: N803
    LINES: tl.constexpr,  # noqa: N803
):
    sequence, head = tl.program_id(0), tl.program_id(1)
    line, column = tl.arange(0, LINES), tl.arange(0, DIM)
    rows = (sequence * KV_HEADS + head) * GROUP + line
    of_group = (line < GROUP)[:, None]
    where = rows[:, None] * DIM + column[None, :]
    q = tl.load(q_at + where, mask=of_group, other=0.0).to(k_at.dtype.element_ty)
    length = tl.load(length_at + sequence)
    top = tl.full([LINES], float("-inf"), tl.float32)
    total = tl.zeros([LINES], tl.float32)
    o = tl.zeros([LINES, DIM], tl.float32)
    for start in range(0, length, TILE):
        token = start + tl.arange(0, TILE)
        seen = token < length
        page = tl.load(table_at + sequence * table_stride + token // PAGE, mask=seen, other=0)
        slot = page.to(tl.int64) * PAGE + token % PAGE
        at = (slot * KV_HEADS + head)[:, None] * DIM + column[None, :]
        k = tl.load(k_at + at, mask=seen[:, None], other=0.0)
        v = tl.load(v_at + at, mask=seen[:, None], other=0.0)
        scores = tl.dot(q, tl.trans(k)) * scale_log2
        scores = tl.where(seen[None, :], scores, float("-inf"))
        higher = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - higher[:, None])
        shrink = tl.exp2(top - higher)
        total = total * shrink + tl.sum(weights, 1)
        o = o * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        top = higher
    tl.store(out_at + where, o / total[:, None], mask=of_group)


def paged_decode(
    q: Any, k: Any, v: Any, table: Any, lengths: Any, out: Any, scale_log2: float
) -> None:
    """``out[n, q_heads, d]`` fp32 of ``q`` alike, over pools ``[pages, page_tokens, kv_heads, d]``.

    ``table`` int32 ``[n, pages each]``, ``lengths`` int32 ``[n]``, all at least 1.
    """
    _, page_tokens, kv_heads, dim = k.shape
    _paged_decode[(q.shape[0], kv_heads)](
        q,
        k,
        v,
        table,
        lengths,
        out,
        table.stride(0),
        scale_log2,
        KV_HEADS=kv_heads,
        GROUP=q.shape[1] // kv_heads,
        DIM=dim,
        PAGE=page_tokens,
        TILE=TILE_TOKENS,
        LINES=LINES,
    )
