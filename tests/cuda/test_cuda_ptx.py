"""The compiler's own PTX of the kernels, run on the host."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from paged_cases import REFERENCE_TOLERANCE, Paged, bits, check, matrix, run

from pagetrail.kernels.abi import SlabSpec, Storage
from pagetrail.kernels.emulator.device import EmulatedDevice
from pagetrail.kernels.emulator.library import HostLauncher
from pagetrail.kernels.native_build import COMPILERS
from pagetrail.kernels.ptx.build import build_ptx_module
from pagetrail.kernels.ptx.parse import Instruction, Label, PtxError, parse, split_operands
from pagetrail.kernels.ptx.translate import translate

nvrtc = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="the PTX run needs a C++ compiler"
)

TEXT = """
.version 8.0
.visible .entry scale(
    .param .u64 scale_param_0
)
.maxntid 32, 1, 1
{
    .reg .pred %p<2>;
    .reg .b64 %rd<2>;
    ld.param.u64 %rd1, [scale_param_0];  // a comment
$L__BB0_1:
    @!%p1 bra $L__BB0_1;
    OPCODE
    ret;
}
"""


@pytest.fixture(scope="module")
def device() -> EmulatedDevice:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda-test extra")
    return EmulatedDevice(HostLauncher(0, build_ptx_module))


def test_an_entry_is_read_with_its_registers_labels_and_guards() -> None:
    (entry,) = parse(TEXT.replace("OPCODE", "add.s64 %rd1, %rd1, 8;")).entries
    assert entry.name == "scale"
    assert [parameter.symbol for parameter in entry.parameters] == ["scale_param_0"]
    assert Label("$L__BB0_1") in entry.body
    branch = next(s for s in entry.body if isinstance(s, Instruction) and s.opcode == ("bra",))
    assert (branch.guard, branch.unless, branch.operands) == ("%p1", True, ("$L__BB0_1",))


def test_operands_are_parted_outside_braces_and_brackets_only() -> None:
    assert split_operands("{%f1, %f2}, [%rd1+4], 0f3F800000") == (
        "{%f1, %f2}",
        "[%rd1+4]",
        "0f3F800000",
    )


@pytest.mark.parametrize(
    "instruction", ["frobnicate.s64 %rd1, %rd1;", "div.approx.f32 %rd1, %rd1, %rd1;", "bar.sync 3;"]
)
def test_an_instruction_that_is_not_translated_is_named_with_its_line(instruction: str) -> None:
    with pytest.raises(PtxError, match=r"line 13: .*not translated"):
        translate(parse(TEXT.replace("OPCODE", instruction)))


def test_a_register_that_is_not_declared_is_refused() -> None:
    with pytest.raises(PtxError, match="%rd7 is not declared"):
        translate(parse(TEXT.replace("OPCODE", "add.s64 %rd7, %rd1, 8;")))


@nvrtc
def test_append_and_copies_give_the_bits_of_the_sources(device: EmulatedDevice) -> None:
    sources = EmulatedDevice(HostLauncher())
    rows = np.random.default_rng(0).standard_normal((5, 192)).astype(np.float32) * 1e3
    slots = np.array([9, -1, 0, 31, 12], np.int64)
    for storage in Storage:
        results = []
        for where in (device, sources):
            pool = where.allocate(SlabSpec("k", 1, 3, 64, storage), 4, 8)
            where.append(pool, 0, rows, slots)
            where.page_copy(pool, 1, 2)
            packed = where.gather(pool, np.array([3, 0], np.int32), 5, 14)
            where.scatter(pool, np.array([2, 1], np.int32), 1, 10, packed)
            results.append(pool.array.tobytes())
        assert results[0] == results[1]


@nvrtc
def test_the_reference_kernel_agrees_with_float64(device: EmulatedDevice) -> None:
    del device
    plain = EmulatedDevice(HostLauncher(0, build_ptx_module), reference=True)
    check(Paged(((1, 70), (3, 33)), window=40), plain, REFERENCE_TOLERANCE)


@nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("width", [64, 128])
def test_the_pairwise_matrix_agrees_with_float64(device: EmulatedDevice, width: int) -> None:
    for case in matrix((width,), ("0", "1", "ps-1", "ps", "ps+1", "129")):
        check(case, device)


@nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("width", [96, 256])
def test_other_widths_give_the_bits_of_the_sources(device: EmulatedDevice, width: int) -> None:
    for storage in (Storage.F16, Storage.BF16):
        case = Paged(((1, 300), (20, 37)), width=width, storage=storage, rows_per_item=32)
        assert bits(run(case, device)) == bits(run(case, EmulatedDevice(HostLauncher())))


@nvrtc
@pytest.mark.slow
def test_mla_gives_the_bits_of_the_sources(device: EmulatedDevice) -> None:
    case = Paged(((1, 300), (9, 70)), kv_heads=1, group=16, rotary=16, split=True, rows_per_item=1)
    assert bits(run(case, device)) == bits(run(case, EmulatedDevice(HostLauncher())))
