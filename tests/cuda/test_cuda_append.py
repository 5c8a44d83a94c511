"""Append and page copies of the CUDA sources, run by the emulator, against numpy and the CPU."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from pagetrail.kernels.abi import KernelInputError, SlabSpec, Storage
from pagetrail.kernels.compiler import COMPILERS
from pagetrail.kernels.cpu import CpuDevice
from pagetrail.kernels.cuda import operations
from pagetrail.kernels.cuda.arrays import PoolArray
from pagetrail.kernels.device import PagePool
from pagetrail.kernels.emulator.device import EmulatedDevice, describe
from pagetrail.kernels.emulator.library import HostLauncher

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="the emulator needs a C++ compiler"
)

TORCH = {Storage.F16: torch.float16, Storage.BF16: torch.bfloat16, Storage.F32: torch.float32}
EDGES = [
    1 + 2**-11,
    1 + 3 * 2**-11,
    65519.99,
    65520.0,
    -65520.0,
    2.0**-24,
    2.0**-25,
    1.5 * 2**-25,
    2**-14 - 2**-26,
    np.inf,
    -np.inf,
    -0.0,
    1e-45,
    6.1e-5,
    3.4e38,
]


@pytest.fixture(scope="module")
def device() -> EmulatedDevice:
    return EmulatedDevice(HostLauncher())


def rounded(rows: np.ndarray, storage: Storage) -> np.ndarray:
    """Rows as torch rounds them, as bits."""
    narrow = torch.from_numpy(rows).to(TORCH[storage])
    return narrow.view(torch.int32 if storage is Storage.F32 else torch.int16).numpy()


def as_bits(pool: PagePool) -> np.ndarray:
    return pool.array.view(np.int32 if pool.spec.storage is Storage.F32 else np.int16)


@pytest.mark.parametrize("storage", list(Storage))
@pytest.mark.parametrize("width", [64, 7])
def test_rows_land_at_their_slots_rounded_to_nearest_even(
    device: EmulatedDevice, storage: Storage, width: int
) -> None:
    pool = device.allocate(SlabSpec("key", 2, 3, width, storage), 4, 8)
    device.poison(pool, np.arange(4, dtype=np.int32))
    before = as_bits(pool).copy()
    rows = np.random.default_rng(0).standard_normal((5, 3 * width)).astype(np.float32)
    rows.flat[: len(EDGES)] = EDGES
    slots = np.array([9, -1, 0, 31, 12], np.int64)
    device.append(pool, 1, rows, slots)
    for row, slot in zip(rows, slots, strict=True):
        if slot >= 0:
            before[1, slot // 8, slot % 8] = rounded(row, storage).reshape(3, width)
    assert (as_bits(pool) == before).all()


def test_both_slabs_are_written_by_one_launch(device: EmulatedDevice) -> None:
    pools = [
        device.allocate(SlabSpec(n, 1, 2, w, Storage.F16), 3, 4) for n, w in (("k", 64), ("v", 40))
    ]
    rng = np.random.default_rng(1)
    rows = [rng.standard_normal((2, 2 * w)).astype(np.float32) for w in (64, 40)]
    device.append_together(pools, 0, rows, np.array([5, 11], np.int64))
    for pool, matrix in zip(pools, rows, strict=True):
        flat = as_bits(pool).reshape(12, -1)
        assert (flat[[5, 11]] == rounded(matrix, Storage.F16)).all()
        assert (np.delete(flat, [5, 11], axis=0) == 0).all()


def test_the_bits_are_those_of_the_cpu_path(device: EmulatedDevice) -> None:
    rows = np.random.default_rng(2).standard_normal((6, 128)).astype(np.float32) * 1e4
    slots = np.array([3, 1, 8, -1, 0, 15], np.int64)
    for storage in (Storage.F16, Storage.BF16):
        cpu = CpuDevice()
        pools = [d.allocate(SlabSpec("k", 1, 1, 128, storage), 4, 4) for d in (device, cpu)]
        device.append(pools[0], 0, rows, slots)
        cpu.append(pools[1], 0, rows, slots)
        assert (as_bits(pools[0]) == as_bits(pools[1])).all()


def test_a_slot_past_the_pool_is_skipped_and_raises_the_flag() -> None:
    device, launcher = EmulatedDevice(HostLauncher()), HostLauncher()
    pool = device.allocate(SlabSpec("k", 1, 1, 64, Storage.F16), 2, 4)
    error = np.zeros(1, np.int32)
    rows, slots = np.ones((2, 64), np.float32), np.array([8, 7], np.int64)
    view = PoolArray(pool.spec, 2, 4, describe(pool.array))
    for launch in operations.append([view], 0, [describe(rows)], describe(slots), describe(error)):
        launcher.launch(launch)
    assert error[0] == 1
    flat = pool.array.reshape(8, 64)
    assert (flat[7] == 1).all()
    assert not flat[:7].any()


def test_two_rows_on_one_slot_are_refused_before_a_launch(device: EmulatedDevice) -> None:
    pool = device.allocate(SlabSpec("k", 1, 1, 64, Storage.F16), 2, 4)
    with pytest.raises(KernelInputError, match="slot 3 is written by two rows"):
        device.append(pool, 0, np.ones((2, 64), np.float32), np.array([3, 3], np.int64))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.ones((2, 63), np.float32), "rows of 'k' must be float32"),
        (np.ones((1, 64), np.float32), "rows of 'k' must be float32"),
        (np.ones((2, 64), np.float16), "not float16"),
        (np.ones((64, 2), np.float32).T, "contiguous rows"),
    ],
)
def test_rows_of_another_shape_or_type_are_refused(
    device: EmulatedDevice, rows: np.ndarray, message: str
) -> None:
    pool = device.allocate(SlabSpec("k", 1, 1, 64, Storage.F16), 2, 4)
    with pytest.raises(KernelInputError, match=message):
        device.append(pool, 0, rows, np.array([0, 1], np.int64))


@pytest.mark.parametrize("width", [64, 5])
def test_gather_and_scatter_move_token_rows_across_page_edges(
    device: EmulatedDevice, width: int
) -> None:
    spec = SlabSpec("k", 3, 2, width, Storage.F16)
    pool, other = device.allocate(spec, 6, 4), device.allocate(spec, 6, 4)
    as_bits(pool)[:] = np.random.default_rng(4).integers(0, 2**15, pool.array.shape)
    table = np.array([5, 0, 3], np.int32)
    packed = device.gather(pool, table, 2, 11)
    want = pool.array[:, table].reshape(3, 12, 2, width)[:, 2:11]
    assert packed.tobytes() == want.tobytes()
    to = np.array([1, 4, 2], np.int32)
    device.scatter(other, to, 2, 11, packed)
    landed = as_bits(other)[:, to].reshape(3, 12, 2, width)
    assert landed[:, 2:11].tobytes() == want.tobytes()
    assert not landed[:, :2].any()
    assert not landed[:, 11:].any()


def test_a_page_is_copied_in_every_layer_and_nothing_else_changes(device: EmulatedDevice) -> None:
    pool = device.allocate(SlabSpec("k", 3, 1, 24, Storage.BF16), 4, 2)
    pool.array[:] = np.random.default_rng(5).integers(0, 2**15, pool.array.shape)
    want = pool.array.copy()
    want[:, 3] = want[:, 1]
    device.page_copy(pool, 1, 3)
    assert (pool.array == want).all()


def test_rows_outside_the_page_table_are_refused(device: EmulatedDevice) -> None:
    pool = device.allocate(SlabSpec("k", 1, 1, 8, Storage.F16), 4, 4)
    with pytest.raises(KernelInputError, match="need 3 pages"):
        device.gather(pool, np.array([0, 1], np.int32), 0, 9)
    with pytest.raises(KernelInputError, match=r"page ids must lie in \[0, 4\), found 9"):
        device.gather(pool, np.array([0, 9], np.int32), 0, 8)
