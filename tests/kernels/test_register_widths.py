"""Wider registers change no bit: the core built for each wider target beside the one for AVX2.

The core for AVX2 is held to float64 by the tests of each operation; here the others are held to it.
Products with bf16 weights are left out: test_row_math.py says what they are on each target.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from attention_cases import Case, build
from test_paged_attention import MATRIX, RAGGED, case_of

from pagetrail.kernels import native_build
from pagetrail.kernels.abi import SlabSpec, Storage
from pagetrail.kernels.cpu import CpuDevice
from pagetrail.kernels.device import Activation, AttentionSpec
from pagetrail.kernels.plan import Cut, SequenceRows, plan

WIDER = [native_build.V4, native_build.V4_BF16]
device_for = cache(lambda target: CpuDevice(1, target))


@pytest.fixture(params=[pytest.param(target, id=target.name) for target in WIDER])
def both(request: pytest.FixtureRequest) -> tuple[CpuDevice, CpuDevice]:
    """The device for AVX2 and a wider one."""
    if not native_build.cpu_flags() >= request.param.needs:
        pytest.skip(f"this processor does not run {request.param.name}")
    return device_for(native_build.V3), device_for(request.param)


def same(a: np.ndarray, b: np.ndarray, what: object) -> None:
    np.testing.assert_array_equal(a.view(np.uint32), b.view(np.uint32), str(what))


def attend(case: Case, device: CpuDevice) -> tuple[np.ndarray, np.ndarray]:
    return build(case, device).run()


def test_attention_over_the_whole_matrix(both: tuple[CpuDevice, CpuDevice]) -> None:
    for chosen in MATRIX:
        (out, lse), (wide, wide_lse) = (attend(case_of(chosen), device) for device in both)
        same(wide, out, chosen)
        same(wide_lse, lse, chosen)


@pytest.mark.parametrize("storage", list(Storage))
@pytest.mark.parametrize("window", [0, 17, 300])
@pytest.mark.parametrize("width", [8, 24, 33, 144])  # whole registers, halves, neither
def test_attention_of_widths_that_fill_no_register(
    both: tuple[CpuDevice, CpuDevice], storage: Storage, window: int, width: int
) -> None:
    for group, cut in ((1, Cut()), (3, Cut(1, True)), (7, Cut(2))):
        case = Case(
            RAGGED.lengths, group=group, width=width, storage=storage, window=window, cut=cut
        )
        (out, lse), (wide, wide_lse) = (attend(case, device) for device in both)
        same(wide, out, case)
        same(wide_lse, lse, case)


@pytest.mark.parametrize("storage", list(Storage))
@pytest.mark.parametrize("rotary_width", [16, 20])
def test_attention_of_two_key_slabs(
    both: tuple[CpuDevice, CpuDevice], rotary_width: int, storage: Storage
) -> None:
    outs = []
    for device in both:
        rng = np.random.default_rng(0)
        slots = np.arange(300, dtype=np.int64)
        pools = []
        for name, width in (("latent", 60), ("rotary", rotary_width)):
            pool = device.allocate(SlabSpec(name, 1, 1, width, storage), 20, 16)
            device.append(pool, 0, rng.standard_normal((300, width), dtype=np.float32), slots)
            pools.append(pool)
        for q_rows in (1, 5):
            batch = plan([SequenceRows(q_rows, 300, np.arange(20, dtype=np.int32))], 16)
            q = rng.standard_normal((q_rows, 6 * (60 + rotary_width)), dtype=np.float32)
            out = np.empty((q_rows, 6 * 60), np.float32)
            device.attention(AttentionSpec(6, 0.1), 0, q, pools, pools[0], batch, out)
            outs.append(out)
    same(outs[2], outs[0], "one row")
    same(outs[3], outs[1], "five rows")


def test_scores_that_overflow_or_are_no_numbers(both: tuple[CpuDevice, CpuDevice]) -> None:
    case = Case(((3, 300), (1, 20)), group=2, width=16)
    for value in (np.inf, -np.inf, 3e38, np.nan):
        results = []
        for device in both:
            built = build(case, device)
            built.q[1, 5] = value
            results.append(built.run())
        for narrow, wide in zip(*results, strict=True):
            # A NaN's sign and payload are the processor's affair.
            np.testing.assert_array_equal(wide, narrow, str(value))


@pytest.mark.parametrize("storage", [Storage.F32, Storage.F16])
@pytest.mark.parametrize("depth", [1, 5, 64, 1700])
def test_products(both: tuple[CpuDevice, CpuDevice], storage: Storage, depth: int) -> None:
    rng = np.random.default_rng(1)
    for outputs in (1, 16, 40, 200):
        weight = rng.standard_normal((outputs, depth), dtype=np.float32)
        packed = [device.pack(weight, storage) for device in both]
        for count in (1, 2, 3, 4, 7, 13, 15, 29, 70):
            x = rng.standard_normal((count, depth), dtype=np.float32)
            outs = [np.empty((count, outputs), np.float32) for _ in both]
            for device, one, out in zip(both, packed, outs, strict=True):
                device.linear(x, one, out)
            same(outs[1], outs[0], (outputs, count))


@pytest.mark.parametrize("width", [1, 8, 37, 64, 576])
def test_operations_on_a_row(both: tuple[CpuDevice, CpuDevice], width: int) -> None:
    rng = np.random.default_rng(2)
    x = rng.standard_normal((9, 2 * width), dtype=np.float32) * 8
    weight = rng.standard_normal(2 * width, dtype=np.float32)
    angles = rng.uniform(0, 6, (50, width)).astype(np.float32)
    positions = rng.integers(0, 50, 9).astype(np.int32)
    results = []
    for device in both:
        normed, turned, active = np.empty_like(x), x.copy(), []
        device.rms_norm(x, 1, weight, 1.0, 1e-5, normed)
        device.rope(turned, 1, 2 * width, 0, positions, (np.cos(angles), np.sin(angles)))
        for kind in Activation:
            out = np.empty((9, width), np.float32)
            device.gated(x, kind, out)
            active.append(out)
        results.append([normed, turned, *active])
    for narrow, wide in zip(*results, strict=True):
        same(wide, narrow, width)
