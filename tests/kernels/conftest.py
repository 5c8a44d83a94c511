"""Devices under test. Torch's idle threads must not spin beside other work."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from collections.abc import Callable
from functools import cache

import pytest

from pagetrail.kernels import native_build
from pagetrail.kernels.cpu import CpuDevice
from pagetrail.kernels.cpu_torch import TorchCpuDevice
from pagetrail.kernels.device import StepDevice

MAKERS: dict[str, Callable[[], StepDevice]] = {
    "native": lambda: CpuDevice(1),
    "native-2-threads": lambda: CpuDevice(2),
    "torch": TorchCpuDevice,
    "portable": lambda: CpuDevice(1, native_build.PORTABLE),
}
made = cache(lambda name: MAKERS[name]())


@pytest.fixture(
    params=[
        "native",
        "native-2-threads",
        "torch",
        pytest.param("portable", marks=pytest.mark.slow),  # a second build of the core
    ]
)
def device(request: pytest.FixtureRequest) -> StepDevice:
    """Each CPU device in turn."""
    return made(request.param)
