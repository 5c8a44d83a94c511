"""Which launches copy whole pages, or token rows between pages and packed bytes.

Pure: addresses and sizes in bytes in, launches out. Knows no element type.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .launch import Launch, SourceModule, address
from .paged import GRID_BLOCKS_MAX, page_shift

COPY_THREADS = 256


@dataclass(frozen=True, slots=True)
class PageExtent:
    """A slab's pool in bytes, for copies that know no element type."""

    address: int
    layers: int
    layer_bytes: int
    page_bytes: int
    row_bytes: int
    page_tokens: int

    def rows_bytes(self, rows: int) -> int:
        """Bytes of that many token rows over all layers."""
        return self.layers * rows * self.row_bytes


def page_copy(extent: PageExtent, sources: int, targets: int, count: int) -> tuple[Launch, ...]:
    """Copies ``count`` pages over all layers; both lists are int32 on the device."""
    if count == 0:
        return ()
    arguments = (
        address(extent.address),
        address(sources),
        address(targets),
        np.int32(count),
        np.int32(extent.layers),
        np.int64(extent.layer_bytes),
        np.int64(extent.page_bytes),
    )
    return (_copy_launch("page_copy", count * extent.layers, arguments),)


def gather(
    extent: PageExtent, packed: int, page_ids: int, start: int, end: int
) -> tuple[Launch, ...]:
    """Token rows ``[start, end)`` of a page table, layer by layer, into packed bytes."""
    return _move("page_gather", extent, packed, page_ids, start, end)


def scatter(
    extent: PageExtent, packed: int, page_ids: int, start: int, end: int
) -> tuple[Launch, ...]:
    """The inverse of ``gather``."""
    return _move("page_scatter", extent, packed, page_ids, start, end)


def _move(
    kernel: str, extent: PageExtent, packed: int, page_ids: int, start: int, end: int
) -> tuple[Launch, ...]:
    if start == end:
        return ()
    arguments = (
        address(extent.address),
        address(packed),
        address(page_ids),
        np.int32(start),
        np.int32(end - start),
        np.int32(extent.layers),
        page_shift(extent.page_tokens),
        np.int64(extent.layer_bytes),
        np.int64(extent.page_bytes),
        np.int64(extent.row_bytes),
    )
    return (_copy_launch(kernel, (end - start) * extent.layers, arguments),)


def _copy_launch(kernel: str, units: int, arguments: tuple[np.generic, ...]) -> Launch:
    grid = (min(GRID_BLOCKS_MAX, units), 1, 1)
    return Launch(SourceModule("pages.cu"), kernel, grid, COPY_THREADS, 0, arguments)
