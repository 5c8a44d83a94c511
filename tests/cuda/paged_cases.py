"""Ragged batches over poisoned pools, for any device, and what float64 says of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import numpy as np

from pagetrail.kernels.abi import RaggedBatch, SlabSpec, Storage
from pagetrail.kernels.device import AttentionSpec, Device, PagePool
from pagetrail.kernels.oracle import as_float64
from pagetrail.kernels.oracle import attention as attention_oracle
from pagetrail.kernels.plan import Capacity, Cut, SequenceRows, plan

TOLERANCE = {Storage.F32: 2e-6, Storage.F16: 1e-3, Storage.BF16: 5e-3}
REFERENCE_TOLERANCE = 2e-6


@dataclass(frozen=True)
class Paged:
    """``sequences`` are (rows, tokens). ``rotary`` > 0 makes it MLA: keys (latent, rotary)."""

    sequences: tuple[tuple[int, int], ...]
    storage: Storage = Storage.F16
    page_tokens: int = 16
    window: int = 0
    kv_heads: int = 2
    group: int = 2
    width: int = 64
    rotary: int = 0
    rows_per_item: int = 16
    split: bool = False
    page_order: int = 0
    capacity: Capacity | None = None
    kind: str = "random"  # of the values: random, ones; of the queries: zero_queries

    @property
    def q_heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def scale(self) -> float:
        return (self.width + self.rotary) ** -0.5


@dataclass
class Filled:
    """Pools with every row of every sequence appended and NaN everywhere else."""

    case: Paged
    device: Device
    keys: list[PagePool]
    values: PagePool
    batch: RaggedBatch
    q: np.ndarray

    def run(self) -> tuple[np.ndarray, np.ndarray]:
        case = self.case
        out = np.full((self.batch.rows, case.q_heads * case.width), np.nan, np.float32)
        lse = np.full((self.batch.rows, case.q_heads), np.nan, np.float32)
        what = AttentionSpec(case.q_heads, case.scale)
        self.device.attention(what, 0, self.q, self.keys, self.values, self.batch, out, lse)
        rows = int(self.batch.q_indptr[-1])
        return out[:rows].reshape(rows, case.q_heads, case.width), lse[:rows]

    def oracle(self) -> tuple[np.ndarray, np.ndarray]:
        case, rows = self.case, int(self.batch.q_indptr[-1])
        width = case.width + case.rotary
        keys = [as_float64(pool.array[0], case.storage) for pool in self.keys]
        out, lse = attention_oracle(
            self.q.reshape(-1, case.q_heads, width).astype(np.float64),
            np.concatenate(keys, axis=-1),
            as_float64(self.values.array[0], case.storage),
            self.batch,
            case.scale,
        )
        return out[:rows], lse[:rows]


def fill(case: Paged, device: Device) -> Filled:
    """Rows depend on (sequence, position) alone, so results of different cases can be compared."""
    ps = case.page_tokens
    counts = [-(-tokens // ps) for _, tokens in case.sequences]
    total = sum(counts) + 3
    order = np.random.default_rng(case.page_order).permutation(total).astype(np.int32)
    tables = np.split(order, np.cumsum([*counts]))[: len(counts)]
    slabs = [SlabSpec("key", 1, case.kv_heads, case.width, case.storage)]
    if case.rotary:
        slabs.append(SlabSpec("rotary", 1, case.kv_heads, case.rotary, case.storage))
    else:
        slabs.append(SlabSpec("value", 1, case.kv_heads, case.width, case.storage))
    pools = [device.allocate(slab, total, ps) for slab in slabs]
    for pool in pools:
        device.poison(pool, np.arange(total, dtype=np.int32))
    queries = [np.zeros((0, case.q_heads * (case.width + case.rotary)), np.float32)]
    for s, ((rows, tokens), table) in enumerate(zip(case.sequences, tables, strict=True)):
        at = np.arange(tokens)
        slots = table[at // ps].astype(np.int64) * ps + at % ps
        for i, pool in enumerate(pools):
            matrix = _rows(s, i, tokens, pool.spec.heads * pool.spec.width)
            if case.kind == "ones" and i == 1:
                matrix[:] = 1.0
            device.append(pool, 0, matrix, slots)
        q = _rows(s, len(pools), tokens, queries[0].shape[1])
        queries.append(q[tokens - rows :] * (0.0 if case.kind == "zero_queries" else 1.0))
    batch = plan(
        [
            SequenceRows(rows, tokens, table)
            for (rows, tokens), table in zip(case.sequences, tables, strict=True)
        ],
        ps,
        window=case.window,
        cut=Cut(case.rows_per_item, case.split),
        capacity=case.capacity,
    )
    q = np.zeros((batch.rows, queries[0].shape[1]), np.float32)
    stacked = np.concatenate(queries)
    q[: len(stacked)] = stacked
    keys = pools if case.rotary else pools[:1]
    return Filled(case, device, keys, pools[0] if case.rotary else pools[1], batch, q)


def _rows(sequence: int, array: int, tokens: int, width: int) -> np.ndarray:
    """The first rows of an endless random matrix."""
    rng = np.random.default_rng((sequence, array))
    return rng.standard_normal((tokens, width)).astype(np.float32)


def run(case: Paged, device: Device) -> tuple[np.ndarray, np.ndarray]:
    return fill(case, device).run()


def bits(arrays: tuple[np.ndarray, ...]) -> bytes:
    return b"".join(array.tobytes() for array in arrays)


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Norm of the difference over the norm of what is wanted; infinite where a number is not."""
    if not np.isfinite(got).all():
        return float("inf")
    norm = float(np.linalg.norm(want))
    return float(np.linalg.norm(got - want)) / (norm or 1.0)


def check(case: Paged, device: Device, tolerance: float | None = None) -> None:
    """Run and compare with float64: outputs by norm, lse where there is one, -inf where not."""
    filled = fill(case, device)
    (out, lse), (want_out, want_lse) = filled.run(), filled.oracle()
    limit = tolerance or TOLERANCE[case.storage]
    assert relative_error(out, want_out) < limit, case
    seen = np.isfinite(want_lse)
    assert (lse[~seen] == -np.inf).all(), case
    assert relative_error(lse[seen], want_lse[seen]) < limit, case


def pairwise(axes: dict[str, tuple[Any, ...]]) -> list[dict[str, Any]]:
    """A few combinations such that every pair of values of two axes occurs in one of them."""
    names = list(axes)
    missing = {
        (a, x, b, y) for a, b in combinations(names, 2) for x, y in product(axes[a], axes[b])
    }
    chosen = []
    while missing:
        a, x, b, y = min(missing, key=repr)
        row = {a: x, b: y}
        for name in names:
            if name not in row:
                row[name] = max(
                    axes[name],
                    key=lambda value: (
                        sum(pair in missing for pair in _pairs({**row, name: value}, names)),
                        repr(value),
                    ),
                )
        missing -= set(_pairs(row, names))
        chosen.append(row)
    return chosen


def _pairs(row: dict[str, Any], names: list[str]) -> list[tuple[str, Any, str, Any]]:
    return [(a, row[a], b, row[b]) for a, b in combinations(names, 2) if a in row and b in row]


def matrix(widths: tuple[int, ...], lengths: tuple[str, ...]) -> list[Paged]:
    """The test matrix of the kernels, pairwise."""
    axes: dict[str, tuple[Any, ...]] = {
        "page_tokens": (16, 32, 1),
        "length": lengths,
        "window": ("0", "1", "ps", "ps+1", "all"),
        "group": (1, 2, 3, 4, 5, 7, 8, 16),
        "width": widths,
        "split": (False, True),
        "mix": ("decode", "verify", "prefill", "mixed", "padded"),
        "storage": (Storage.F16, Storage.BF16),
    }
    return [_case(row) for row in pairwise(axes)]


def _case(row: dict[str, Any]) -> Paged:
    ps = row["page_tokens"]
    length = _size(row["length"], ps)
    window = length + 5 if row["window"] == "all" else _size(row["window"], ps)
    rows = {"decode": 1, "verify": min(5, length), "prefill": min(length, 40)}.get(row["mix"], 1)
    sequences: tuple[tuple[int, int], ...] = ((min(rows, length), length),)
    capacity = None
    if row["mix"] in ("mixed", "padded"):
        sequences = ((min(1, length), length), (0, 0), (21, 21), (3, 300), (1, 1))
    if row["mix"] == "padded":
        capacity = Capacity(sequences=9, rows=32, page_entries=4_096, items=64)
    return replace(
        Paged(sequences),
        page_tokens=ps,
        window=window,
        kv_heads=1 if row["group"] > 4 else 2,
        group=row["group"],
        width=row["width"],
        split=row["split"],
        rows_per_item=16 if row["mix"] == "prefill" else 1 if row["split"] else 4,
        storage=row["storage"],
        capacity=capacity,
        page_order=length,
    )


def _size(text: str, ps: int) -> int:
    return {"ps-1": ps - 1, "ps": ps, "ps+1": ps + 1}[text] if "ps" in text else int(text)
