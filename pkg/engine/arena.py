"""The device side of the pages: pools allocated once, and the bytes of a range in and out.

Owns memory, never decides who holds a page: page ids come from the page owner. The canonical
order of a part's bytes is (slab, layer, token row), so they depend neither on the page size nor on
which pages hold the rows, and the content id of what is captured equals that of what is restored.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pagetrail.catalog.errors import BadInputError
from pagetrail.kernels.abi import Int32s
from pagetrail.kernels.device import Device, PagePool

from .descriptor import PageGroup


class Arena:
    """Pools of every page group. Raises MemoryError at construction when they do not fit."""

    def __init__(
        self, device: Device, groups: Sequence[PageGroup], pages: Sequence[int], page_tokens: int
    ) -> None:
        if len(pages) != len(groups):
            raise BadInputError(
                f"the model has {len(groups)} page groups, {len(pages)} pool sizes were given"
            )
        self._device = device
        self.groups = tuple(groups)
        self.page_tokens = page_tokens
        self.pages = tuple(pages)
        self.pools: tuple[tuple[PagePool, ...], ...] = tuple(
            tuple(device.allocate(slab, count, page_tokens) for slab in group.slabs)
            for group, count in zip(groups, pages, strict=True)
        )

    def copy_page(self, group: int, source: int, target: int) -> None:
        """Copy a whole page over all slabs and layers (copy-on-write)."""
        for pool in self._group(group):
            self._device.page_copy(pool, source, target)

    def row_bytes(self, group: int) -> int:
        """Bytes of one token row over all slabs and layers of a group."""
        return sum(pool.spec.layers * pool.spec.row_bytes for pool in self._group(group))

    def capture(self, group: int, page_ids: Int32s, start: int, end: int) -> bytes:
        """The bytes of rows ``[start, end)`` of a page table (its entry 0 holds row 0)."""
        parts = [self._device.gather(pool, page_ids, start, end) for pool in self._group(group)]
        return b"".join(part.tobytes() for part in parts)

    def restore(
        self, group: int, page_ids: Int32s, start: int, end: int, payload: bytes | memoryview
    ) -> None:
        """Write a captured range back. Raises BadInputError, writing nothing, on another length."""
        need = (end - start) * self.row_bytes(group)
        view: npt.NDArray[np.uint8] = np.frombuffer(payload, np.uint8)
        if len(view) != need:
            raise BadInputError(
                f"rows [{start}, {end}) of group {group} are {need} bytes, {len(view)} were given"
            )
        at = 0
        for pool in self._group(group):
            size = pool.spec.layers * (end - start) * pool.spec.row_bytes
            self._device.scatter(pool, page_ids, start, end, view[at : at + size])
            at += size

    def cut(self, group: int, payload: bytes, rows: int, first: int, last: int) -> bytes:
        """Rows ``[first, last)`` of a captured range of ``rows`` rows, in canonical order too."""
        if not 0 <= first <= last <= rows or len(payload) != rows * self.row_bytes(group):
            raise BadInputError(
                f"cannot cut rows [{first}, {last}) out of {len(payload)} bytes of {rows} rows"
            )
        if (first, last) == (0, rows):
            return payload
        view: npt.NDArray[np.uint8] = np.frombuffer(payload, np.uint8)
        parts, at = [], 0
        for pool in self._group(group):
            size = pool.spec.layers * rows * pool.spec.row_bytes
            block = view[at : at + size].reshape(pool.spec.layers, rows, pool.spec.row_bytes)
            parts.append(block[:, first:last].tobytes())
            at += size
        return b"".join(parts)

    def poison(self, group: int, page_ids: Int32s) -> None:
        """Fill released pages with NaN."""
        for pool in self._group(group):
            self._device.poison(pool, page_ids)

    def _group(self, group: int) -> tuple[PagePool, ...]:
        if not 0 <= group < len(self.pools):
            raise BadInputError(f"the model has {len(self.pools)} page groups, not group {group}")
        return self.pools[group]
