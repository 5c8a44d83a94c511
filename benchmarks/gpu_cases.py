"""What the card's benchmark measures: decode cases, their pools, and the numbers in them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from pagetrail.kernels.abi import SlabSpec, Storage
from pagetrail.kernels.cuda.codes import AnyPool, Code, CodedSlab
from pagetrail.kernels.cuda_device import CudaDevice
from pagetrail.kernels.device import PagePool


@dataclass(frozen=True, slots=True)
class Case:
    """Decode of ``batch`` sequences of ``tokens``; ``goal_ppm`` is the first goal's fraction."""

    name: str
    batch: int
    tokens: int
    goal_ppm: int
    kv_heads: int = 8
    group: int = 4
    width: int = 128
    rotary: int = 0
    window: int = 0
    page_tokens: int = 16
    storage: Storage | Code = Storage.F16

    @property
    def q_heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def row_bytes(self) -> int:
        """Bytes of one token that a decode step reads."""
        elements = self.width + self.rotary if self.rotary else 2 * self.width
        if isinstance(self.storage, Code):
            return self.kv_heads * (elements + 2 * 4)
        return self.kv_heads * elements * self.storage.element_bytes

    @property
    def read_bytes(self) -> int:
        seen = min(self.tokens, self.window) if self.window else self.tokens
        return self.batch * seen * self.row_bytes


CASES = (
    Case("gqa 32/8 d128, 32 x 4k", 32, 4_096, 700_000),
    Case("gqa 32/8 d128, 128 x 4k", 128, 4_096, 700_000),
    Case("gqa 32/8 d128, 32 x 32k", 32, 32_768, 700_000),
    Case("gqa 32/8 d128, 8 x 4k", 8, 4_096, 450_000),
    Case("gqa 32/8 d128, 1 x 32k", 1, 32_768, 300_000),
    Case("gqa 32/8 d128 bf16, 32 x 4k", 32, 4_096, 700_000, storage=Storage.BF16),
    Case("gqa 32/8 d128 e4m3, 32 x 4k", 32, 4_096, 700_000, storage=Code.E4M3),
    Case("gqa 32/8 d128 i8, 32 x 4k", 32, 4_096, 700_000, storage=Code.I8),
    Case("window 4k, 64 x 8k", 64, 8_192, 500_000, window=4_096),
    Case("window 1k, 64 x 8k", 64, 8_192, 500_000, window=1_024),
    Case("mla 16 heads, 64 x 8k", 64, 8_192, 550_000, 1, 16, 512, 64),
)


def shrunk(case: Case) -> Case:
    """A rehearsal's size of a case: the same shapes of kernels, little work."""
    return replace(
        case,
        batch=min(case.batch, 2),
        tokens=min(case.tokens, 300),
        window=min(case.window, 100),
        kv_heads=min(case.kv_heads, 2),
        width=64,
        rotary=min(case.rotary, 16),
    )


def filled_pool(device: CudaDevice, torch: Any, case: Case, width: int, pages: int) -> AnyPool:
    """A pool of random numbers, about normal."""
    if isinstance(case.storage, Storage):
        slab = SlabSpec(f"slab of {width}", 1, case.kv_heads, width, case.storage)
        pool = device.allocate(slab, pages, case.page_tokens)
        pool.array.normal_()  # type: ignore[attr-defined]
        return pool
    coded = device.allocate_coded(
        CodedSlab(f"slab of {width}", 1, case.kv_heads, width, case.storage),
        pages,
        case.page_tokens,
    )
    codes: Any = coded.codes
    # e4m3 up to 0x3f is below 2; its top bit and the bytes of I8 give both signs.
    codes.random_(0, 0x40 if case.storage is Code.E4M3 else 0x100)
    if case.storage is Code.E4M3:
        codes.bitwise_or_(torch.randint_like(codes, 2) << 7)
    coded.scales.fill_(1.0 if case.storage is Code.E4M3 else 1.0 / 64)  # the latter near 2 as well
    return coded


def numbers(torch: Any, pool: AnyPool) -> np.ndarray[Any, Any]:
    """The pool's numbers in float64, one layer."""
    if isinstance(pool, PagePool):
        stored: Any = pool.array
        return stored.float().cpu().numpy()[0].astype(np.float64)
    codes: Any = pool.codes
    kind = torch.float8_e4m3fn if pool.slab.code is Code.E4M3 else torch.int8
    values = codes.view(kind).float() * cast(Any, pool.scales)[..., None]
    return values.cpu().numpy()[0].astype(np.float64)
