"""What went wrong in other kernels, as small inputs with the right answer, on every execution.

Cases 31 to 37 of the list, over the tensor-core kernels, the reference, coded pages and the
compiler's own PTX. Case 38, capture short and replay long, is in test_cuda_device.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from coded_device import CodedDevice
from paged_cases import Paged, bits, check, fill, run
from sparse_pools import far_equals_near

from pagetrail.kernels.abi import SlabSpec, Storage
from pagetrail.kernels.compiler import COMPILERS
from pagetrail.kernels.cuda.codes import Code
from pagetrail.kernels.device import PagePool
from pagetrail.kernels.emulator.device import EmulatedDevice
from pagetrail.kernels.emulator.library import HostLauncher

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="the kernels need a C++ compiler"
)


def of_ptx() -> EmulatedDevice:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda-test extra")
    from pagetrail.kernels.ptx.build import build_ptx_module

    return EmulatedDevice(HostLauncher(0, build_ptx_module))


PATHS: dict[str, Callable[[], Any]] = {
    "tensor cores": lambda: EmulatedDevice(HostLauncher()),
    "reference": lambda: EmulatedDevice(HostLauncher(), reference=True),
    "e4m3 pages": lambda: CodedDevice(EmulatedDevice(HostLauncher()), Code.E4M3),
    "ptx": of_ptx,
}


@pytest.fixture(
    scope="module",
    params=[pytest.param(p, marks=pytest.mark.slow) if p == "ptx" else p for p in PATHS],
)
def device(request: pytest.FixtureRequest) -> Any:
    return PATHS[request.param]()


def stored(device: Any, pool: PagePool) -> bytes:
    if isinstance(device, CodedDevice):
        coded = device.coded(pool)
        return coded.codes.tobytes() + coded.scales.tobytes()
    return pool.array.tobytes()


@pytest.mark.parametrize("window", [127, 128, 129])
def test_case_31_a_window_holds_the_row_itself_and_the_keys_before_it(
    device: Any, window: int
) -> None:
    check(Paged(((1, 128), (3, 129), (4, 300)), window=window), device)


def test_case_32_offsets_past_two_to_the_thirty_one_and_thirty_two_are_exact(device: Any) -> None:
    if isinstance(device, CodedDevice):
        pytest.skip("the far pool of this test holds fp16")
    assert far_equals_near(device)


def test_case_33_a_nan_after_the_last_row_of_a_page_does_not_reach_the_output(device: Any) -> None:
    out, lse = run(Paged(((1, 13),), page_tokens=4), device)
    assert np.isfinite(out).all()
    assert np.isfinite(lse).all()


def test_case_34_a_skipped_slot_changes_no_byte(device: Any) -> None:
    pool = device.allocate(SlabSpec("k", 1, 2, 64, Storage.F16), 2, 4)
    device.poison(pool, np.arange(2, dtype=np.int32))
    before = stored(device, pool)
    device.append(pool, 0, np.ones((3, 128), np.float32), np.full(3, -1, np.int64))
    assert stored(device, pool) == before


def test_case_35_a_row_that_sees_no_key_gives_zero_and_minus_infinity(device: Any) -> None:
    filled = fill(Paged(((1, 5),), group=1, kv_heads=1), device)
    # No keys are left: the item ends where it starts, and the sequence is empty to the reference.
    filled.batch.items[0, 4] = filled.batch.items[0, 3]
    filled.batch.kv_len[0] = 0
    filled.batch.items[0, 3:5] = 0
    out, lse = filled.run()
    assert (out == 0).all()
    assert (lse == -np.inf).all()


@pytest.mark.parametrize("group", [5, 6, 7, 16])
def test_case_36_groups_that_do_not_fill_a_tile_agree_with_every_head_alone(
    device: Any, group: int
) -> None:
    check(Paged(((1, 200), (5, 37), (0, 0), (1, 1), (33, 70)), group=group, kv_heads=1), device)


def test_case_37_chunked_prefill_gives_the_bits_of_one_prefill(device: Any) -> None:
    whole = run(Paged(((150, 150),), rows_per_item=32), device)
    for start, end in ((0, 70), (70, 140), (140, 150)):
        out, lse = run(Paged(((end - start, end),), rows_per_item=32), device)
        assert bits((out, lse)) == bits((whole[0][start:end], whole[1][start:end]))
