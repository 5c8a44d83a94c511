"""Random ragged batches over poisoned pools, for any storage, page size, window and head shape."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from pagetrail.kernels.abi import RaggedBatch, SlabSpec, Storage
from pagetrail.kernels.cpu import CpuDevice
from pagetrail.kernels.device import AttentionSpec, PagePool, StepDevice
from pagetrail.kernels.oracle import Doubles, as_float64
from pagetrail.kernels.oracle import attention as attention_oracle
from pagetrail.kernels.plan import Cut, SequenceRows, plan


@dataclass(frozen=True)
class Case:
    """Lengths are (rows, tokens) of each sequence."""

    lengths: tuple[tuple[int, int], ...]
    page_tokens: int = 16
    window: int = 0
    kv_heads: int = 2
    group: int = 3
    width: int = 64
    value_width: int | None = None
    storage: Storage = Storage.F32
    cut: Cut = field(default=Cut())
    seed: int = 0
    page_order_seed: int = 0
    extra_pages: int = 3

    @property
    def q_heads(self) -> int:
        return self.kv_heads * self.group


@dataclass
class Built:
    """A case with its pools filled: every row of every sequence appended, the rest is NaN."""

    case: Case
    device: StepDevice
    keys: PagePool
    values: PagePool
    batch: RaggedBatch
    q: np.ndarray
    # Answers, which devices share: the pools of a case hold the same rows on each.
    known: dict[tuple[Case, bool], tuple[Doubles, Doubles]] | None = None

    def run(self, batch: RaggedBatch | None = None) -> tuple[np.ndarray, np.ndarray]:
        batch = batch or self.batch
        case = self.case
        dv = case.value_width or case.width
        out = np.full((batch.rows, case.q_heads * dv), np.nan, np.float32)
        lse = np.full((batch.rows, case.q_heads), np.nan, np.float32)
        self.device.attention(
            AttentionSpec(case.q_heads, case.width**-0.5),
            0,
            self.q,
            [self.keys],
            self.values,
            batch,
            out,
            lse,
        )
        return out, lse

    @property
    def paired(self) -> bool:
        """The native core multiplies bf16 pages by pairs."""
        return self.case.storage is Storage.BF16 and isinstance(self.device, CpuDevice)

    def oracle(self, paired: bool | None = None) -> tuple[Doubles, Doubles]:
        """With the device's own rounding of bf16 pages, unless told."""
        key = (self.case, self.paired if paired is None else paired)
        known = {} if self.known is None else self.known
        if key not in known:
            known[key] = self._oracle(key[1])
        return known[key]

    def _oracle(self, paired: bool) -> tuple[Doubles, Doubles]:
        case = self.case
        return attention_oracle(
            self.q.reshape(self.batch.rows, case.q_heads, case.width).astype(np.float64),
            as_float64(self.keys.array[0], case.storage),
            as_float64(self.values.array[0], case.storage),
            self.batch,
            case.width**-0.5,
            paired=paired,
        )


def build(case: Case, device: StepDevice) -> Built:
    """Rows are a function of (seed, sequence, position) alone, so cases can be compared."""
    ps = case.page_tokens
    counts = [-(-tokens // ps) for _, tokens in case.lengths]
    total = sum(counts) + case.extra_pages
    order = np.random.default_rng(case.page_order_seed).permutation(total).astype(np.int32)
    tables, start = [], 0
    for count in counts:
        tables.append(order[start : start + count])
        start += count
    dv = case.value_width or case.width
    keys = device.allocate(SlabSpec("key", 1, case.kv_heads, case.width, case.storage), total, ps)
    values = device.allocate(SlabSpec("value", 1, case.kv_heads, dv, case.storage), total, ps)
    everything = np.arange(total, dtype=np.int32)
    device.poison(keys, everything)
    device.poison(values, everything)
    queries = []
    for s, ((rows, tokens), table) in enumerate(zip(case.lengths, tables, strict=True)):
        rng = np.random.default_rng((case.seed, s))
        k = rng.standard_normal((tokens, case.kv_heads * case.width)).astype(np.float32)
        v = rng.standard_normal((tokens, case.kv_heads * dv)).astype(np.float32)
        q = rng.standard_normal((tokens, case.q_heads * case.width)).astype(np.float32)
        at = np.arange(tokens)
        slots = table[at // ps].astype(np.int64) * ps + at % ps
        device.append(keys, 0, k, slots)
        device.append(values, 0, v, slots)
        queries.append(q[tokens - rows :])
    sequences = [
        SequenceRows(rows, tokens, table)
        for (rows, tokens), table in zip(case.lengths, tables, strict=True)
    ]
    batch = plan(sequences, ps, window=case.window, cut=case.cut)
    return Built(case, device, keys, values, batch, np.concatenate(queries))


def relative_error(got: np.ndarray, want: np.ndarray) -> float:
    """Norm of the difference over the norm of what is wanted."""
    norm = float(np.linalg.norm(want))
    return float(np.linalg.norm(got - want)) / norm if norm else float(np.linalg.norm(got))
