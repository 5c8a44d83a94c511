"""Products, norms, rotary embedding and activations: float64 answers, and bits that do not move."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetrail.kernels import native_build
from pagetrail.kernels.abi import KernelInputError, Storage
from pagetrail.kernels.cpu import CpuDevice
from pagetrail.kernels.cpu_fast import FastCpuDevice, torch_is_faster
from pagetrail.kernels.device import Activation, StepDevice
from pagetrail.kernels.oracle import rms_norm


def rows(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def bits(x: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(x).view(np.uint32)


def rounded(x: np.ndarray, storage: Storage) -> np.ndarray:
    """What a storage keeps of fp32 values, by another route than the kernels'."""
    if storage is Storage.F32:
        return x.astype(np.float64)
    if storage is Storage.F16:
        return x.astype(np.float16).astype(np.float64)
    import torch

    return torch.from_numpy(x).to(torch.bfloat16).double().numpy()


@pytest.mark.parametrize("storage", list(Storage))
@pytest.mark.parametrize(("outputs", "depth"), [(1, 1), (16, 8), (17, 33), (130, 96), (64, 576)])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 13, 65])
def test_linear_equals_float64(
    device: StepDevice, storage: Storage, outputs: int, depth: int, count: int
) -> None:
    weight, x, bias = rows(0, outputs, depth), rows(1, count, depth), rows(2, outputs)
    packed = device.pack(weight, storage, bias)
    before = rows(3, count, outputs)
    out = before.copy()
    # A bf16 weight multiplies rows rounded to bf16.
    x_read = rounded(x, storage if storage is Storage.BF16 else Storage.F32)
    want = x_read @ rounded(weight, storage).T + bias
    device.linear(x, packed, out, add=True)
    scale = np.abs(x).astype(np.float64) @ np.abs(weight).T.astype(np.float64) + 1.0
    assert (np.abs(out - (want + before)) / scale).max() < 4e-6
    device.linear(x, packed, out)
    assert (np.abs(out - want) / scale).max() < 4e-6


def fused_in_order(x: np.ndarray, weight: np.ndarray, storage: Storage) -> np.ndarray:
    """The sum that native/product.h and native/pairs.h write down, one rounding a step.

    In float64 each step is exact before it rounds: the factors are bf16 near one, so that their
    product and the sum so far span fewer than 53 bits.
    """
    places = range(x.shape[1])
    if storage is Storage.BF16:  # the second of each pair first
        places = sorted(places, key=lambda k: (k // 2, -k))
    total = np.zeros((len(x), len(weight)), np.float32)
    for k in places:
        step = np.outer(x[:, k].astype(np.float64), weight[:, k].astype(np.float64))
        total = (total.astype(np.float64) + step).astype(np.float32)
    return total


@pytest.mark.parametrize("storage", [Storage.F32, Storage.BF16])
@pytest.mark.parametrize("depth", [1, 7, 64, 1031, 1700])
def test_a_product_is_the_sum_in_the_order_written_down(
    device: StepDevice, storage: Storage, depth: int
) -> None:
    if "fma" not in native_build.cpu_flags() or not isinstance(device, CpuDevice):
        pytest.skip("fused products, of the native core")
    if ("instruction_set", "portable") in device.identity:
        pytest.skip("fused products, which the portable core does not have")
    rng = np.random.default_rng(9)
    x, weight = (
        rounded(
            (rng.uniform(1, 2, shape) * rng.choice([-1, 1], shape)).astype(np.float32), Storage.BF16
        ).astype(np.float32)
        for shape in ((37, depth), (50, depth))
    )
    out = np.empty((37, 50), np.float32)
    packed, want = device.pack(weight, storage), fused_in_order(x, weight, storage)
    device.linear(x, packed, out)
    np.testing.assert_array_equal(bits(out), bits(want))
    before = out[::-1].copy()
    np.copyto(out, before)
    device.linear(x, packed, out, add=True)  # one rounding more, whatever the depth
    np.testing.assert_array_equal(bits(out), bits(before + want))


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(1, 70),
    start=st.integers(0, 40),
    outputs=st.sampled_from([16, 40, 96, 200]),
    depth=st.sampled_from([5, 64, 700, 1700]),
    storage=st.sampled_from(list(Storage)),
    add=st.booleans(),
)
def test_a_rows_product_has_the_same_bits_at_any_number_of_rows_and_threads(
    count: int, start: int, outputs: int, depth: int, storage: Storage, add: bool
) -> None:
    one, two = CpuDevice(1), CpuDevice(2)
    x, before = rows(5, 111, depth), rows(6, 111, outputs)
    packed = one.pack(rows(4, outputs, depth), storage)
    everything = before.copy()
    one.linear(x, packed, everything, add=add)
    for device in (one, two):
        part = before[start : start + count].copy()
        device.linear(x[start : start + count], packed, part, add=add)
        np.testing.assert_array_equal(bits(part), bits(everything[start : start + count]))


def test_linear_reads_rows_that_lie_apart(device: StepDevice) -> None:
    wide = rows(0, 9, 200)
    packed = device.pack(rows(1, 24, 64), Storage.F32)
    apart, together = np.empty((9, 24), np.float32), np.empty((9, 24), np.float32)
    device.linear(wide[:, 70:134], packed, apart)
    device.linear(np.ascontiguousarray(wide[:, 70:134]), packed, together)
    np.testing.assert_array_equal(bits(apart), bits(together))


@pytest.mark.parametrize("storage", list(Storage))
def test_fast_products_are_torchs_where_asked_and_the_cores_elsewhere(storage: Storage) -> None:
    exact, fast = CpuDevice(1), FastCpuDevice(1, by_torch=frozenset((storage,)))
    weight, x = rows(0, 48, 40), rows(1, 100, 40)
    want = rounded(x, storage if storage is Storage.BF16 else Storage.F32) @ (
        rounded(weight, storage).T
    )
    scale = np.abs(x).astype(np.float64) @ np.abs(weight).T.astype(np.float64) + 1.0
    packed = fast.pack(weight, storage)
    out = np.empty((100, 48), np.float32)
    fast.linear(x, packed, out)
    # Torch may round rows or sums to the weights' type.
    tolerance = {Storage.F32: 4e-6, Storage.F16: 4e-6, Storage.BF16: 1e-2}[storage]
    assert (np.abs(out - want) / scale).max() < tolerance
    few, same = np.empty((5, 48), np.float32), np.empty((5, 48), np.float32)
    fast.linear(x[:5], packed, few)
    exact.linear(x[:5], exact.pack(weight, storage), same)
    np.testing.assert_array_equal(bits(few), bits(same))


def test_fast_identity_says_what_torch_multiplies() -> None:
    none, some = (FastCpuDevice(1, by_torch=one) for one in (frozenset(), frozenset(Storage)))
    assert none.identity != some.identity
    assert torch_is_faster(native_build.PORTABLE) == frozenset(Storage)


@pytest.mark.parametrize("storage", list(Storage))
def test_rows_of_a_packed_weight_are_the_weight_as_stored(
    device: StepDevice, storage: Storage
) -> None:
    weight = rows(0, 37, 20)
    packed = device.pack(weight, storage)
    some = np.array([36, 0, 16, 15, 0], np.int32)
    np.testing.assert_array_equal(
        device.rows_of(packed, some), rounded(weight, storage)[some].astype(np.float32)
    )


@pytest.mark.parametrize(("groups", "width"), [(1, 576), (9, 64), (3, 5), (1, 1)])
def test_rms_norm_equals_float64_and_ignores_neighbours(
    device: StepDevice, groups: int, width: int
) -> None:
    x, weight = rows(0, 21, groups * width) * 30, rows(1, width)
    out = np.empty_like(x)
    device.rms_norm(x, groups, weight, 1.0, 1e-5, out)
    want = rms_norm(x.reshape(21, groups, width).astype(np.float64), weight + 1.0, 1e-5)
    np.testing.assert_allclose(out.reshape(want.shape), want, rtol=2e-6, atol=1e-6)
    for row in range(21):
        alone = np.empty((1, groups * width), np.float32)
        device.rms_norm(x[row : row + 1], groups, weight, 1.0, 1e-5, alone)
        np.testing.assert_array_equal(bits(alone[0]), bits(out[row]))
    device.rms_norm(x, groups, weight, 1.0, 1e-5, x)
    np.testing.assert_array_equal(bits(x), bits(out))


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("offset", "half"), [(0, 32), (16, 8), (0, 5)])
def test_rope_rotates_each_pair_by_its_angle(
    device: StepDevice, interleaved: bool, offset: int, half: int
) -> None:
    heads, width = 3, 64
    x = rows(0, 18, heads * width)
    positions = np.random.default_rng(1).integers(0, 50, 18).astype(np.int32)
    angles = np.random.default_rng(2).uniform(0, 6, (50, half))
    tables = (np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32))
    want = x.reshape(18, heads, width).astype(np.complex128)
    part = want[:, :, offset : offset + 2 * half]
    pair = (
        part[..., 0::2] + 1j * part[..., 1::2]
        if interleaved
        else part[..., :half] + 1j * part[..., half:]
    )
    turned = pair * np.exp(1j * angles[positions])[:, None, :]
    want[:, :, offset : offset + 2 * half] = np.concatenate([turned.real, turned.imag], axis=2)
    device.rope(x, heads, width, offset, positions, tables, interleaved)
    np.testing.assert_allclose(x.reshape(want.shape), want.real, atol=2e-6)


@pytest.mark.parametrize("kind", list(Activation))
@pytest.mark.parametrize("width", [1, 8, 37])
def test_gated_activations_equal_float64(device: StepDevice, kind: Activation, width: int) -> None:
    x = np.concatenate([rows(0, 5, 2 * width) * 4, np.full((1, 2 * width), -200, np.float32)])
    x = np.concatenate([x, np.full((1, 2 * width), 200, np.float32), np.zeros((1, 2 * width))])
    x = x.astype(np.float32)
    out = np.empty((len(x), width), np.float32)
    device.gated(x, kind, out)
    gate, up = x[:, :width].astype(np.float64), x[:, width:].astype(np.float64)
    if kind is Activation.SILU:
        active = gate / (1.0 + np.exp(-gate))
    else:
        inner = np.sqrt(2.0 / np.pi) * (gate + 0.044715 * gate**3)
        active = 0.5 * gate * (1.0 + np.tanh(inner))
    np.testing.assert_allclose(out, active * up, rtol=4e-6, atol=3e-5)


def test_inputs_of_another_shape_are_refused_before_anything_runs(device: StepDevice) -> None:
    packed = device.pack(rows(0, 8, 4), Storage.F32)
    out = np.zeros((2, 8), np.float32)
    for x in (rows(1, 2, 5), rows(1, 2, 4).astype(np.float64), rows(1, 2, 8)[:, ::2]):
        with pytest.raises(KernelInputError, match="x must be fp32"):
            device.linear(x, packed, out)
    assert (out == 0).all()
    with pytest.raises(KernelInputError, match="rows must lie in"):
        device.rows_of(packed, np.array([8], np.int32))
    tables = (rows(0, 4, 2), rows(0, 4, 2))
    with pytest.raises(KernelInputError, match="positions must lie in"):
        device.rope(rows(1, 1, 4), 1, 4, 0, np.array([4], np.int32), tables)
