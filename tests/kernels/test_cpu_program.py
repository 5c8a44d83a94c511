"""What was recorded at one shape serves every batch of that shape, bit for bit as run eagerly."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest

from pagetrail.kernels.abi import KernelInputError, RaggedBatch, SlabSpec, Storage
from pagetrail.kernels.cpu import CpuDevice
from pagetrail.kernels.cpu_fast import FastCpuDevice
from pagetrail.kernels.cpu_program import CpuProgram
from pagetrail.kernels.device import AttentionSpec, PagePool
from pagetrail.kernels.plan import Capacity, Cut, SequenceRows, plan

HEADS, KV_HEADS, WIDTH, PAGE_TOKENS, PAGES = 6, 2, 32, 16, 80
CAPACITY = Capacity(sequences=3, rows=3, page_entries=128, items=64)


class Layer:
    """A little of a step: append, attention, product, over arrays that stay where they are."""

    def __init__(self, device: CpuDevice, batch: RaggedBatch, keys: PagePool, values: PagePool):
        rng = np.random.default_rng(1)
        weight = rng.standard_normal((40, HEADS * WIDTH), dtype=np.float32)
        self.device, self.batch, self.keys, self.values = device, batch, keys, values
        self.weight = device.pack(weight, Storage.F32)
        self.q = np.zeros((batch.rows, HEADS * WIDTH), np.float32)
        self.k = np.zeros((batch.rows, KV_HEADS * WIDTH), np.float32)
        self.attended = np.zeros_like(self.q)
        self.out = np.zeros((batch.rows, 40), np.float32)

    def fill(self, q: np.ndarray, k: np.ndarray) -> None:
        self.q[:], self.k[:] = q, k

    def run(self) -> None:
        self.device.append(self.keys, 0, self.k, self.batch.slots)
        self.device.append(self.values, 0, self.k, self.batch.slots)
        what = AttentionSpec(HEADS, 0.2)
        self.device.attention(what, 0, self.q, [self.keys], self.values, self.batch, self.attended)
        self.device.linear(self.attended, self.weight, self.out)


def pools(device: CpuDevice) -> tuple[PagePool, PagePool]:
    rng = np.random.default_rng(2)
    made = []
    for name in ("key", "value"):
        pool = device.allocate(SlabSpec(name, 1, KV_HEADS, WIDTH, Storage.F16), PAGES, PAGE_TOKENS)
        rows = rng.standard_normal((PAGES * PAGE_TOKENS, KV_HEADS * WIDTH), dtype=np.float32)
        device.append(pool, 0, rows, np.arange(len(rows), dtype=np.int64))
        made.append(pool)
    return made[0], made[1]


def batch_of(lengths: list[int], cut: Cut, seed: int = 0) -> RaggedBatch:
    """One row of each sequence over pages of a shuffled pool, padded to the capacity."""
    order = np.random.default_rng(seed).permutation(PAGES).astype(np.int32)
    sequences, at = [], 0
    for length in lengths:
        pages = -(-length // PAGE_TOKENS)
        sequences.append(SequenceRows(min(1, length), length, order[at : at + pages]))
        at += pages
    return plan(sequences, PAGE_TOKENS, cut=cut, capacity=CAPACITY)


def overwrite(fixed: RaggedBatch, fresh: RaggedBatch) -> None:
    for field in fields(RaggedBatch):
        value = getattr(fresh, field.name)
        if isinstance(value, np.ndarray):
            getattr(fixed, field.name)[:] = value


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("split", [False, True])
@pytest.mark.parametrize("lengths", [[600, 1, 257], [16, 17, 700], [1, 1, 1], [900, 0, 30]])
def test_a_program_recorded_short_and_run_long_equals_the_eager_step(
    threads: int, split: bool, lengths: list[int]
) -> None:
    device = CpuDevice(threads)
    cut = Cut(1, split)
    recorded = Layer(device, batch_of([3, 5, 2], cut), *pools(device))
    program = device.record(recorded.run)
    assert len(program) == 4
    rng = np.random.default_rng(3)
    q = rng.standard_normal((3, HEADS * WIDTH), dtype=np.float32)
    k = rng.standard_normal((3, KV_HEADS * WIDTH), dtype=np.float32)

    longer = batch_of(lengths, cut, seed=4)
    eager = Layer(device, longer, *pools(device))
    eager.fill(q, k)
    eager.run()

    # The recording wrote a few slots; the eager step's pools never saw that.
    for pool, fresh in zip((recorded.keys, recorded.values), pools(device), strict=True):
        pool.array[:] = fresh.array
    overwrite(recorded.batch, longer)
    recorded.fill(q, k)
    program.run()
    real = longer.slots >= 0
    np.testing.assert_array_equal(
        recorded.out[real].view(np.uint32), eager.out[real].view(np.uint32)
    )
    np.testing.assert_array_equal(recorded.keys.array, eager.keys.array)


def test_a_recording_runs_what_it_records() -> None:
    device = CpuDevice(1)
    one, two = (Layer(device, batch_of([30, 4, 9], Cut(1)), *pools(device)) for _ in range(2))
    q = np.random.default_rng(5).standard_normal(one.q.shape, dtype=np.float32)
    one.fill(q, 0)
    two.fill(q, 0)
    device.record(one.run)
    two.run()
    np.testing.assert_array_equal(one.out, two.out)


def test_a_slot_past_the_pool_stops_a_program_too() -> None:
    device = CpuDevice(1)
    layer = Layer(device, batch_of([30, 4, 9], Cut(1)), *pools(device))
    program = device.record(layer.run)
    layer.batch.slots[1] = PAGES * PAGE_TOKENS
    layer.out[:] = 7.0
    with pytest.raises(KernelInputError, match="slot lies past"):
        program.run()
    assert (layer.out == 7.0).all()


def test_a_recording_inside_a_recording_is_refused() -> None:
    device = CpuDevice(1)

    def inner() -> CpuProgram:
        return device.record(lambda: None)

    with pytest.raises(KernelInputError, match="recording is under way"):
        device.record(lambda: (inner(), None)[1])
    assert len(inner()) == 0, "the failed one has ended"


def test_a_product_by_torch_cannot_be_recorded() -> None:
    device = FastCpuDevice(1, by_torch=frozenset((Storage.F32,)))
    weight = device.pack(np.ones((8, 8), np.float32), Storage.F32)
    x, out = np.ones((64, 8), np.float32), np.empty((64, 8), np.float32)
    with pytest.raises(KernelInputError, match="cannot be recorded"):
        device.record(lambda: device.linear(x, weight, out))
    program = device.record(lambda: device.linear(x[:4], weight, out[:4]))
    out[:] = 0.0
    program.run()
    assert (out[:4] == 8.0).all()
