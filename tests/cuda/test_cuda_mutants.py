"""Mistakes planted in the kernels are caught by the emulator, the PTX run or a sanitizer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from coded_device import CodedDevice
from mutants import (
    ALL,
    MISSING_BARRIER,
    OF_CODED_PAGES,
    OVERFLOWS,
    SWAPPED_ASSEMBLY,
    Mutant,
    plant,
)
from paged_cases import Paged, check, fill
from sparse_pools import far_equals_near

from pagetrail.kernels.abi import Storage
from pagetrail.kernels.compiler import COMPILERS
from pagetrail.kernels.cuda.codes import Code
from pagetrail.kernels.emulator.build import Sanitizer, build_module, sanitizer_library
from pagetrail.kernels.emulator.device import EmulatedDevice
from pagetrail.kernels.emulator.library import EmulatorError, HostLauncher

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not any(map(shutil.which, COMPILERS)), reason="the emulator needs a C++ compiler"
    ),
]

HERE = Path(__file__).resolve().parent
CASES = (
    Paged(((5, 300), (3, 100)), window=40, group=3),
    Paged(((1, 200),), kv_heads=1),
)


def emulated(kernels: Path, seed: int = 0, *, reference: bool = False) -> EmulatedDevice:
    launcher = HostLauncher(seed, partial(build_module, kernels=kernels))
    return EmulatedDevice(launcher, reference=reference)


def caught(kernels: Path, *, reference: bool = False, code: Code | None = None) -> bool:
    """Whether some case, in some order of execution, fails or differs from float64."""
    for seed in (0, 1, 2):
        inner = emulated(kernels, seed, reference=reference)
        device = inner if code is None else CodedDevice(inner, code)
        for case in CASES:
            try:
                check(case, device)
            except (AssertionError, EmulatorError):
                return True
    return False


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_planted_mistake_is_caught_by_the_emulator(mutant: Mutant, tmp_path: Path) -> None:
    assert caught(plant(mutant, tmp_path), reference=mutant.file == "gqa_ref.cu")


def test_the_sources_as_they_are_are_not_caught(tmp_path: Path) -> None:
    assert not caught(plant(None, tmp_path))
    assert not caught(plant(None, tmp_path), reference=True)
    assert not caught(plant(None, tmp_path), code=Code.E4M3)


@pytest.mark.parametrize("mutant", OF_CODED_PAGES, ids=lambda mutant: mutant.name)
def test_a_mistake_with_coded_pages_is_caught_by_the_emulator(
    mutant: Mutant, tmp_path: Path
) -> None:
    assert caught(plant(mutant, tmp_path), code=Code.E4M3)


@pytest.mark.parametrize("mutant", OVERFLOWS, ids=lambda mutant: mutant.name)
def test_an_int32_overflow_is_caught_by_the_emulator(mutant: Mutant, tmp_path: Path) -> None:
    kernels = plant(mutant, tmp_path)
    assert not far_equals_near(emulated(kernels))
    check(CASES[1], emulated(kernels))  # near pages do not show it


@pytest.mark.parametrize("mutant", OVERFLOWS, ids=lambda mutant: mutant.name)
def test_an_int32_overflow_is_caught_by_the_ptx_run(mutant: Mutant, tmp_path: Path) -> None:
    kernels = plant(mutant, tmp_path)
    assert not far_equals_near(of_ptx(kernels))


def test_a_divergent_shuffle_is_named_with_its_line(tmp_path: Path) -> None:
    mutant = next(m for m in ALL if m.file == "gqa_ref.cu")
    kernels = plant(mutant, tmp_path)
    launcher = HostLauncher(0, partial(build_module, kernels=kernels))
    with pytest.raises(EmulatorError, match=r"a lane left|different warp operations|deadlock"):
        fill(CASES[0], EmulatedDevice(launcher, reference=True)).run()


def of_ptx(kernels: Path) -> EmulatedDevice:
    pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda-test extra")
    from pagetrail.kernels.ptx.build import build_ptx_module

    return EmulatedDevice(HostLauncher(0, partial(build_ptx_module, kernels=kernels)))


def test_swapped_operands_of_an_instruction_are_caught_by_the_ptx_run(tmp_path: Path) -> None:
    kernels = plant(SWAPPED_ASSEMBLY, tmp_path)
    case = Paged(((1, 70),), storage=Storage.BF16, kv_heads=1)
    check(case, emulated(kernels))
    with pytest.raises(AssertionError):
        check(case, of_ptx(kernels))


def sanitized(sanitizer: Sanitizer, kernels: Path, short_bytes: int = 0) -> tuple[int, str]:
    """Exit status and output of a run whose kernels are built with a sanitizer."""
    environment = os.environ | {
        "LD_PRELOAD": str(sanitizer_library(sanitizer)),
        "ASAN_OPTIONS": "detect_leaks=0",
        "TSAN_OPTIONS": "exitcode=66",
        "OPENBLAS_NUM_THREADS": "1",
    }
    command = [sys.executable, str(HERE / "sanitized_run.py"), sanitizer.value, str(kernels)]
    if setarch := shutil.which("setarch"):
        command = [setarch, "-R", *command]  # the thread sanitizer wants addresses where it expects
    answer = subprocess.run(
        [*command, str(short_bytes)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
        env=environment,
    )
    return answer.returncode, answer.stdout + answer.stderr


@pytest.mark.parametrize("sanitizer", list(Sanitizer))
def test_a_sanitizer_finds_nothing_in_the_sources_as_they_are(
    sanitizer: Sanitizer, tmp_path: Path
) -> None:
    status, text = sanitized(sanitizer, plant(None, tmp_path))
    assert (status, text.strip().splitlines()[-1:]) == (0, ["agrees"]), text[-3000:]


def test_a_missing_barrier_is_named_by_the_thread_sanitizer(tmp_path: Path) -> None:
    status, text = sanitized(Sanitizer.THREAD, plant(MISSING_BARRIER, tmp_path))
    assert status == 66, text[-3000:]
    assert "data race" in text
    assert "paged_attention.cuh" in text


def test_short_shared_memory_is_named_by_the_address_sanitizer(tmp_path: Path) -> None:
    status, text = sanitized(Sanitizer.ADDRESS, plant(None, tmp_path), short_bytes=4)
    assert status != 0
    assert "heap-buffer-overflow" in text, text[-3000:]
    assert "paged_attention.cuh" in text


def test_short_shared_memory_is_caught_without_a_sanitizer() -> None:
    from dataclasses import replace as change

    from pagetrail.kernels.cuda.launch import Launch

    class Short:
        def __init__(self) -> None:
            self.launcher = HostLauncher()

        def launch(self, what: Launch) -> None:
            short = max(0, what.shared_bytes - 4)
            self.launcher.launch(change(what, shared_bytes=short))

    with pytest.raises(EmulatorError, match="past the end of dynamic shared memory"):
        fill(CASES[0], EmulatedDevice(Short())).run()
