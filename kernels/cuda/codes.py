"""The eight-bit codes of quantised pools, and the slabs that hold them.

A reader of a pool gets ``code * scale``. Codes are ``uint8[layers, pages, page_tokens, heads,
width]`` (e4m3 patterns, or the bits of signed bytes), scales ``float32[layers, pages, page_tokens,
heads]``: one for each token row and head, both contiguous.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from ..abi import Floats, check_slab
from ..device import PagePool


class Code(IntEnum):
    """How a number becomes eight bits. The values go on where those of ``Storage`` end."""

    E4M3 = 3
    I8 = 4


@dataclass(frozen=True, slots=True)
class CodedSlab:
    """One kind of row that a token leaves in every layer, in eight bits an element."""

    name: str
    layers: int
    heads: int
    width: int  # elements per head
    code: Code

    def __post_init__(self) -> None:
        check_slab(self.name, self.layers, self.heads, self.width)

    @property
    def row_bytes(self) -> int:
        """Bytes of one token row's codes in one layer."""
        return self.heads * self.width

    @property
    def scale_row_bytes(self) -> int:
        """Bytes of one token row's scales in one layer."""
        return self.heads * 4


@dataclass(frozen=True, slots=True, eq=False)
class CodedPool:
    """One slab's pages on a device: codes, and a scale for each row and head."""

    slab: CodedSlab
    pages: int
    page_tokens: int
    codes: npt.NDArray[np.uint8]
    scales: Floats


AnyPool = PagePool | CodedPool
