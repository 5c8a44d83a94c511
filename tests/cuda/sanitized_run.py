"""Runs a small decode and verify step over fp16 and over e4m3 pages from sanitized kernels.

Started by the sanitizer tests.

Arguments: the sanitizer, a folder of kernel sources, bytes of shared memory to hold back.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from coded_device import CodedDevice
from paged_cases import TOLERANCE, Paged, fill, relative_error

from pagetrail.kernels.abi import Storage
from pagetrail.kernels.cuda.codes import Code
from pagetrail.kernels.cuda.launch import Launch
from pagetrail.kernels.emulator.build import Sanitizer, build_module
from pagetrail.kernels.emulator.device import EmulatedDevice
from pagetrail.kernels.emulator.library import HostLauncher


class ShortShared:
    """Passes launches on with less shared memory than they ask for."""

    def __init__(self, launcher: HostLauncher, short_bytes: int) -> None:
        self._launcher = launcher
        self._short_bytes = short_bytes

    def launch(self, what: Launch) -> None:
        shared = max(0, what.shared_bytes - self._short_bytes)
        self._launcher.launch(replace(what, shared_bytes=shared))


def main(sanitizer: str, kernels: str, short_bytes: str) -> None:
    build = partial(build_module, kernels=Path(kernels), sanitizer=Sanitizer(sanitizer))
    device = EmulatedDevice(ShortShared(HostLauncher(0, build), int(short_bytes)))
    errors = []
    for where in (device, CodedDevice(device, Code.E4M3)):
        filled = fill(Paged(((1, 130), (2, 20)), kv_heads=1, group=3), where)
        (out, _), (want, _) = filled.run(), filled.oracle()
        errors.append(relative_error(out, want))
    print("agrees" if max(errors) < TOLERANCE[Storage.F16] else "differs")


main(*sys.argv[1:])
