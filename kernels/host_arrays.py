"""The arrays of a step where the device's memory is the host's: plain numpy."""

from __future__ import annotations

import numpy as np

from .abi import Floats, Int32s


class HostArrays:
    """The part of ``RowMath`` that makes, picks and hands back arrays, for devices on the host."""

    def empty(self, rows: int, width: int) -> Floats:
        return np.empty((rows, width), np.float32)

    def take(self, x: Floats, rows: Int32s) -> Floats:
        return np.ascontiguousarray(x[rows])

    def soft_cap(self, x: Floats, cap: float) -> None:
        np.tanh(x / np.float32(cap), out=x)
        x *= np.float32(cap)

    def fetch(self, x: Floats) -> Floats:
        return x
