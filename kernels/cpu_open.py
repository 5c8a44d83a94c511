"""Which CPU device this machine gets: the native core, or the torch path with a notice."""

from __future__ import annotations

from typing import NamedTuple

from .compiler import CompilerError
from .cpu import CpuDevice
from .device import StepDevice


class OpenedCpu(NamedTuple):
    """A device, and what the operator should know when it is not the one they would want."""

    device: StepDevice
    notice: str | None


def open_cpu(threads: int, *, fast: bool = False) -> OpenedCpu:
    """The native core with ``threads`` threads; where it cannot be built, torch on one thread.

    ``fast`` gives the device whose products are torch's and depend on the batch.
    """
    try:
        if fast:
            from .cpu_fast import FastCpuDevice

            return OpenedCpu(FastCpuDevice(threads), None)
        return OpenedCpu(CpuDevice(threads), None)
    except CompilerError as error:
        from .cpu_torch import TorchCpuDevice  # torch takes a second to import; only when needed

        notice = f"the native core is not available, the slower torch path serves: {error}"
        return OpenedCpu(TorchCpuDevice(), notice)
