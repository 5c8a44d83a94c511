"""Devices under test. Torch's idle threads must not spin beside other work."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from collections.abc import Callable
from functools import cache, partial

import pytest

from pagetrail.kernels import native_build
from pagetrail.kernels.cpu import CpuDevice
from pagetrail.kernels.cpu_torch import TorchCpuDevice
from pagetrail.kernels.device import StepDevice

MAKERS: dict[str, Callable[[], StepDevice]] = {
    "native": lambda: CpuDevice(1),
    "native-2-threads": lambda: CpuDevice(2),
    "torch": TorchCpuDevice,
    **{target.name: partial(CpuDevice, 1, target) for target in native_build.TARGETS},
}
made = cache(lambda name: MAKERS[name]())


@pytest.fixture(
    params=[
        "native",
        "native-2-threads",
        "torch",
        # Each a build of the core of its own.
        *(pytest.param(target.name, marks=pytest.mark.slow) for target in native_build.TARGETS),
    ]
)
def device(request: pytest.FixtureRequest) -> StepDevice:
    """Each CPU device in turn."""
    target = next((one for one in native_build.TARGETS if one.name == request.param), None)
    if target is not None and not native_build.cpu_flags() >= target.needs:
        pytest.skip(f"this processor does not run {target.name}")
    return made(request.param)
