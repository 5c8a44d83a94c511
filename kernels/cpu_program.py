"""Operations of the CPU device written down once and run again in one call.

The counterpart of a captured graph: everything an operation points at stays where it is, so a step
of the same shape is run by changing what the arrays hold. Owns the list and keeps the arrays alive;
decides nothing, and knows neither shapes nor capacities.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from . import native_core
from .abi import KernelInputError


class Launched(NamedTuple):
    """One operation, its arguments, and the arrays that these point into."""

    operation: Any  # of the native core
    arguments: ctypes.Structure
    arrays: tuple[npt.NDArray[Any], ...]


class CpuProgram:
    """Made by ``CpuDevice.record``. Bits are those of the operations run one by one."""

    def __init__(
        self, device: object, core: ctypes.CDLL, pool: int, launched: Sequence[Launched]
    ) -> None:
        self._device = device  # it owns the threads
        self._core, self._pool = core, pool
        self._launched = tuple(launched)
        self._list = (native_core.Launch * len(launched))(
            *(
                native_core.Launch(
                    ctypes.cast(one.operation, ctypes.c_void_p), ctypes.addressof(one.arguments)
                )
                for one in launched
            )
        )

    def __len__(self) -> int:
        return len(self._launched)

    def run(self) -> None:
        """Run all operations in order. Raises KernelInputError when a slot lies past its pool; what
        came before has been done."""
        if self._core.pt_run(self._pool, self._list, len(self._list)):
            raise KernelInputError("a slot lies past the pool; the rest of the step was not run")
