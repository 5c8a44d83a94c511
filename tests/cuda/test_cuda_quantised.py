"""Pools of eight-bit codes on the host emulator: append against torch's own float8 and numpy's
rounding, attention against float64 and against fp16 pages of the same numbers.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from coded_device import CodedDevice
from paged_cases import (
    REFERENCE_TOLERANCE,
    TOLERANCE,
    Paged,
    bits,
    check,
    fill,
    matrix,
    relative_error,
)

from pagetrail.kernels.abi import KernelInputError, SlabSpec, Storage
from pagetrail.kernels.compiler import COMPILERS
from pagetrail.kernels.cuda.codes import Code, CodedSlab
from pagetrail.kernels.cuda.quantised import CodedArrays, append
from pagetrail.kernels.device import AttentionSpec
from pagetrail.kernels.emulator.device import EmulatedDevice, describe
from pagetrail.kernels.emulator.library import HostLauncher
from pagetrail.kernels.plan import SequenceRows, plan

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="the emulator needs a C++ compiler"
)

HIGHEST = {Code.E4M3: np.float32(448), Code.I8: np.float32(127)}


def wanted_codes(code: Code, scaled: np.ndarray) -> np.ndarray:
    """Codes of numbers inside the range, by torch or numpy."""
    if code is Code.E4M3:
        return torch.from_numpy(scaled).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    return np.rint(scaled).astype(np.int8).view(np.uint8)


def appended(
    code: Code, rows: tuple[np.ndarray, ...], slots: np.ndarray, heads: int
) -> tuple[list[np.ndarray], list[np.ndarray], int]:
    codes = [np.full((1, 3, 4, heads, r.shape[1] // heads), 0xAA, np.uint8) for r in rows]
    scales = [np.full((1, 3, 4, heads), -7.0, np.float32) for _ in rows]
    error = np.zeros(1, np.int32)
    pools = [
        CodedArrays(CodedSlab(n, 1, heads, c.shape[-1], code), 3, 4, describe(c), describe(s))
        for n, c, s in zip("kv", codes, scales, strict=False)
    ]
    launcher = HostLauncher()
    described = [describe(r) for r in rows]
    for launch in append(pools, 0, described, describe(slots), describe(error)):
        launcher.launch(launch)
    return codes, scales, int(error[0])


@pytest.mark.parametrize("code", list(Code))
def test_codes_and_scales_are_those_of_the_formula(code: Code) -> None:
    rng = np.random.default_rng(0)
    rows = tuple(
        (rng.standard_normal((4, 2 * w)) * 10.0 ** rng.integers(-6, 6, (4, 2 * w))).astype(
            np.float32
        )
        for w in (64, 40)
    )
    slots = np.array([5, -1, 0, 11], np.int64)
    codes, scales, error = appended(code, rows, slots, 2)
    assert error == 0
    for given, got, got_scales in zip(rows, codes, scales, strict=True):
        flat, flat_scales = got.reshape(12, 2, -1), got_scales.reshape(12, 2)
        for row, slot in zip(given.reshape(4, 2, -1), slots, strict=True):
            if slot < 0:
                continue
            scale = np.abs(row).max(axis=1, keepdims=True) / HIGHEST[code]
            assert (flat_scales[slot] == scale[:, 0]).all()
            limit = HIGHEST[code]
            assert (flat[slot] == wanted_codes(code, np.clip(row / scale, -limit, limit))).all()
        untouched = np.setdiff1d(np.arange(12), slots[slots >= 0])
        assert (flat[untouched] == 0xAA).all()
        assert (flat_scales[untouched] == -7.0).all()


def test_every_e4m3_number_and_every_midpoint_rounds_as_torch_says() -> None:
    numbers = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float().numpy()
    middles = (numbers[1:] + numbers[:-1]) / 2
    row = np.concatenate([numbers, middles, np.nextafter(middles, np.float32(0))])
    row = np.concatenate([row, -row, np.zeros(2, np.float32)]).astype(np.float32)[None]
    codes, scales, _ = appended(Code.E4M3, (row, row), np.array([0], np.int64), 1)
    assert scales[0][0, 0, 0, 0] == 1.0
    assert (codes[0].reshape(12, -1)[0] == wanted_codes(Code.E4M3, row[0])).all()


@pytest.mark.parametrize("code", list(Code))
def test_a_row_of_zeros_has_scale_zero_and_a_row_with_nan_a_nan_scale(code: Code) -> None:
    rows = np.zeros((2, 32), np.float32)
    rows[1, 3] = np.nan
    codes, scales, _ = appended(code, (rows, rows), np.array([1, 2], np.int64), 1)
    assert scales[0].reshape(-1)[1] == 0
    assert not codes[0].reshape(12, -1)[1].any()
    assert np.isnan(scales[0].reshape(-1)[2])


def test_a_slot_past_the_pool_raises_the_flag() -> None:
    rows = np.ones((1, 32), np.float32)
    codes, _, error = appended(Code.I8, (rows, rows), np.array([12], np.int64), 1)
    assert error == 1
    assert (codes[0] == 0xAA).all()


def test_one_slab_alone_gets_the_codes_it_gets_beside_another() -> None:
    rows = np.random.default_rng(1).standard_normal((2, 3 * 36)).astype(np.float32)
    slots = np.array([7, 2], np.int64)
    alone, beside = (appended(Code.E4M3, r, slots, 3) for r in ((rows,), (rows, rows)))
    assert alone[0][0].tobytes() == beside[0][1].tobytes()
    assert alone[1][0].tobytes() == beside[1][1].tobytes()


def test_codes_in_a_later_layer_leave_the_first_alone() -> None:
    device = EmulatedDevice(HostLauncher())
    pool = device.allocate_coded(CodedSlab("k", 3, 2, 64, Code.I8), 4, 8)
    rows = np.random.default_rng(2).standard_normal((2, 128)).astype(np.float32)
    device.append_together([pool], 2, [rows], np.array([31, 0], np.int64))
    assert pool.codes[2].reshape(32, 128)[[0, 31]].any(axis=1).all()
    assert (pool.scales[2].reshape(32, 2)[[0, 31]] > 0).all()
    assert not pool.codes[:2].any()
    assert not pool.scales[:2].any()


def test_scales_of_another_shape_are_refused() -> None:
    codes = np.zeros((1, 3, 4, 1, 32), np.uint8)
    scales = describe(np.zeros((1, 3, 4), np.float32))
    pool = CodedArrays(CodedSlab("keys", 1, 1, 32, Code.I8), 3, 4, describe(codes), scales)
    rows = describe(np.zeros((1, 32), np.float32))
    slots, error = describe(np.zeros(1, np.int64)), describe(np.zeros(1, np.int32))
    with pytest.raises(KernelInputError, match="scales of 'keys' must be contiguous"):
        append([pool], 0, [rows], slots, error)


# ---- attention


@pytest.fixture(scope="module")
def plain() -> EmulatedDevice:
    return EmulatedDevice(HostLauncher())


def agree_with_fp16(case: Paged, coded: CodedDevice, plain: EmulatedDevice) -> None:
    """The coded kernels give the bits of the fp16 kernels over the numbers, which are right."""
    filled = fill(case, coded)
    got = filled.run()
    want = filled.oracle()
    assert relative_error(got[0], want[0]) < TOLERANCE[case.storage], case
    filled.device = plain
    assert bits(got) == bits(filled.run()), case


@pytest.mark.parametrize("code", list(Code))
def test_attention_over_codes_gives_the_bits_of_fp16_pages_of_the_numbers(
    code: Code, plain: EmulatedDevice
) -> None:
    coded = CodedDevice(EmulatedDevice(HostLauncher()), code)
    mixed = Paged(((1, 300), (5, 37), (0, 0), (1, 1), (40, 129)), group=3)
    agree_with_fp16(mixed, coded, plain)
    agree_with_fp16(replace(mixed, split=True, rows_per_item=1, page_tokens=1), coded, plain)
    agree_with_fp16(replace(mixed, window=33, page_tokens=32, group=5, kv_heads=1), coded, plain)


@pytest.mark.slow
@pytest.mark.parametrize("code", list(Code))
@pytest.mark.parametrize("width", [64, 96, 128, 192, 256])
def test_the_matrix_of_a_width_gives_the_bits_of_fp16_pages(
    code: Code, width: int, plain: EmulatedDevice
) -> None:
    coded = CodedDevice(EmulatedDevice(HostLauncher()), code)
    for case in matrix((width,), ("0", "1", "ps-1", "ps+1", "129")):
        if case.storage is Storage.F16:
            agree_with_fp16(case, coded, plain)


@pytest.mark.parametrize("code", list(Code))
def test_mla_over_codes_gives_the_bits_of_fp16_pages(code: Code, plain: EmulatedDevice) -> None:
    coded = CodedDevice(EmulatedDevice(HostLauncher()), code)
    case = Paged(((1, 300), (9, 70), (0, 0)), kv_heads=1, group=16, width=64, rotary=16)
    agree_with_fp16(case, coded, plain)


@pytest.mark.parametrize("code", list(Code))
@pytest.mark.parametrize("rotary", [0, 16])
def test_the_reference_kernel_reads_codes_up_to_fp32_rounding(code: Code, rotary: int) -> None:
    coded = CodedDevice(EmulatedDevice(HostLauncher(), reference=True), code)
    heads = 1 if rotary else 2
    case = Paged(((1, 70), (3, 33)), Storage.F32, window=40, width=48, rotary=rotary)
    check(replace(case, kv_heads=heads), coded, REFERENCE_TOLERANCE)


def test_a_row_with_nan_reaches_the_output_of_rows_that_see_it_as_nan() -> None:
    device = EmulatedDevice(HostLauncher())
    pool = device.allocate_coded(CodedSlab("k", 1, 1, 64, Code.E4M3), 1, 16)
    rows = np.ones((3, 64), np.float32)
    rows[1, 5] = np.nan
    device.append_together([pool], 0, [rows], np.arange(3, dtype=np.int64))
    out = np.zeros((1, 64), np.float32)
    batch = plan([SequenceRows(1, 3, np.zeros(1, np.int32))], 16)
    device.attention(AttentionSpec(1, 1.0), 0, rows[:1], [pool], pool, batch, out)
    assert np.isnan(out).all()


def test_pools_of_two_codes_in_one_call_are_refused() -> None:
    device = EmulatedDevice(HostLauncher())
    pools = [device.allocate_coded(CodedSlab(code.name, 1, 1, 64, code), 1, 16) for code in Code]
    batch = plan([SequenceRows(1, 1, np.zeros(1, np.int32))], 16)
    rows = np.zeros((1, 64), np.float32)
    with pytest.raises(KernelInputError, match="'E4M3' has other heads, code, pages"):
        device.attention(AttentionSpec(1, 1.0), 0, rows, pools[:1], pools[1], batch, rows)


def test_plain_numbers_and_codes_in_one_call_are_refused() -> None:
    device = EmulatedDevice(HostLauncher())
    coded = device.allocate_coded(CodedSlab("k", 1, 1, 64, Code.I8), 1, 16)
    plain = device.allocate(SlabSpec("v", 1, 1, 64, Storage.F16), 1, 16)
    batch = plan([SequenceRows(1, 1, np.zeros(1, np.int32))], 16)
    rows = np.zeros((1, 64), np.float32)
    with pytest.raises(KernelInputError, match="not some of each"):
        device.attention(AttentionSpec(1, 1.0), 0, rows, [coded], plain, batch, rows)
    with pytest.raises(KernelInputError, match="not some of each"):
        device.append_together([plain, coded], 0, [rows, rows], np.zeros(1, np.int64))
