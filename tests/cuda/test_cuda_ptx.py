"""The compiler's own PTX of the kernels, run on the host."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pytest
from coded_device import CodedDevice
from paged_cases import REFERENCE_TOLERANCE, Paged, bits, check, matrix, run

from pagetrail.kernels.abi import SlabSpec, Storage
from pagetrail.kernels.compiler import COMPILERS
from pagetrail.kernels.cuda.codes import Code, CodedSlab
from pagetrail.kernels.emulator.device import EmulatedDevice
from pagetrail.kernels.emulator.library import HostLauncher
from pagetrail.kernels.ptx.build import ARCHITECTURES, build_ptx_module
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


def of_ptx(architecture: str, *, reference: bool = False) -> EmulatedDevice:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda-test extra")
    build = partial(build_ptx_module, architecture=architecture)
    return EmulatedDevice(HostLauncher(0, build), reference=reference)


@pytest.fixture(scope="module", params=ARCHITECTURES)
def device(request: pytest.FixtureRequest) -> EmulatedDevice:
    return of_ptx(request.param)


@pytest.fixture(scope="module")
def sources() -> EmulatedDevice:
    return EmulatedDevice(HostLauncher())


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
def test_append_and_copies_give_the_bits_of_the_sources(
    device: EmulatedDevice, sources: EmulatedDevice
) -> None:
    rows = np.random.default_rng(0).standard_normal((5, 192)).astype(np.float32) * 1e3
    slots = np.array([9, -1, 0, 31, 12], np.int64)
    for storage in (Storage.F32, Storage.F16, Storage.BF16):
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
def test_codes_and_scales_are_the_bits_of_the_sources(
    device: EmulatedDevice, sources: EmulatedDevice
) -> None:
    rows = np.random.default_rng(1).standard_normal((4, 3 * 36)).astype(np.float32) * 1e3
    rows[3, 2] = np.nan
    slots = np.array([9, -1, 0, 31], np.int64)
    for code, width in product(Code, (36, 35)):
        results = []
        for where in (device, sources):
            pool = where.allocate_coded(CodedSlab("k", 1, 3, width, code), 4, 8)
            where.append_together([pool], 0, [np.ascontiguousarray(rows[:, : 3 * width])], slots)
            written = pool.scales.reshape(32, 3)[slots[[0, 2, 3]]]
            results.append((pool.codes.tobytes(), np.nan_to_num(written, nan=-1.0).tobytes()))
        assert results[0] == results[1]


@nvrtc
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_reference_kernel_agrees_with_float64(architecture: str) -> None:
    plain = of_ptx(architecture, reference=True)
    case = Paged(((1, 70), (3, 33)), window=40)
    check(case, plain, REFERENCE_TOLERANCE)
    for code in Code:
        check(replace(case, storage=Storage.F32), CodedDevice(plain, code), REFERENCE_TOLERANCE)


@nvrtc
@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "width"), zip(ARCHITECTURES, (64, 128), strict=True))
def test_the_pairwise_matrix_agrees_with_float64(architecture: str, width: int) -> None:
    device = of_ptx(architecture)
    for case in matrix((width,), ("0", "1", "ps-1", "ps", "ps+1", "129")):
        check(case, device)


WIDTHS = Paged(((1, 300), (20, 37)), rows_per_item=32)


@nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("width", [96, 192, 256])
def test_other_widths_give_the_bits_of_the_sources(
    device: EmulatedDevice, sources: EmulatedDevice, width: int
) -> None:
    for storage in (Storage.F16, Storage.BF16):
        case = replace(WIDTHS, width=width, storage=storage)
        assert bits(run(case, device)) == bits(run(case, sources))


@nvrtc
@pytest.mark.slow
@pytest.mark.parametrize("width", [64, 128, 192, 256])
@pytest.mark.parametrize("code", list(Code))
def test_coded_pages_give_the_bits_of_the_sources(
    device: EmulatedDevice, sources: EmulatedDevice, code: Code, width: int
) -> None:
    case = replace(WIDTHS, width=width)
    got = run(case, CodedDevice(device, code))
    assert bits(got) == bits(run(case, CodedDevice(sources, code)))


@nvrtc
@pytest.mark.slow
@pytest.mark.parametrize(("latent", "rotary"), [(64, 16), (512, 64)])
def test_mla_gives_the_bits_of_the_sources(
    device: EmulatedDevice, sources: EmulatedDevice, latent: int, rotary: int
) -> None:
    case = Paged(((1, 300), (3, 70)), kv_heads=1, group=16, width=latent, rotary=rotary)
    for one in (case, replace(case, split=True, rows_per_item=1)):
        assert bits(run(one, device)) == bits(run(one, sources))
    for code in Code:
        got = run(case, CodedDevice(device, code))
        assert bits(got) == bits(run(case, CodedDevice(sources, code)))
