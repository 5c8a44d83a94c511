"""What a launch is: a kernel of a source module, its grid, and its arguments as typed scalars.

A launch is a value. It holds addresses, not arrays: whoever builds it keeps the memory alive until
the launch has run. Argument types are numpy scalars, whose bytes are the kernel's parameters.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from ..abi import KernelInputError

GRID_X_MAX = 2**31 - 1
GRID_YZ_MAX = 65_535
THREADS_MAX = 1_024


@dataclass(frozen=True, slots=True)
class SourceModule:
    """One translation unit: a ``.cu`` file of this folder and the macros it is built with."""

    file: str
    defines: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        """A readable name that tells modules apart: ``gqa_mma-HEAD_DIM128``."""
        return "-".join([Path(self.file).stem, *(f"{key}{value}" for key, value in self.defines)])


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch. ``arguments`` are in the order of the kernel's parameters."""

    module: SourceModule
    kernel: str
    grid: tuple[int, int, int]
    threads: int
    shared_bytes: int
    arguments: tuple[np.generic, ...]

    def __post_init__(self) -> None:
        x, y, z = self.grid
        if not (0 < x <= GRID_X_MAX and 0 < y <= GRID_YZ_MAX and 0 < z <= GRID_YZ_MAX):
            raise KernelInputError(
                f"grid {self.grid} of {self.kernel} must lie in [1, {GRID_X_MAX}] x "
                f"[1, {GRID_YZ_MAX}]^2; a step without work launches nothing"
            )
        if not 0 < self.threads <= THREADS_MAX:
            raise KernelInputError(f"{self.threads} threads a block for {self.kernel}")


class Launcher(Protocol):
    """Something that runs launches in the order it is given them."""

    def launch(self, what: Launch) -> None: ...


def source_folder() -> Path:
    """Where the sources lie."""
    return Path(__file__).resolve().parent


def source_files() -> Iterator[Path]:
    """Every source and header of the kernels, in the order of their names."""
    return iter(sorted(p for p in source_folder().iterdir() if p.suffix in (".cu", ".cuh")))


def source_digest() -> str:
    """A digest of all kernel sources."""
    digest = hashlib.sha256()
    for path in source_files():
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def address(pointer: int) -> np.uint64:
    """A device address as a kernel parameter; 0 is null."""
    return np.uint64(pointer)
