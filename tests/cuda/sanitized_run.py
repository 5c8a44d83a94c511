"""Runs a small decode and prefill step from sanitized kernels; started by the sanitizer tests.

Arguments: the sanitizer, a folder of kernel sources, bytes of shared memory to hold back.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

from paged_cases import TOLERANCE, Paged, fill, relative_error

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
    filled = fill(Paged(((1, 130), (2, 20)), kv_heads=1, group=3), device)
    (out, _), (want, _) = filled.run(), filled.oracle()
    print("agrees" if relative_error(out, want) < TOLERANCE[filled.case.storage] else "differs")


main(*sys.argv[1:])
