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

from .abi import (
    ROWS,
    Int32s,
    KernelInputError,
    RaggedBatch,
    SlabSpec,
    Storage,
    check_batch,
    check_pages,
    check_slots,
)
from .cuda import any_pool, copies, operations
from .cuda.any_pool import AnyArrays
from .cuda.arrays import DeviceArray, Element, PoolArray
from .cuda.codes import AnyPool, CodedPool, CodedSlab
from .cuda.copies import PageExtent
from .cuda.launch import Launch
from .cuda.operations import check_rows_of_table
from .cuda.quantised import CodedArrays
from .cuda_runtime import CudaRuntime
from .cuda_staging import BatchStage, PinnedPool, StagedBatch, Transfer
from .cuda_transfers import Bytes, PageTransfers
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


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Queries and results of an attention on the card, and the tensors that hold them."""

    q: DeviceArray
    out: DeviceArray
    lse: DeviceArray | None
    tensors: tuple[Any, ...]


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
        values = options.partial_values_max
        self._partial_tensors = [
            self._zeros("partial results", (size,), "float32")
            for size in (values, values // PARTIAL_WIDTH_MIN)
        ]
        self._partials = operations.Partials(*map(self._describe, self._partial_tensors))
        self._error = self._zeros("the error flag", (1,), "int32")
        pinned = PinnedPool(runtime, options.pinned_buffers, options.pinned_bytes)
        self._transfers = PageTransfers(runtime, pinned)
        properties = torch.cuda.get_device_properties(runtime.device)
        self._multiprocessors: int = properties.multi_processor_count

    # Pages

    def allocate(self, spec: SlabSpec, pages: int, page_tokens: int) -> PagePool:
        check_pages(pages, page_tokens)
        shape = (spec.layers, pages, page_tokens, spec.heads, spec.width)
        array = self._zeros(spec.name, shape, TORCH_NAMES[spec.storage])
        return PagePool(spec, pages, page_tokens, array)

    def _zeros(self, name: str, shape: tuple[int, ...], kind: str) -> Any:
        """Memory that the compute stream fills, so that what it runs later finds it filled."""
        dtype = getattr(self._torch, kind)
        try:
            with self._torch.cuda.stream(self._runtime.compute):
                return self._torch.zeros(shape, dtype=dtype, device=self._runtime.device)
        except self._torch.OutOfMemoryError as error:
            raise MemoryError(f"no room for {name!r} of shape {shape}: {error}") from error

    def append(self, pool: PagePool, layer: int, rows: Any, slots: Any) -> None:
        self.append_together([pool], layer, [rows], slots)

    def append_together(
        self, pools: Sequence[AnyPool], layer: int, rows: Sequence[Any], slots: Any
    ) -> None:
        """Append to one or two slabs in one launch.

        ``slots`` on the host are checked here; those of a staged batch and those on the card were
        checked by whoever put them there, and one past the pool only raises the flag that
        ``check_errors`` reads.
        """
        staged = next((s for s in self._staged if s and s.batch.slots is slots), None)
        if staged is None and isinstance(slots, np.ndarray):
            check_slots(slots, pools[0].pages * pools[0].page_tokens)
        # Tensors made here must live until the launches are on the stream that orders their reuse.
        on_card = [self._to_card(array) for array in (*rows, *(() if staged else (slots,)))]
        arrays = [self._describe(tensor) for tensor in on_card]
        where = staged.slots if staged else arrays[-1]
        views = [self._view(pool) for pool in pools]
        error = self._describe(self._error)
        self._run(any_pool.append(views, layer, arrays[: len(rows)], where, error))

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
        keys: Sequence[AnyPool],
        values: AnyPool,
        batch: RaggedBatch,
        out: Any,
        lse: Any = None,
    ) -> None:
        staged = self._staged_batch(batch, values.pages)
        rows = self._rows(q, out, lse)
        self._run(
            any_pool.attention(
                what,
                layer,
                rows.q,
                [self._view(pool) for pool in keys],
                self._view(values),
                staged.layout,
                rows.out,
                rows.lse,
                self._partials,
            )
        )
        self._hand_back(rows, out, lse)

    # Coded pages

    def allocate_coded(self, slab: CodedSlab, pages: int, page_tokens: int) -> CodedPool:
        """Memory for a pool of eight-bit codes and their scales, filled with zeros."""
        check_pages(pages, page_tokens)
        shape = (slab.layers, pages, page_tokens, slab.heads)
        codes = self._zeros(slab.name, (*shape, slab.width), "uint8")
        scales = self._zeros(slab.name, shape, "float32")
        return CodedPool(slab, pages, page_tokens, codes, scales)

    # Work and copies

    def cut(self, q_heads: int, kv_heads: int, sequences: int) -> Cut:
        rows = max(1, LINES_PER_ITEM // (q_heads // kv_heads))
        blocks = SPLIT_BLOCKS_PER_MULTIPROCESSOR * self._multiprocessors
        return Cut(rows, sequences * kv_heads < blocks)

    def page_copy(self, pool: AnyPool, source: int, target: int) -> None:
        if not (0 <= source < pool.pages and 0 <= target < pool.pages):
            raise KernelInputError(f"pages {source} and {target} must lie in [0, {pool.pages})")
        lists = self._to_card(np.array([source, target], np.int32))
        at = lists.data_ptr()
        for extent in self._view(pool).extents():
            self._run(copies.page_copy(extent, at, at + lists.element_size(), 1))

    def poison(self, pool: PagePool, page_ids: Int32s) -> None:
        ids = self._torch.from_numpy(page_ids.astype(np.int64)).to(self._runtime.device)
        with self._torch.cuda.stream(self._runtime.compute):
            cast(Any, pool.array)[:, ids] = float("nan")

    # Transfers

    def begin_gather(
        self, pool: PagePool, page_ids: Int32s, start: int, end: int
    ) -> Transfer | None:
        """Rows of a page table on their way to pinned memory; see ``PageTransfers``."""
        (extent,) = self._rows_of(pool, page_ids, start, end)
        return self._transfers.begin_gather(extent, page_ids, start, end)

    def begin_scatter(
        self, pool: PagePool, page_ids: Int32s, start: int, end: int, packed: Bytes
    ) -> Transfer | None:
        """Packed rows on their way to their pages; see ``PageTransfers``."""
        (extent,) = self._rows_of(pool, page_ids, start, end)
        return self._transfers.begin_scatter(extent, page_ids, start, end, packed)

    def gather(self, pool: AnyPool, page_ids: Int32s, start: int, end: int) -> Bytes:
        """As ``Device.gather``; of a coded pool the codes of the rows, then their scales."""
        extents = self._rows_of(pool, page_ids, start, end)
        return self._transfers.gather(extents, page_ids, start, end)

    def scatter(
        self,
        pool: AnyPool,
        page_ids: Int32s,
        start: int,
        end: int,
        packed: Bytes,
    ) -> None:
        """The inverse of ``gather``."""
        extents = self._rows_of(pool, page_ids, start, end)
        self._transfers.scatter(extents, page_ids, start, end, packed)

    # Steps

    def capture(self, step: Callable[[], None]) -> Any:
        """A graph of a step over staged batches and tensors on the card; ``replay()`` runs it."""
        return self._runtime.capture(step)

    def check_errors(self) -> None:
        """Wait for the compute stream and raise if a kernel met a slot past its pool."""
        self._runtime.compute.synchronize()
        with self._torch.cuda.stream(self._runtime.compute):
            raised = int(self._error.item())
            if raised:
                self._error.zero_()
        if raised:
            raise KernelInputError("a slot lay past its pool; its row was not written")

    # Arrays

    def _run(self, launches: tuple[Launch, ...], stream: Any = None) -> None:
        for launch in launches:
            self._runtime.launch(launch, stream or self._runtime.compute)

    def _rows_of(
        self, pool: AnyPool, page_ids: Int32s, start: int, end: int
    ) -> tuple[PageExtent, ...]:
        """The pool's bytes, after a check that ``[start, end)`` are rows of its pages."""
        check_rows_of_table(pool.pages, pool.page_tokens, page_ids.tolist(), start, end)
        return self._view(pool).extents()

    def _staged_batch(self, batch: RaggedBatch, pages: int) -> StagedBatch:
        """The batch where it was staged, else checked and staged now."""
        staged = next((s for s in self._staged if s and s.batch is batch), None)
        if staged is None:
            check_batch(batch, pages)
            staged = self.stage(batch)
        return staged

    def _rows(self, q: Any, out: Any, lse: Any) -> _Rows:
        tensors = self._to_card(q), self._to_card(out), None if lse is None else self._to_card(lse)
        described = self._describe(tensors[0]), self._describe(tensors[1])
        return _Rows(*described, None if lse is None else self._describe(tensors[2]), tensors)

    def _hand_back(self, rows: _Rows, out: Any, lse: Any) -> None:
        for host, card in zip((out, lse), rows.tensors[1:], strict=True):
            if isinstance(host, np.ndarray):
                with self._torch.cuda.stream(self._runtime.compute):
                    host[...] = card.cpu().numpy()

    def _to_card(self, array: Any, stream: Any = None) -> Any:
        """The array on the card; memory taken here belongs to the stream that will read it."""
        if not isinstance(array, np.ndarray):
            return array
        with self._torch.cuda.stream(stream or self._runtime.compute):
            return self._torch.from_numpy(np.ascontiguousarray(array)).to(self._runtime.device)

    def _describe(self, tensor: Any) -> DeviceArray:
        element = Element(str(tensor.dtype).removeprefix("torch."))
        shape, strides = tuple(tensor.shape), tuple(tensor.stride())
        return DeviceArray(tensor.data_ptr(), shape, strides, element, str(tensor.device))

    def _view(self, pool: AnyPool) -> AnyArrays:
        if isinstance(pool, CodedPool):
            codes, scales = self._describe(pool.codes), self._describe(pool.scales)
            return CodedArrays(pool.slab, pool.pages, pool.page_tokens, codes, scales)
        return PoolArray(pool.spec, pool.pages, pool.page_tokens, self._describe(pool.array))
