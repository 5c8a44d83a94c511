"""Token rows between pages on a card and the host, through a bounded pool of pinned memory.

Runs on the low-priority transfer stream. A transfer out waits for the compute that wrote what it
reads; compute that follows a transfer in waits for it on the card. Events say when a buffer is
free; nothing here waits for the card but ``gather`` and ``Transfer``'s own methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .abi import Int32s, KernelInputError
from .cuda import copies
from .cuda.copies import PageExtent
from .cuda.launch import Launch
from .cuda_runtime import CudaRuntime
from .cuda_staging import PinnedPool, Transfer

Bytes = npt.NDArray[np.uint8]


class PageTransfers:
    """See the module."""

    def __init__(self, runtime: CudaRuntime, pinned: PinnedPool) -> None:
        self._runtime, self._torch, self._pinned = runtime, runtime.torch, pinned

    def begin_gather(
        self, extent: PageExtent, page_ids: Int32s, start: int, end: int
    ) -> Transfer | None:
        """Copy rows ``[start, end)`` of a page table to pinned memory behind the compute so far.

        None when every pinned buffer is on its way: ask again after a release.
        """
        count = extent.rows_bytes(end - start)
        index = self._pinned.take(count)
        if index is None:
            return None
        stream = self._runtime.transfer
        stream.wait_event(self._runtime.event(self._runtime.compute))
        with self._torch.cuda.stream(stream):
            ids, packed = self._upload(page_ids), self._empty(count)
            at = packed.data_ptr()
            self._run(copies.gather(extent, at, ids.data_ptr(), start, end))
            self._pinned.buffer(index)[:count].copy_(packed, non_blocking=True)
        return Transfer(self._pinned, index, count, self._runtime.event(stream))

    def begin_scatter(
        self, extent: PageExtent, page_ids: Int32s, start: int, end: int, packed: Bytes
    ) -> Transfer | None:
        """Write packed rows to their pages; None as for ``begin_gather``."""
        count = extent.rows_bytes(end - start)
        check_packed(packed, count, start, end)
        index = self._pinned.take(count)
        if index is None:
            return None
        self._pinned.buffer(index).numpy()[:count] = packed
        stream = self._runtime.transfer
        stream.wait_event(self._runtime.event(self._runtime.compute))
        with self._torch.cuda.stream(stream):
            ids, on_card = self._upload(page_ids), self._empty(count)
            on_card.copy_(self._pinned.buffer(index)[:count], non_blocking=True)
            at = on_card.data_ptr()
            self._run(copies.scatter(extent, at, ids.data_ptr(), start, end))
        event = self._runtime.event(stream)
        self._runtime.compute.wait_event(event)
        return Transfer(self._pinned, index, count, event)

    def gather(
        self, extents: Sequence[PageExtent], page_ids: Int32s, start: int, end: int
    ) -> Bytes:
        """Bytes of the rows, extent by extent, layer by layer; in pieces that fit a buffer."""
        parts = []
        for extent in extents:
            whole = np.empty((extent.layers, end - start, extent.row_bytes), np.uint8)
            for first, last in self._pieces(extent, start, end):
                transfer = _started(self.begin_gather(extent, page_ids, first, last))
                piece = transfer.bytes().reshape(extent.layers, last - first, extent.row_bytes)
                whole[:, first - start : last - start] = piece
                transfer.release()
            parts.append(whole.reshape(-1))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def scatter(
        self,
        extents: Sequence[PageExtent],
        page_ids: Int32s,
        start: int,
        end: int,
        packed: Bytes,
    ) -> None:
        """The inverse of ``gather``."""
        sizes = [extent.rows_bytes(end - start) for extent in extents]
        check_packed(packed, sum(sizes), start, end)
        at = 0
        for extent, size in zip(extents, sizes, strict=True):
            whole = packed[at : at + size].reshape(extent.layers, end - start, extent.row_bytes)
            at += size
            for first, last in self._pieces(extent, start, end):
                piece = np.ascontiguousarray(whole[:, first - start : last - start]).reshape(-1)
                _started(self.begin_scatter(extent, page_ids, first, last, piece)).release()

    def _pieces(self, extent: PageExtent, start: int, end: int) -> list[tuple[int, int]]:
        """Ranges of rows that fit a pinned buffer; one row at least, whose size is then refused."""
        most = max(1, self._pinned.bytes_each // extent.rows_bytes(1))
        return [(first, min(first + most, end)) for first in range(start, end, most)]

    def _run(self, launches: tuple[Launch, ...]) -> None:
        for launch in launches:
            self._runtime.launch(launch, self._runtime.transfer)

    def _upload(self, page_ids: Int32s) -> Any:
        """Page ids on the card, in memory of the stream that is current."""
        ids = np.ascontiguousarray(page_ids, np.int32)
        return self._torch.from_numpy(ids).to(self._runtime.device)

    def _empty(self, count: int) -> Any:
        return self._torch.empty(count, dtype=self._torch.uint8, device=self._runtime.device)


def check_packed(packed: Bytes, count: int, start: int, end: int) -> None:
    """Raise KernelInputError unless ``packed`` is the bytes of rows ``[start, end)``."""
    if packed.dtype != np.uint8 or packed.shape != (count,):
        raise KernelInputError(
            f"rows [{start}, {end}) are {count} bytes, not {packed.shape} of {packed.dtype}"
        )


def _started(transfer: Transfer | None) -> Transfer:
    if transfer is None:
        raise KernelInputError("every pinned buffer is on its way; release one first")
    return transfer
