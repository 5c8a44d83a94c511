"""Loads built kernel modules and runs launches on the host, block after block."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path

from ..cuda.launch import Launch, SourceModule
from .build import build_module

MESSAGE_BYTES = 2_048
SEED_MAX = 2**32 - 1


class EmulatorError(RuntimeError):
    """A kernel did what a device would not forgive. The message names block, threads and lines."""


class LaunchShape(ctypes.Structure):
    """``emulator::LaunchShape`` of launch.h."""

    _fields_ = (
        ("grid", c_uint32 * 3),
        ("block", c_uint32 * 3),
        ("shared_bytes", c_uint64),
        ("seed", c_uint32),
    )


class HostLauncher:
    """Runs launches as host code. ``build`` turns a module into a library; libraries are kept.

    With seed 0 blocks, warps and lanes run in plain order, else in an order the seed decides.
    """

    def __init__(self, seed: int = 0, build: Callable[[SourceModule], Path] = build_module) -> None:
        if not 0 <= seed <= SEED_MAX:
            raise ValueError(f"a seed lies in [0, {SEED_MAX}], not {seed}")
        self._seed = seed
        self._build = build
        self._libraries: dict[SourceModule, ctypes.CDLL] = {}

    def launch(self, what: Launch) -> None:
        """Run it to the end. Raises EmulatorError on a mistake of the kernel or the launch."""
        entry = getattr(self._library(what.module), f"{what.kernel}_launch")
        entry.restype = c_int
        entry.argtypes = (POINTER(LaunchShape), POINTER(c_void_p), c_char_p, c_size_t)
        values = [ctypes.create_string_buffer(a.tobytes(), a.nbytes) for a in what.arguments]
        pointers = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        shape = LaunchShape(what.grid, (what.threads, 1, 1), what.shared_bytes, self._seed)
        message = ctypes.create_string_buffer(MESSAGE_BYTES)
        if entry(ctypes.byref(shape), pointers, message, MESSAGE_BYTES):
            raise EmulatorError(f"{what.kernel}: {message.value.decode(errors='replace')}")

    def _library(self, module: SourceModule) -> ctypes.CDLL:
        if module not in self._libraries:
            self._libraries[module] = ctypes.CDLL(str(self._build(module)))
        return self._libraries[module]
