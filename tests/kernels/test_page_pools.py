"""Append, page copy, gather and scatter touch the rows they were pointed at and nothing else."""

from __future__ import annotations

import mmap

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetrail.kernels.abi import KernelInputError, SlabSpec, Storage
from pagetrail.kernels.cpu import CpuDevice
from pagetrail.kernels.device import AttentionSpec, PagePool, StepDevice
from pagetrail.kernels.oracle import as_float64
from pagetrail.kernels.plan import SequenceRows, plan

MAP_NORESERVE = 0x4000  # Linux; Python's mmap does not name it


def pool_of(device: StepDevice, storage: Storage = Storage.F32, pages: int = 6) -> PagePool:
    pool = device.allocate(SlabSpec("key", 2, 3, 8, storage), pages, 4)
    pool.array.view(np.uint8)[...] = np.random.default_rng(0).integers(
        0, 255, pool.array.view(np.uint8).shape, np.uint8
    )
    return pool


@pytest.mark.parametrize("storage", list(Storage))
def test_append_writes_each_row_to_its_slot_and_skips_slot_minus_one(
    device: StepDevice, storage: Storage
) -> None:
    pool = pool_of(device, storage)
    before = pool.array.copy()
    rows = np.random.default_rng(1).standard_normal((4, 24)).astype(np.float32)
    device.append(pool, 1, rows, np.array([23, -1, 0, 9], np.int64))
    after = pool.array.reshape(2, 24, 24)
    expected = before.reshape(2, 24, 24).copy()
    for row, slot in ((0, 23), (2, 0), (3, 9)):
        if storage is Storage.BF16:
            import torch

            stored = torch.from_numpy(rows[row]).to(torch.bfloat16).view(torch.uint16).numpy()
        else:
            stored = rows[row].astype(storage.dtype)
        expected[1, slot] = stored
    np.testing.assert_array_equal(after.view(np.uint8), expected.view(np.uint8))


@pytest.mark.parametrize("storage", [Storage.F16, Storage.BF16])
def test_storing_rounds_every_kind_of_number_to_nearest_even(
    device: StepDevice, storage: Storage
) -> None:
    import torch

    patterns = np.concatenate(
        [
            np.arange(0, 2**32, 65521, dtype=np.uint64).astype(np.uint32),
            np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x477FEFFF, 0x477FF000], np.uint32),
            np.array([0x33000000, 0x33000001, 0x38800000, 0x387FFFFF, 0x7F7FFFFF], np.uint32),
        ]
    )
    values = patterns.view(np.float32)
    values = values[~np.isnan(values)]
    values = values[: len(values) // 8 * 8].reshape(-1, 8)
    pool = device.allocate(SlabSpec("key", 1, 1, 8, storage), -(-len(values) // 16), 16)
    device.append(pool, 0, values, np.arange(len(values), dtype=np.int64))
    kind = torch.float16 if storage is Storage.F16 else torch.bfloat16
    want = torch.from_numpy(values).to(kind).view(torch.uint16).numpy()
    got = pool.array.reshape(-1, 8)[: len(values)].view(np.uint16)
    np.testing.assert_array_equal(got, want)


def test_a_slot_past_the_pool_is_refused(device: StepDevice) -> None:
    pool = pool_of(device)
    with pytest.raises(KernelInputError, match=r"past the pool|must lie in"):
        device.append(pool, 0, np.zeros((1, 24), np.float32), np.array([24], np.int64))


def test_a_page_copy_copies_one_page_over_all_layers(device: StepDevice) -> None:
    pool = pool_of(device)
    want = pool.array.copy()
    want[:, 4] = want[:, 1]
    device.page_copy(pool, 1, 4)
    np.testing.assert_array_equal(pool.array.view(np.uint8), want.view(np.uint8))
    with pytest.raises(KernelInputError, match=r"\[0, 6\)|must lie"):
        device.page_copy(pool, 1, 6)


@settings(max_examples=60, deadline=None)
@given(
    st.permutations(range(6)),
    st.integers(0, 24),
    st.integers(0, 24),
    st.sampled_from(list(Storage)),
)
def test_scatter_undoes_gather_and_writes_nothing_else(
    order: list[int], a: int, b: int, storage: Storage
) -> None:
    device = CpuDevice(1)
    start, end = min(a, b), max(a, b)
    table = np.array(order, np.int32)
    pool = pool_of(device, storage)
    packed = device.gather(pool, table, start, end)
    rows = pool.array[:, table].reshape(2, 24, 24)[:, start:end]
    np.testing.assert_array_equal(packed, np.ascontiguousarray(rows).view(np.uint8).reshape(-1))
    target = device.allocate(pool.spec, 6, 4)
    other = np.array(order[::-1], np.int32)
    device.scatter(target, other, start, end, packed)
    want = np.zeros_like(pool.array[:, table].reshape(2, 24, 24))
    want[:, start:end] = rows
    got = target.array[:, other].reshape(2, 24, 24)
    np.testing.assert_array_equal(got.view(np.uint8), want.view(np.uint8))


def test_gather_and_scatter_refuse_ranges_past_the_table(device: StepDevice) -> None:
    pool = pool_of(device)
    table = np.array([0, 1], np.int32)
    with pytest.raises(KernelInputError, match="need 3 pages"):
        device.gather(pool, table, 0, 9)
    with pytest.raises(KernelInputError, match="bytes"):
        device.scatter(pool, table, 0, 4, np.zeros(3, np.uint8))


def test_poison_makes_every_element_of_a_page_nan(device: StepDevice) -> None:
    for storage in Storage:
        pool = device.allocate(SlabSpec("key", 2, 1, 8, storage), 3, 4)
        device.poison(pool, np.array([1], np.int32))
        values = as_float64(pool.array, storage)
        assert np.isnan(values[:, 1]).all()
        assert (values[:, [0, 2]] == 0).all()


@pytest.mark.parametrize("elements", [2**31, 2**32])
def test_offsets_past_two_and_four_billion_elements_are_exact(elements: int) -> None:
    # A sparse pool: only the touched pages take memory.
    device = CpuDevice(1)
    page_tokens, width = 16, 64
    pages = elements // (page_tokens * width) + 2
    spec = SlabSpec("key", 1, 1, width)
    with mmap.mmap(
        -1,
        pages * page_tokens * width * 4,
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE,
    ) as memory:
        array = np.frombuffer(memory, np.float32).reshape(1, pages, page_tokens, 1, width)
        pool = PagePool(spec, pages, page_tokens, array)
        rng = np.random.default_rng(0)
        rows = rng.standard_normal((40, width)).astype(np.float32)
        table = np.array([pages - 1, 0, pages - 2], np.int32)
        near = device.allocate(spec, 3, page_tokens)
        near_table = np.array([0, 1, 2], np.int32)
        q = rng.standard_normal((1, 2 * width)).astype(np.float32)
        outs = []
        for where, ids in ((pool, table), (near, near_table)):
            batch = plan([SequenceRows(40, 40, ids)], page_tokens)
            device.append(where, 0, rows, batch.slots)
            decode = plan([SequenceRows(1, 40, ids)], page_tokens)
            out = np.empty((1, 2 * width), np.float32)
            device.attention(AttentionSpec(2, 0.1), 0, q, [where], where, decode, out)
            outs.append(out)
            device.page_copy(where, int(ids[0]), int(ids[2]))
            outs.append(device.gather(where, ids, 32, 40))
        np.testing.assert_array_equal(outs[0], outs[2])
        np.testing.assert_array_equal(outs[1], outs[3])
        del array, pool, where
