"""Checked paged operations: arrays in, launches out. What a CUDA device and the emulator share.

Pure. Nothing is launched here and nothing is read through an address; every refusal comes before
the first launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..abi import KernelInputError, Storage
from ..device import AttentionSpec
from . import paged
from .arrays import (
    STORAGE_OF,
    DeviceArray,
    Element,
    PoolArray,
    check_matrix,
    check_pool,
    check_same_place,
    check_vector,
)
from .attention import attention as choose_attention
from .attention import reference_attention
from .codes import Code
from .launch import Launch
from .paged import BatchLayout

FLOATS = (Element.F32, Element.F16, Element.BF16)
KEY_SLABS_MAX = 2


@dataclass(frozen=True, slots=True)
class Partials:
    """Room for the partial results of split rows: ``o`` and ``lse`` are flat fp32."""

    o: DeviceArray
    lse: DeviceArray

    @staticmethod
    def sizes(batch: BatchLayout, q_heads: int, width: int) -> tuple[int, int]:
        """fp32 elements that ``o`` and ``lse`` need for a batch."""
        lse = batch.partial_slots * q_heads
        return lse * width, lse


def append(
    pools: Sequence[PoolArray],
    layer: int,
    rows: Sequence[DeviceArray],
    slots: DeviceArray,
    error: DeviceArray,
) -> tuple[Launch, ...]:
    """Write fp32 ``rows[i][B, heads * width]`` into ``pools[i]`` at int64 ``slots[B]``.

    Both pools, when there are two, have the same heads, storage, pages and page size. Slots that
    are not negative must be unique; who has them on the host checks that (abi.check_slots).
    """
    first = pools[0]
    for pool, matrix in zip(pools, rows, strict=True):
        check_pool(pool)
        width = pool.spec.heads * pool.spec.width
        check_matrix(f"rows of {pool.spec.name!r}", matrix, slots.shape[0], width, (Element.F32,))
        if _kind(pool) != _kind(first):
            raise KernelInputError(
                f"slabs {first.spec.name!r} and {pool.spec.name!r} are appended together, so "
                "heads, storage, pages and page size must be equal"
            )
    check_vector("slots", slots, slots.shape[0], Element.I64)
    check_vector("error", error, 1, Element.I32)
    named = {f"rows {i}": matrix for i, matrix in enumerate(rows)}
    named |= {pool.spec.name: pool.array for pool in pools}
    check_same_place({**named, "slots": slots, "error": error})
    return paged.append(
        paged.AppendCall(
            storage=first.spec.storage,
            rows=tuple(
                paged.AppendRows(matrix.address, matrix.strides[0], pool.layer(layer))
                for pool, matrix in zip(pools, rows, strict=True)
            ),
            slots=slots.address,
            error=error.address,
            row_count=slots.shape[0],
            heads=first.spec.heads,
            page_tokens=first.page_tokens,
            slots_max=first.pages * first.page_tokens,
        )
    )


def attention(
    what: AttentionSpec,
    layer: int,
    q: DeviceArray,
    keys: Sequence[PoolArray],
    values: PoolArray,
    batch: BatchLayout,
    out: DeviceArray,
    lse: DeviceArray | None,
    partials: Partials,
    *,
    reference: bool = False,
) -> tuple[Launch, ...]:
    """``out[rows, q_heads * values.width]`` of ``q[rows, q_heads * key width]``; see Device.

    ``q`` and ``out`` may be fp32, fp16 or bf16; sums are fp32. ``reference`` takes the plain
    kernel even where the tensor cores could serve.
    """
    named: dict[str, DeviceArray] = {}
    for i, pool in enumerate((*keys, values)):
        check_pool(pool)
        if _kind(pool) != _kind(values) or pool.page_tokens != batch.page_tokens:
            raise KernelInputError(
                f"slab {pool.spec.name!r} has other heads, storage, pages or page size than "
                f"{values.spec.name!r} and the batch"
            )
        named[f"keys {i}" if i < len(keys) else "values"] = pool.array
    widths = tuple(pool.spec.width for pool in keys)
    check_attention_rows(what, q, widths, values.spec.width, batch, out, lse, named)
    return attention_launches(
        what,
        values.spec.storage,
        q,
        [pool.layer(layer) for pool in keys],
        values.layer(layer),
        values.spec.heads,
        batch,
        out,
        lse,
        partials,
        reference=reference,
    )


def attention_launches(
    what: AttentionSpec,
    storage: Storage | Code,
    q: DeviceArray,
    keys: Sequence[paged.SlabLayer],
    values: paged.SlabLayer,
    kv_heads: int,
    batch: BatchLayout,
    out: DeviceArray,
    lse: DeviceArray | None,
    partials: Partials,
    *,
    reference: bool,
) -> tuple[Launch, ...]:
    """Launches over pools and rows that were checked; room for split rows is checked here."""
    need_o, need_lse = Partials.sizes(batch, what.q_heads, values.width)
    if partials.o.shape[0] < need_o or partials.lse.shape[0] < need_lse:
        raise KernelInputError(
            f"split rows leave {need_o} and {need_lse} partial values, there is room for "
            f"{partials.o.shape[0]} and {partials.lse.shape[0]}"
        )
    call = paged.AttentionCall(
        storage=storage,
        keys=tuple(keys),
        values=values,
        batch=batch,
        q=q.address,
        q_row_stride=q.strides[0],
        q_storage=STORAGE_OF[q.element],
        out=out.address,
        out_row_stride=out.strides[0],
        out_storage=STORAGE_OF[out.element],
        lse=lse.address if lse else 0,
        partial_o=partials.o.address,
        partial_lse=partials.lse.address,
        q_heads=what.q_heads,
        kv_heads=kv_heads,
        scale=what.scale,
    )
    return reference_attention(call) if reference else choose_attention(call)


def check_attention_rows(
    what: AttentionSpec,
    q: DeviceArray,
    key_widths: Sequence[int],
    value_width: int,
    batch: BatchLayout,
    out: DeviceArray,
    lse: DeviceArray | None,
    pools: dict[str, DeviceArray],
) -> None:
    """Raise unless queries and results fit the batch and the pools, all in one memory."""
    if not 1 <= len(key_widths) <= KEY_SLABS_MAX:
        raise KernelInputError(f"attention reads one or two key slabs, not {len(key_widths)}")
    check_matrix("q", q, batch.rows, what.q_heads * sum(key_widths), FLOATS)
    check_matrix("out", out, batch.rows, what.q_heads * value_width, FLOATS)
    named = {"q": q, "out": out, **pools}
    if lse is not None:
        check_matrix("lse", lse, batch.rows, what.q_heads, (Element.F32,))
        if batch.rows > 1 and lse.strides[0] != what.q_heads:
            raise KernelInputError("lse must be contiguous")
        named["lse"] = lse
    check_same_place(named)


def _kind(pool: PoolArray) -> tuple[object, ...]:
    return pool.spec.heads, pool.spec.storage, pool.pages, pool.page_tokens


def check_rows_of_table(
    pool_pages: int, page_tokens: int, table: Sequence[int], start: int, end: int
) -> None:
    """Raise unless ``[start, end)`` are rows of a page table whose pages lie in the pool."""
    pages = -(-end // page_tokens)
    if not 0 <= start <= end or pages > len(table):
        raise KernelInputError(
            f"rows [{start}, {end}) need {pages} pages of {page_tokens} tokens, the table "
            f"has {len(table)}"
        )
    for page in table[start // page_tokens : pages]:
        if not 0 <= page < pool_pages:
            raise KernelInputError(f"page ids must lie in [0, {pool_pages}), found {page}")
