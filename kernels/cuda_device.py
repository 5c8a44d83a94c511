"""The CUDA device: pages on a card, read and written by this project's kernels.

Implements ``Device``. Arrays of a call may be torch tensors on the card, which are used where they
lie, or numpy arrays, which are copied there and back. Compute and transfers have a stream each;
transfers wait for the compute that wrote what they read and run at low priority. Dense row math is
not here: the engine pairs this device with a ``RowMath`` (split_device.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from .abi import (
    ROWS,
    Int32s,
    KernelInputError,
    RaggedBatch,
    SlabSpec,
    Storage,
    check_batch,
    check_page_tokens,
    check_slots,
)
from .cuda import copies, operations
from .cuda.arrays import DeviceArray, Element, PoolArray
from .cuda.launch import Launch
from .cuda_runtime import CudaRuntime
from .cuda_staging import BatchStage, PinnedPool, StagedBatch, Transfer
from .device import AttentionSpec, PagePool
from .plan import Cut

TORCH_NAMES = {Storage.F32: "float32", Storage.F16: "float16", Storage.BF16: "bfloat16"}
LINES_PER_ITEM = 64
SPLIT_BLOCKS_PER_MULTIPROCESSOR = 2
PARTIAL_WIDTH_MIN = 32  # narrowest values of the tensor-core kernels


@dataclass(frozen=True, slots=True)
class CudaOptions:
    """Bounds of everything that is allocated once."""

    batch_places: int = 4  # batches staged at a time: one per page group
    batch_bytes_max: int = 1 << 22
    batch_ring: int = 2
    partial_values_max: int = 1 << 24  # fp32 values of split rows
    pinned_buffers: int = 4
    pinned_bytes: int = 1 << 24


class CudaDevice:
    """See the module. Launches keep the order they are given in."""

    def __init__(self, runtime: CudaRuntime, options: CudaOptions | None = None) -> None:
        options = options or CudaOptions()
        torch = runtime.torch
        self._runtime, self._torch, self._options = runtime, torch, options
        self._stages = [
            BatchStage(runtime, options.batch_bytes_max, options.batch_ring)
            for _ in range(options.batch_places)
        ]
        self._staged: list[StagedBatch | None] = [None] * options.batch_places
        self._partial_tensors = [
            torch.zeros(size, dtype=torch.float32, device=runtime.device)
            for size in (
                options.partial_values_max,
                options.partial_values_max // PARTIAL_WIDTH_MIN,
            )
        ]
        self._partials = operations.Partials(*map(self._describe, self._partial_tensors))
        self._error = torch.zeros(1, dtype=torch.int32, device=runtime.device)
        self._pinned = PinnedPool(runtime, options.pinned_buffers, options.pinned_bytes)
        properties = torch.cuda.get_device_properties(runtime.device)
        self._multiprocessors: int = properties.multi_processor_count

    # Pages

    def allocate(self, spec: SlabSpec, pages: int, page_tokens: int) -> PagePool:
        check_page_tokens(page_tokens)
        if pages < 1:
            raise KernelInputError(f"a pool needs at least one page, not {pages}")
        shape = (spec.layers, pages, page_tokens, spec.heads, spec.width)
        dtype = getattr(self._torch, TORCH_NAMES[spec.storage])
        try:
            array = self._torch.zeros(shape, dtype=dtype, device=self._runtime.device)
        except self._torch.OutOfMemoryError as error:
            raise MemoryError(
                f"no room for pool {spec.name!r} of {pages} pages: {error}"
            ) from error
        return PagePool(spec, pages, page_tokens, cast(Any, array))

    def append(self, pool: PagePool, layer: int, rows: Any, slots: Any) -> None:
        self.append_together([pool], layer, [rows], slots)

    def append_together(
        self, pools: Sequence[PagePool], layer: int, rows: Sequence[Any], slots: Any
    ) -> None:
        """Append to one or two slabs in one launch.

        ``slots`` on the host are checked here; those of a staged batch and those on the card were
        checked by whoever put them there, and one past the pool only raises the flag that
        ``check_errors`` reads.
        """
        staged = self._staged_with(slots)
        if staged is None and isinstance(slots, np.ndarray):
            check_slots(slots, pools[0].pages * pools[0].page_tokens)
        # Tensors made here must live until the launches are on the stream that orders their reuse.
        on_card = [self._to_card(array) for array in (*rows, *(() if staged else (slots,)))]
        arrays = [self._describe(tensor) for tensor in on_card]
        where = staged.slots if staged else arrays[-1]
        views = [self._pool(pool) for pool in pools]
        error = self._describe(self._error)
        self._run(operations.append(views, layer, arrays[: len(rows)], where, error))

    def stage(
        self, batch: RaggedBatch, place: int = 0, rows_per_item: int | None = None
    ) -> StagedBatch:
        """Upload a batch to a place; the engine has one place per page group.

        A captured step reads a place, so staging another batch of the same capacities there
        changes what the next replay works on. ``rows_per_item`` is the most that an item of any
        of these batches has; by default the most of this one.
        """
        if not 0 <= place < len(self._stages):
            raise KernelInputError(f"batch places are 0 to {len(self._stages) - 1}, not {place}")
        most = int(batch.items[:, ROWS].max()) if len(batch.items) else 0
        if rows_per_item is not None and rows_per_item < most:
            raise KernelInputError(
                f"an item has {most} rows, at most {rows_per_item} were promised"
            )
        self._staged[place] = self._stages[place].put(batch, rows_per_item or most)
        return cast(StagedBatch, self._staged[place])

    def attention(
        self,
        what: AttentionSpec,
        layer: int,
        q: Any,
        keys: Sequence[PagePool],
        values: PagePool,
        batch: RaggedBatch,
        out: Any,
        lse: Any = None,
    ) -> None:
        staged = next((s for s in self._staged if s and s.batch is batch), None)
        if staged is None:
            check_batch(batch, values.pages)
            staged = self.stage(batch)
        on_card = [self._to_card(q), self._to_card(out)]
        if lse is not None:
            on_card.append(self._to_card(lse))
        arrays = [self._describe(array) for array in on_card]
        self._run(
            operations.attention(
                what,
                layer,
                arrays[0],
                [self._pool(pool) for pool in keys],
                self._pool(values),
                staged.layout,
                arrays[1],
                arrays[2] if lse is not None else None,
                self._partials,
            )
        )
        for host, card in zip((out, lse), on_card[1:], strict=False):
            self._to_host(card, host)

    def cut(self, q_heads: int, kv_heads: int, sequences: int) -> Cut:
        rows = max(1, LINES_PER_ITEM // (q_heads // kv_heads))
        blocks = SPLIT_BLOCKS_PER_MULTIPROCESSOR * self._multiprocessors
        return Cut(rows, sequences * kv_heads < blocks)

    def page_copy(self, pool: PagePool, source: int, target: int) -> None:
        if not (0 <= source < pool.pages and 0 <= target < pool.pages):
            raise KernelInputError(f"pages {source} and {target} must lie in [0, {pool.pages})")
        lists = self._to_card(np.array([source, target], np.int32))
        at = lists.data_ptr()
        self._run(copies.page_copy(self._pool(pool).extent(), at, at + 4, 1))

    def poison(self, pool: PagePool, page_ids: Int32s) -> None:
        ids = self._torch.from_numpy(page_ids.astype(np.int64)).to(self._runtime.device)
        with self._torch.cuda.stream(self._runtime.compute):
            cast(Any, pool.array)[:, ids] = float("nan")

    # Transfers

    def begin_gather(
        self, pool: PagePool, page_ids: Int32s, start: int, end: int
    ) -> Transfer | None:
        """Copy token rows of a page table to pinned memory behind the compute done so far.

        None when every pinned buffer is on its way: ask again after a release.
        """
        view, count = self._rows_of(pool, page_ids, start, end)
        index = self._pinned.take(count)
        if index is None:
            return None
        stream = self._runtime.transfer
        stream.wait_event(self._runtime.event(self._runtime.compute))
        with self._torch.cuda.stream(stream):
            ids = self._to_card(np.ascontiguousarray(page_ids, np.int32), stream)
            packed = self._empty_bytes(count)
            launches = copies.gather(view.extent(), packed.data_ptr(), ids.data_ptr(), start, end)
            self._run(launches, stream)
            self._pinned.buffer(index)[:count].copy_(packed, non_blocking=True)
        return Transfer(self._pinned, index, count, self._runtime.event(stream))

    def begin_scatter(
        self,
        pool: PagePool,
        page_ids: Int32s,
        start: int,
        end: int,
        packed: npt.NDArray[np.uint8],
    ) -> Transfer | None:
        """Write packed rows to their pages; compute that follows waits for them on the card."""
        view, count = self._rows_of(pool, page_ids, start, end)
        self._check_packed(pool, start, end, count, packed)
        index = self._pinned.take(count)
        if index is None:
            return None
        self._pinned.buffer(index).numpy()[:count] = packed
        stream = self._runtime.transfer
        stream.wait_event(self._runtime.event(self._runtime.compute))
        with self._torch.cuda.stream(stream):
            ids = self._to_card(np.ascontiguousarray(page_ids, np.int32), stream)
            on_card = self._empty_bytes(count)
            on_card.copy_(self._pinned.buffer(index)[:count], non_blocking=True)
            at = on_card.data_ptr()
            self._run(copies.scatter(view.extent(), at, ids.data_ptr(), start, end), stream)
        event = self._runtime.event(stream)
        self._runtime.compute.wait_event(event)
        return Transfer(self._pinned, index, count, event)

    def gather(
        self, pool: PagePool, page_ids: Int32s, start: int, end: int
    ) -> npt.NDArray[np.uint8]:
        spec = pool.spec
        self._rows_of(pool, page_ids, start, end)
        whole = np.empty((spec.layers, end - start, spec.row_bytes), np.uint8)
        for first, last in self._pieces(pool, start, end):
            transfer = self._started(self.begin_gather(pool, page_ids, first, last))
            piece = transfer.bytes().reshape(spec.layers, last - first, spec.row_bytes)
            whole[:, first - start : last - start] = piece
            transfer.release()
        return whole.reshape(-1)

    def scatter(
        self, pool: PagePool, page_ids: Int32s, start: int, end: int, packed: npt.NDArray[np.uint8]
    ) -> None:
        spec = pool.spec
        _, count = self._rows_of(pool, page_ids, start, end)
        self._check_packed(pool, start, end, count, packed)
        whole = packed.reshape(spec.layers, end - start, spec.row_bytes)
        for first, last in self._pieces(pool, start, end):
            piece = np.ascontiguousarray(whole[:, first - start : last - start]).reshape(-1)
            self._started(self.begin_scatter(pool, page_ids, first, last, piece)).release()

    def _pieces(self, pool: PagePool, start: int, end: int) -> list[tuple[int, int]]:
        """Ranges of rows that fit a pinned buffer; one row at least, whose size is then refused."""
        most = max(1, self._pinned.bytes_each // (pool.spec.layers * pool.spec.row_bytes))
        return [(first, min(first + most, end)) for first in range(start, end, most)]

    def _check_packed(
        self, pool: PagePool, start: int, end: int, count: int, packed: npt.NDArray[np.uint8]
    ) -> None:
        if packed.dtype != np.uint8 or packed.shape != (count,):
            raise KernelInputError(
                f"rows [{start}, {end}) of slab {pool.spec.name!r} are {count} bytes, not "
                f"{packed.shape} of {packed.dtype}"
            )

    # Steps

    def capture(self, step: Callable[[], None]) -> Any:
        """A graph of a step over staged batches and tensors on the card; ``replay()`` runs it."""
        return self._runtime.capture(step)

    def check_errors(self) -> None:
        """Wait for the compute stream and raise if a kernel met a slot past its pool."""
        self._runtime.compute.synchronize()
        if int(self._error.item()):
            self._error.zero_()
            raise KernelInputError("a slot lay past its pool; its row was not written")

    # Arrays

    def _run(self, launches: tuple[Launch, ...], stream: Any = None) -> None:
        for launch in launches:
            self._runtime.launch(launch, stream or self._runtime.compute)

    def _started(self, transfer: Transfer | None) -> Transfer:
        if transfer is None:
            raise KernelInputError("every pinned buffer is on its way; release one first")
        return transfer

    def _rows_of(
        self, pool: PagePool, page_ids: Int32s, start: int, end: int
    ) -> tuple[PoolArray, int]:
        view = self._pool(pool)
        operations.check_rows_of_table(view, page_ids.tolist(), start, end)
        return view, pool.spec.layers * (end - start) * pool.spec.row_bytes

    def _empty_bytes(self, count: int) -> Any:
        return self._torch.empty(count, dtype=self._torch.uint8, device=self._runtime.device)

    def _staged_with(self, slots: Any) -> StagedBatch | None:
        return next((s for s in self._staged if s and s.batch.slots is slots), None)

    def _to_card(self, array: Any, stream: Any = None) -> Any:
        """The array on the card; memory taken here belongs to the stream that will read it."""
        if not isinstance(array, np.ndarray):
            return array
        with self._torch.cuda.stream(stream or self._runtime.compute):
            return self._torch.from_numpy(np.ascontiguousarray(array)).to(self._runtime.device)

    def _to_host(self, card: Any, host: Any) -> None:
        if isinstance(host, np.ndarray):
            with self._torch.cuda.stream(self._runtime.compute):
                host[...] = card.cpu().numpy()

    def _describe(self, tensor: Any) -> DeviceArray:
        element = Element(str(tensor.dtype).removeprefix("torch."))
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        return DeviceArray(tensor.data_ptr(), shape, strides, element, str(tensor.device))

    def _pool(self, pool: PagePool) -> PoolArray:
        return PoolArray(pool.spec, pool.pages, pool.page_tokens, self._describe(pool.array))
