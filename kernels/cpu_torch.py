"""The CPU device without a compiler: products by torch, everything else by numpy. Slow and exact.

A matrix product's bits depend on its shape, so every product here has one fixed shape: sixteen
rows at a time, zero-padded, on one thread. Attention packs its lines into the same sixteen rows
and its keys into spans of 256. Bits differ from the native core's, and so does the identity.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from .abi import (
    KV_SPAN_TOKENS,
    Floats,
    Int32s,
    Int64s,
    KernelInputError,
    RaggedBatch,
    Storage,
)
from .checks import (
    check_attention,
    check_indices,
    check_layer,
    check_range,
    check_rows,
    check_weight,
)
from .device import Activation, AttentionSpec, PackedLinear, PagePool
from .host_arrays import HostArrays
from .plan import Cut

TILE_ROWS = 16
LOG2E = 1.4426950408889634


class TorchCpuDevice(HostArrays):
    """Implements ``Device`` and ``RowMath``. Puts torch on one thread for the whole process."""

    def __init__(self) -> None:
        torch.set_num_threads(1)

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        return (
            ("core", "torch-tiles-1"),
            ("torch", torch.__version__),
            ("numpy", np.__version__),
            ("instruction_set", torch.backends.cpu.get_cpu_capability()),
        )

    # Pages

    def append(self, pool: PagePool, layer: int, rows: Floats, slots: Int64s) -> None:
        width = pool.spec.heads * pool.spec.width
        check_rows("rows", rows, len(slots), width)
        check_layer(pool, layer)
        real = slots >= 0
        check_indices("slots", slots[real], pool.pages * pool.page_tokens)
        pool.array[layer].reshape(-1, width)[slots[real]] = _narrow(rows[real], pool.spec.storage)

    def attention(
        self,
        what: AttentionSpec,
        layer: int,
        q: Floats,
        keys: Sequence[PagePool],
        values: PagePool,
        batch: RaggedBatch,
        out: Floats,
        lse: Floats | None = None,
    ) -> None:
        check_attention(what, layer, q, keys, values, batch, out, lse)
        heads, width = values.spec.heads, values.spec.width
        group = what.q_heads // heads
        lines = q.reshape(batch.rows, heads, group, -1)
        result = np.zeros((batch.rows, heads, group, width), np.float32)
        tops = np.full((batch.rows, heads, group), -np.inf, np.float32)
        for s in range(batch.sequences):
            first, last = int(batch.q_indptr[s]), int(batch.q_indptr[s + 1])
            if first == last:
                continue
            k, v, base = self._rows_of_sequence(layer, keys, values, batch, s)
            position = int(batch.kv_len[s]) - (last - first) + np.arange(last - first)
            low = np.full_like(position, int(batch.kv_base[s]))
            if batch.window:
                low = np.maximum(low, position + 1 - batch.window)
            for head in range(heads):
                # Lines of one head in tiles of sixteen; a row's lines may fall into two tiles.
                q_head = lines[first:last, head].reshape(-1, lines.shape[-1])
                o, top = _attend(
                    q_head * np.float32(what.scale * LOG2E),
                    k[:, head],
                    v[:, head],
                    np.repeat(low, group) - base,
                    np.repeat(position + 1, group) - base,
                    base,
                )
                result[first:last, head] = o.reshape(last - first, group, width)
                tops[first:last, head] = top.reshape(last - first, group)
        out[:] = result.reshape(batch.rows, -1)
        if lse is not None:
            lse[:] = tops.reshape(batch.rows, what.q_heads)

    def cut(self, q_heads: int, kv_heads: int, sequences: int) -> Cut:
        return Cut()

    def page_copy(self, pool: PagePool, source: int, target: int) -> None:
        check_indices("pages", np.array([source, target]), pool.pages)
        pool.array[:, target] = pool.array[:, source]

    def gather(
        self, pool: PagePool, page_ids: Int32s, start: int, end: int
    ) -> npt.NDArray[np.uint8]:
        slots = self._slots(pool, page_ids, start, end)
        rows = pool.array.reshape(pool.spec.layers, -1, pool.spec.heads * pool.spec.width)
        return np.ascontiguousarray(rows[:, slots]).view(np.uint8).reshape(-1)

    def scatter(
        self, pool: PagePool, page_ids: Int32s, start: int, end: int, packed: npt.NDArray[np.uint8]
    ) -> None:
        slots = self._slots(pool, page_ids, start, end)
        width = pool.spec.heads * pool.spec.width
        if packed.size != pool.spec.layers * len(slots) * pool.spec.row_bytes:
            raise KernelInputError(
                f"rows [{start}, {end}) of slab {pool.spec.name!r} are "
                f"{pool.spec.layers * len(slots) * pool.spec.row_bytes} bytes, not {packed.size}"
            )
        rows = pool.array.reshape(pool.spec.layers, -1, width)
        rows[:, slots] = packed.view(pool.spec.storage.dtype).reshape(
            pool.spec.layers, len(slots), width
        )

    def _slots(self, pool: PagePool, page_ids: Int32s, start: int, end: int) -> Int64s:
        ids = check_range(pool, page_ids, start, end).astype(np.int64)
        rows = np.arange(start, end)
        return ids[rows // pool.page_tokens] * pool.page_tokens + rows % pool.page_tokens

    def _rows_of_sequence(
        self,
        layer: int,
        keys: Sequence[PagePool],
        values: PagePool,
        batch: RaggedBatch,
        s: int,
    ) -> tuple[Floats, Floats, int]:
        """K and V ``[tokens, heads, width]`` as fp32 from the first span's edge on.

        Rows below the first retained token are zeros; they are never visible.
        """
        length, retained = int(batch.kv_len[s]), int(batch.kv_base[s])
        base = retained // KV_SPAN_TOKENS * KV_SPAN_TOKENS
        at = np.arange(retained, length)
        table = batch.page_ids[int(batch.page_indptr[s]) : int(batch.page_indptr[s + 1])]
        page = table[at // batch.page_tokens - retained // batch.page_tokens]

        def rows(pool: PagePool) -> Floats:
            full = np.zeros((length - base, pool.spec.heads, pool.spec.width), np.float32)
            stored = pool.array[layer][page, at % batch.page_tokens]
            full[retained - base :] = _widen(stored, pool.spec.storage)
            return full

        return np.concatenate([rows(pool) for pool in keys], axis=2), rows(values), base

    # Row math

    def pack(self, weight: Floats, storage: Storage, bias: Floats | None = None) -> PackedLinear:
        check_weight(weight, bias)
        rounded = _widen(_narrow(weight, storage), storage)
        outputs, depth = weight.shape
        return PackedLinear(outputs, depth, storage, np.ascontiguousarray(rounded), bias)

    def linear(self, x: Floats, weight: PackedLinear, out: Floats, add: bool = False) -> None:
        check_rows("x", x, len(x), weight.depth)
        check_rows("out", out, len(x), weight.outputs)
        if weight.storage is Storage.BF16:
            x = _widen(_narrow(x, weight.storage), weight.storage)
        tile = np.zeros((TILE_ROWS, weight.depth), np.float32)
        matrix = torch.from_numpy(weight.data).T
        for start in range(0, len(x), TILE_ROWS):
            rows = x[start : start + TILE_ROWS]
            tile[: len(rows)] = rows
            product = (torch.from_numpy(tile) @ matrix).numpy()[: len(rows)]
            if weight.bias is not None:
                product += weight.bias
            if add:
                out[start : start + len(rows)] += product
            else:
                out[start : start + len(rows)] = product

    def rows_of(self, weight: PackedLinear, rows: Int32s) -> Floats:
        check_indices("rows", rows, weight.outputs)
        found: Floats = weight.data[rows].astype(np.float32)
        return found

    def rms_norm(
        self, x: Floats, groups: int, weight: Floats, plus: float, eps: float, out: Floats
    ) -> None:
        width = groups * len(weight)
        check_rows("x", x, len(x), width)
        check_rows("out", out, len(x), width)
        parts = x.reshape(len(x), groups, len(weight))
        squares = np.cumsum(parts * parts, axis=2)[:, :, -1:] / np.float32(len(weight))
        scaled = parts / np.sqrt(squares + np.float32(eps)) * (weight + np.float32(plus))
        out[:] = scaled.reshape(len(x), width)

    def rope(
        self,
        x: Floats,
        heads: int,
        head_width: int,
        offset: int,
        positions: Int32s,
        tables: tuple[Floats, Floats],
        interleaved: bool = False,
    ) -> None:
        cosines, sines = tables
        half = cosines.shape[1]
        check_rows("x", x, len(positions), heads * head_width)
        check_indices("positions", positions, len(cosines))
        if offset + 2 * half > head_width:
            raise KernelInputError(
                f"{2 * half} rotary values from {offset} on do not fit a head of {head_width}"
            )
        c, s = cosines[positions], sines[positions]
        for head in range(heads):
            start = head * head_width + offset
            part = x[:, start : start + 2 * half]
            a, b = (
                (part[:, 0::2], part[:, 1::2]) if interleaved else (part[:, :half], part[:, half:])
            )
            part[:] = np.concatenate([a * c - b * s, b * c + a * s], axis=1)

    def gated(self, x: Floats, kind: Activation, out: Floats) -> None:
        width = out.shape[1]
        check_rows("x", x, len(out), 2 * width)
        check_rows("out", out, len(out), width)
        gate = x[:, :width]
        if kind is Activation.SILU:
            inner = gate
        else:  # x sigmoid(2u) is gelu's tanh form, u = sqrt(2/pi) (x + 0.044715 x^3)
            inner = np.float32(1.5957691216057308) * (gate + np.float32(0.044715) * gate**3)
        with np.errstate(over="ignore"):  # e^-x of a very negative x: the quotient is then 0
            out[:] = gate / (np.float32(1.0) + np.exp(-inner)) * x[:, width:]


def _attend(
    q: Floats, k: Floats, v: Floats, low: Int64s, high: Int64s, base: int
) -> tuple[Floats, Floats]:
    """Lines ``q[n, d]`` over keys ``[low, high)`` of each: ``(out[n, dv], lse[n])``, lse base 2."""
    out = np.zeros((len(q), v.shape[1]), np.float32)
    lse = np.full(len(q), -np.inf, np.float32)
    keys = np.zeros((KV_SPAN_TOKENS, k.shape[1]), np.float32)
    values = np.zeros((KV_SPAN_TOKENS, v.shape[1]), np.float32)
    for start in range(0, len(q), TILE_ROWS):
        count = min(TILE_ROWS, len(q) - start)
        tile = np.zeros((TILE_ROWS, q.shape[1]), np.float32)
        tile[:count] = q[start : start + count]
        a, b = low[start : start + count, None], high[start : start + count, None]
        o = np.zeros((count, v.shape[1]), np.float32)
        top = np.full((count, 1), -np.inf, np.float32)
        total = np.zeros((count, 1), np.float32)
        for span in range(
            int(a.min()) // KV_SPAN_TOKENS * KV_SPAN_TOKENS, int(b.max()), KV_SPAN_TOKENS
        ):
            end = min(span + KV_SPAN_TOKENS, int(b.max()))
            keys[:] = 0.0
            values[:] = 0.0
            keys[: end - span], values[: end - span] = k[span:end], v[span:end]
            at = span + np.arange(KV_SPAN_TOKENS)
            seen = (at >= a) & (at < b)
            scores = (torch.from_numpy(tile) @ torch.from_numpy(keys).T).numpy()[:count]
            scores = np.where(seen, scores, np.float32(-np.inf))
            highest = scores.max(axis=1, keepdims=True)
            live = seen.any(axis=1)
            with np.errstate(invalid="ignore"):  # a line that sees no key of this span
                weights = np.exp2(scores - highest)
            padded = np.zeros((TILE_ROWS, KV_SPAN_TOKENS), np.float32)
            padded[:count][live] = weights[live]
            part = (torch.from_numpy(padded) @ torch.from_numpy(values)).numpy()[:count]
            sums = np.cumsum(padded[:count], axis=1)[:, -1:]
            new = np.maximum(top, highest)
            with np.errstate(invalid="ignore"):
                old_factor, new_factor = np.exp2(top - new), np.exp2(highest - new)
            o[live] = (o * old_factor + part * new_factor)[live]
            total[live] = (total * old_factor + sums * new_factor)[live]
            top[live] = new[live]
        alive = total[:, 0] != 0.0
        out[start : start + count][alive] = o[alive] / total[alive]
        lse[start : start + count][alive] = (top[alive] + np.log2(total[alive]))[:, 0]
    return out, lse


def _narrow(x: Floats, storage: Storage) -> npt.NDArray[np.generic]:
    if storage is not Storage.BF16:
        with np.errstate(over="ignore"):  # too large for fp16 is infinity, as everywhere
            return x.astype(storage.dtype)
    bits = np.ascontiguousarray(x).view(np.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    return np.where(np.isnan(x), quiet, rounded).astype(np.uint16)


def _widen(x: npt.NDArray[np.generic], storage: Storage) -> Floats:
    if storage is not Storage.BF16:
        return x.astype(np.float32)
    return (x.astype(np.uint32) << 16).view(np.float32)
