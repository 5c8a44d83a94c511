"""The CPU device in fast mode: products of many rows by torch where torch multiplies faster.

That is where it has instructions that the native core lacks: its own for matrices of bf16, and any
vectors on a processor for which the core is built portably. Everything else is the native core's:
products of few rows, which wait for memory and not for arithmetic, and attention. Not exact: a
row's result may change in its last bits with the number of rows beside it, so state made here
carries an identity of its own and is never exchanged with the exact mode's. Weights that torch
multiplies are held twice, in panels and in rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from .abi import Floats, KernelInputError, Storage
from .checks import check_rows
from .cpu import CpuDevice
from .device import PackedLinear
from .native_build import PORTABLE, Target, cpu_flags

MANY_ROWS = 33  # fewer are faster through panels
BF16_FLAGS = frozenset(("avx512_bf16", "amx_bf16"))


def torch_is_faster(target: Target) -> frozenset[Storage]:
    """Weights whose products of many rows torch does faster than the core built for ``target``."""
    if target == PORTABLE:
        return frozenset(Storage)
    return frozenset((Storage.BF16,)) if "amx_bf16" in cpu_flags() else frozenset()


_TYPES = {Storage.F32: torch.float32, Storage.F16: torch.float16, Storage.BF16: torch.bfloat16}


@dataclass(frozen=True, slots=True, eq=False)
class FastLinear(PackedLinear):
    """Panels, and the same weights as rows for torch."""

    rows: torch.Tensor | None = None  # [outputs, depth]


class FastCpuDevice(CpuDevice):
    """Puts torch on ``threads`` threads for the whole process.

    ``by_torch``: the storages whose products of many rows are torch's; where torch is faster when
    not given.
    """

    def __init__(
        self,
        threads: int = 1,
        target: Target | None = None,
        by_torch: frozenset[Storage] | None = None,
    ) -> None:
        super().__init__(threads, target)
        torch.set_num_threads(threads)
        self._by_torch = torch_is_faster(self._target) if by_torch is None else by_torch
        # Without instructions for it torch multiplies halves eight times slower than fp32.
        self._half = bool(cpu_flags() & BF16_FLAGS)

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        return (
            *super().identity,
            ("torch", torch.__version__),
            ("torch_instruction_set", torch.backends.cpu.get_cpu_capability()),
            ("torch_half_products", str(self._half)),
            ("torch_products", " ".join(sorted(one.name for one in self._by_torch))),
        )

    def pack(self, weight: Floats, storage: Storage, bias: Floats | None = None) -> PackedLinear:
        packed = super().pack(weight, storage, bias)
        if storage not in self._by_torch:
            return packed
        rows = torch.from_numpy(np.ascontiguousarray(weight)).to(_TYPES[storage])
        return FastLinear(
            packed.outputs, packed.depth, packed.storage, packed.data, packed.bias, rows
        )

    def linear(self, x: Floats, weight: PackedLinear, out: Floats, add: bool = False) -> None:
        if len(x) < MANY_ROWS or not isinstance(weight, FastLinear) or weight.rows is None:
            super().linear(x, weight, out, add)
            return
        check_rows("x", x, len(x), weight.depth)
        check_rows("out", out, len(x), weight.outputs)
        if self.recording:
            raise KernelInputError(f"a product of {len(x)} rows by torch cannot be recorded")
        matrix = (
            weight.rows if self._half and weight.storage is Storage.BF16 else weight.rows.float()
        )
        rows = torch.from_numpy(x).to(matrix.dtype)
        product = torch.nn.functional.linear(rows, matrix).float().numpy()
        if weight.bias is not None:
            product += weight.bias
        if add:
            out += product
        else:
            out[:] = product
