"""The CPU device in fast mode: products by torch, whose bits depend on the batch.

Everything but the products is the native core's. Not exact: a row's result may change in its last
bits with the rows beside it, so state made here carries an identity of its own and is never
exchanged with the exact mode's.
"""

from __future__ import annotations

import numpy as np
import torch

from .abi import Floats, Int32s, Storage
from .checks import check_indices, check_rows, check_weight
from .cpu import CpuDevice
from .device import PackedLinear
from .native_build import Target

_TYPES = {Storage.F32: torch.float32, Storage.F16: torch.float16, Storage.BF16: torch.bfloat16}


class FastCpuDevice(CpuDevice):
    """Puts torch on ``threads`` threads for the whole process."""

    def __init__(self, threads: int = 1, target: Target | None = None) -> None:
        super().__init__(threads, target)
        torch.set_num_threads(threads)

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        return (
            *super().identity,
            ("torch", torch.__version__),
            ("torch_instruction_set", torch.backends.cpu.get_cpu_capability()),
        )

    def pack(self, weight: Floats, storage: Storage, bias: Floats | None = None) -> PackedLinear:
        check_weight(weight, bias)
        outputs, depth = weight.shape
        stored = torch.from_numpy(np.ascontiguousarray(weight)).to(_TYPES[storage])
        data = stored.view(torch.uint16) if storage is Storage.BF16 else stored
        return PackedLinear(outputs, depth, storage, data.numpy(), bias)

    def linear(self, x: Floats, weight: PackedLinear, out: Floats, add: bool = False) -> None:
        check_rows("x", x, len(x), weight.depth)
        check_rows("out", out, len(x), weight.outputs)
        matrix = torch.from_numpy(weight.data)
        if weight.storage is Storage.BF16:
            matrix = matrix.view(torch.bfloat16)
        rows = torch.from_numpy(x).to(matrix.dtype)
        product = torch.nn.functional.linear(rows, matrix).float().numpy()
        if weight.bias is not None:
            product += weight.bias
        if add:
            out += product
        else:
            out[:] = product

    def rows_of(self, weight: PackedLinear, rows: Int32s) -> Floats:
        check_indices("rows", rows, weight.outputs)
        data = weight.data[rows]
        if weight.storage is Storage.BF16:
            return (data.astype(np.uint32) << 16).view(np.float32)
        return data.astype(np.float32)
