"""Quantised append on the host emulator against torch's own float8 and numpy's rounding."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from pagetrail.kernels.abi import KernelInputError
from pagetrail.kernels.cuda.quantised import Code, QuantisedPool, append
from pagetrail.kernels.emulator.device import describe
from pagetrail.kernels.emulator.library import HostLauncher
from pagetrail.kernels.native_build import COMPILERS

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
    code: Code, rows: tuple[np.ndarray, np.ndarray], slots: np.ndarray, heads: int
) -> tuple[list[np.ndarray], list[np.ndarray], int]:
    codes = [np.full((3, 4, heads, r.shape[1] // heads), 0xAA, np.uint8) for r in rows]
    scales = [np.full((3, 4, heads), -7.0, np.float32) for _ in rows]
    error = np.zeros(1, np.int32)
    pools = [QuantisedPool(describe(c), describe(s)) for c, s in zip(codes, scales, strict=True)]
    launcher = HostLauncher()
    described = [describe(r) for r in rows]
    for launch in append(code, pools, described, describe(slots), describe(error)):
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
    for matrix, got, got_scales in zip(rows, codes, scales, strict=True):
        flat, flat_scales = got.reshape(12, 2, -1), got_scales.reshape(12, 2)
        for row, slot in zip(matrix.reshape(4, 2, -1), slots, strict=True):
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
    assert scales[0][0, 0, 0] == 1.0
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


def test_scales_of_another_shape_are_refused() -> None:
    codes = np.zeros((3, 4, 1, 32), np.uint8)
    pool = QuantisedPool(describe(codes), describe(np.zeros((3, 4), np.float32)))
    rows = describe(np.zeros((1, 32), np.float32))
    slots, error = describe(np.zeros(1, np.int64)), describe(np.zeros(1, np.int32))
    with pytest.raises(KernelInputError, match="scales of keys must be contiguous"):
        append(Code.I8, [pool, pool], [rows, rows], slots, error)
