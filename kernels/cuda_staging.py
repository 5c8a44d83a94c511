"""Bounded buffers between host and card: batch arrays up, page rows down and up.

Pinned memory is allocated once. A buffer that the card may still be reading is never written:
each is guarded by the event of its last use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .abi import ITEM_FIELDS, KernelInputError, RaggedBatch
from .cuda.arrays import DeviceArray, Element, batch_layout
from .cuda.paged import BatchLayout
from .cuda_runtime import CudaRuntime
from .plan import Capacity

ALIGNMENT_BYTES = 16
BATCH_ARRAYS = (
    "slots",
    "q_indptr",
    "kv_len",
    "kv_base",
    "page_indptr",
    "page_ids",
    "items",
    "merge_indptr",
    "positions",
)


def batch_bytes(capacity: Capacity) -> int:
    """Most bytes that a batch padded to ``capacity`` takes on the card."""
    int32s = (
        4 * capacity.rows  # positions, starts of partial results, and slots of two words
        + 4 * capacity.sequences  # starts of rows and of pages, lengths, bases
        + capacity.page_entries
        + ITEM_FIELDS * capacity.items
        + 3  # the ends of three lists of starts
    )
    return 4 * int32s + len(BATCH_ARRAYS) * ALIGNMENT_BYTES


@dataclass(frozen=True, slots=True, eq=False)
class StagedBatch:
    """A batch's arrays on the card. ``layout`` is what launches take; slots are int64.

    ``positions`` is a torch tensor, int32 ``[rows]``, over the staged bytes.
    """

    batch: RaggedBatch
    layout: BatchLayout
    slots: DeviceArray
    positions: Any


class BatchStage:
    """One place for a batch on the card, always at the same address, fed by a pinned ring.

    Batches of equal capacities have their arrays at equal addresses, so a captured launch reads
    whatever was staged last.
    """

    def __init__(self, runtime: CudaRuntime, bytes_max: int, ring: int) -> None:
        if ring < 2:
            raise KernelInputError(f"a ring needs two pinned buffers or more, not {ring}")
        torch = runtime.torch
        self._runtime = runtime
        self._bytes_max = bytes_max
        with torch.cuda.stream(runtime.compute):  # the stream that fills and reads it
            self._device = torch.zeros(bytes_max, dtype=torch.uint8, device=runtime.device)
        self._pinned = [
            torch.zeros(bytes_max, dtype=torch.uint8, pin_memory=True) for _ in range(ring)
        ]
        self._events: list[Any] = [None] * ring
        self._turn = 0

    def put(self, batch: RaggedBatch, rows_per_item_max: int) -> StagedBatch:
        """Upload a batch on the compute stream; waits only if the ring is still being read."""
        places, need = self._places(batch)
        if need > self._bytes_max:
            raise KernelInputError(
                f"the batch takes {need} bytes on the card, there is room for {self._bytes_max}; "
                "raise batch_bytes_max or lower the step's capacities"
            )
        turn, self._turn = self._turn, (self._turn + 1) % len(self._pinned)
        if self._events[turn] is not None:
            self._events[turn].synchronize()
        host = self._pinned[turn].numpy()
        for name, offset in places.items():
            raw = np.ascontiguousarray(getattr(batch, name)).view(np.uint8).reshape(-1)
            host[offset : offset + raw.size] = raw
        with self._runtime.torch.cuda.stream(self._runtime.compute):
            self._device[:need].copy_(self._pinned[turn][:need], non_blocking=True)
        self._events[turn] = self._runtime.event(self._runtime.compute)
        arrays = {name: self._array(getattr(batch, name), at) for name, at in places.items()}
        layout = batch_layout(batch, arrays, rows_per_item_max)
        # A replay may split rows where the captured batch did not: room and merge for the most.
        layout = replace(layout, partial_slots=layout.item_count)
        at = places["positions"]
        positions = self._device[at : at + batch.positions.nbytes].view(self._runtime.torch.int32)
        return StagedBatch(batch, layout, arrays["slots"], positions)

    def _places(self, batch: RaggedBatch) -> tuple[dict[str, int], int]:
        places, at = {}, 0
        for name in BATCH_ARRAYS:
            places[name] = at
            size = getattr(batch, name).nbytes
            at += -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        return places, at

    def _array(self, host: np.ndarray[Any, Any], offset: int) -> DeviceArray:
        strides = tuple(stride // host.itemsize for stride in host.strides)
        at = self._device.data_ptr() + offset
        element = Element.I64 if host.dtype == np.int64 else Element.I32
        return DeviceArray(at, host.shape, strides, element, str(self._runtime.device))


class Transfer:
    """Bytes on their way through one pinned buffer. ``release`` gives the buffer back."""

    def __init__(self, pool: PinnedPool, index: int, bytes_count: int, event: Any) -> None:
        self._pool, self._index, self._count, self._event = pool, index, bytes_count, event

    def done(self) -> bool:
        """Whether the card has finished with the buffer; never waits."""
        return bool(self._event.query())

    def wait(self) -> None:
        """Wait for the card."""
        self._event.synchronize()

    def bytes(self) -> np.ndarray[Any, np.dtype[np.uint8]]:
        """A copy of the buffer's bytes; waits until they are there."""
        self.wait()
        host: np.ndarray[Any, np.dtype[np.uint8]] = self._pool.buffer(self._index).numpy()
        return host[: self._count].copy()

    def release(self) -> None:
        """Give the buffer back once the card has finished with it."""
        self.wait()
        self._pool.give_back(self._index)


class PinnedPool:
    """A fixed number of pinned buffers of one size."""

    def __init__(self, runtime: CudaRuntime, buffers: int, bytes_each: int) -> None:
        torch = runtime.torch
        self.bytes_each = bytes_each
        self._buffers = [
            torch.zeros(bytes_each, dtype=torch.uint8, pin_memory=True) for _ in range(buffers)
        ]
        self._free = list(range(buffers))

    def take(self, bytes_count: int) -> int | None:
        """Index of a free buffer, or None when all are on their way."""
        if bytes_count > self.bytes_each:
            raise KernelInputError(
                f"{bytes_count} bytes do not fit a pinned buffer of {self.bytes_each}; move fewer "
                "rows at a time"
            )
        return self._free.pop() if self._free else None

    def buffer(self, index: int) -> Any:
        """The torch tensor of a buffer."""
        return self._buffers[index]

    def give_back(self, index: int) -> None:
        """Return a buffer; each once."""
        if index in self._free:
            raise KernelInputError(f"pinned buffer {index} was given back twice")
        self._free.append(index)
