"""The CUDA attention kernels, run by the host emulator, against float64 and against themselves."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
from paged_cases import (
    REFERENCE_TOLERANCE,
    Paged,
    bits,
    check,
    fill,
    matrix,
    relative_error,
    run,
)

from pagetrail.kernels.abi import Storage
from pagetrail.kernels.compiler import COMPILERS
from pagetrail.kernels.emulator.device import EmulatedDevice
from pagetrail.kernels.emulator.library import HostLauncher
from pagetrail.kernels.plan import Capacity

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="the emulator needs a C++ compiler"
)

MIXED = Paged(((1, 300), (5, 37), (0, 0), (1, 1), (70, 129)), group=3)


@pytest.fixture(scope="module")
def device() -> EmulatedDevice:
    return EmulatedDevice(HostLauncher())


@pytest.fixture(scope="module")
def reference() -> EmulatedDevice:
    return EmulatedDevice(HostLauncher(), reference=True)


@pytest.mark.parametrize("storage", [Storage.F16, Storage.BF16])
def test_the_pairwise_matrix_agrees_with_float64(device: EmulatedDevice, storage: Storage) -> None:
    for case in matrix((64,), ("0", "1", "ps-1", "ps", "ps+1", "129")):
        if case.storage is storage:
            check(case, device)


@pytest.mark.slow
@pytest.mark.parametrize("width", [64, 96, 128, 192, 256])
def test_the_whole_matrix_of_a_width_agrees_with_float64(
    device: EmulatedDevice, width: int
) -> None:
    for case in matrix((width,), ("0", "1", "ps-1", "ps", "ps+1", "129", "2050")):
        check(case, device)


@pytest.mark.parametrize("storage", [Storage.F32, Storage.F16, Storage.BF16])
def test_the_reference_kernel_is_exact_up_to_fp32_rounding(
    reference: EmulatedDevice, storage: Storage
) -> None:
    for window in (0, 1, 17):
        check(
            replace(MIXED, storage=storage, window=window, width=48), reference, REFERENCE_TOLERANCE
        )


def test_mla_reads_one_latent_slab_as_keys_and_as_values(
    device: EmulatedDevice, reference: EmulatedDevice
) -> None:
    case = Paged(((1, 300), (9, 70), (0, 0)), kv_heads=1, group=16, width=64, rotary=16)
    check(case, device)
    check(replace(case, storage=Storage.BF16, split=True, rows_per_item=1), device)
    check(case, reference, REFERENCE_TOLERANCE)


@pytest.mark.slow
def test_mla_of_full_size_agrees_with_float64(device: EmulatedDevice) -> None:
    check(Paged(((1, 300), (2, 70)), kv_heads=1, group=16, width=512, rotary=64), device)


def test_the_bits_of_a_row_do_not_depend_on_the_shape_of_the_step(device: EmulatedDevice) -> None:
    whole = Paged(((70, 700),), group=3, rows_per_item=64)
    out, lse = run(whole, device)
    expected = bits((out, lse))
    for other in (
        replace(whole, rows_per_item=1),
        replace(whole, rows_per_item=5),
        replace(whole, rows_per_item=1, split=True),
        replace(whole, page_order=7),
        replace(whole, page_tokens=32),
        replace(whole, page_tokens=1),
        replace(whole, capacity=Capacity(3, 96, 64, 100)),
    ):
        assert bits(run(other, device)) == expected, other
    neighbours = replace(whole, sequences=((70, 700), (1, 900), (33, 33)))
    got_out, got_lse = run(neighbours, device)
    assert bits((got_out[:70], got_lse[:70])) == expected


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_order_of_blocks_warps_and_lanes_changes_no_bit(
    device: EmulatedDevice, seed: int
) -> None:
    case = replace(MIXED, split=True, rows_per_item=1)
    assert bits(run(case, EmulatedDevice(HostLauncher(seed)))) == bits(run(case, device))


def test_values_of_one_give_one(device: EmulatedDevice) -> None:
    out, _ = run(replace(MIXED, kind="ones"), device)
    assert np.abs(out - 1.0).max() < 1e-3


def test_queries_of_zero_give_the_mean_of_the_values(device: EmulatedDevice) -> None:
    filled = fill(Paged(((1, 200),), kind="zero_queries", group=1, kv_heads=1), device)
    out, lse = filled.run()
    want_out, _ = filled.oracle()
    assert relative_error(out, want_out) < 1e-3
    assert lse[0, 0] == pytest.approx(np.log2(200), abs=1e-5)


def test_a_plan_for_few_rows_replays_with_a_longer_sequence(device: EmulatedDevice) -> None:
    capacity = Capacity(sequences=4, rows=8, page_entries=64, items=32)
    for length in (3, 500):
        case = Paged(((1, length),), capacity=capacity, rows_per_item=1, split=True)
        eager = replace(case, capacity=None, split=False)
        assert bits(run(case, device)) == bits(run(eager, device))
