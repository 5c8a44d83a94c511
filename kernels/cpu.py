"""The CPU device: pages and row math carried out by the native core.

Exact: a row's bits depend on its inputs, the weights and the instruction set, never on the batch,
the threads, the cutting of the work or the pages. Owns the thread pool and the working memory of
the merge; every launcher checks shapes and types first and raises KernelInputError.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from ctypes import Structure, byref
from typing import Any

import numpy as np
import numpy.typing as npt

from . import native_build, native_core
from .abi import (
    Floats,
    Int32s,
    Int64s,
    KernelInputError,
    RaggedBatch,
    Storage,
)
from .checks import (
    check_attention,
    check_indices,
    check_layer,
    check_range,
    check_rows,
    check_weight,
    contiguous,
)
from .cpu_program import CpuProgram, Launched
from .device import Activation, AttentionSpec, PackedLinear, PagePool
from .host_arrays import HostArrays
from .native_core import address
from .plan import Cut

PANEL = 16
LINES_PER_ITEM = 192
THREADS_MAX = 256
ROTARY_MAX = 2048


class CpuDevice(HostArrays):
    """Implements ``Device`` and ``RowMath`` with the native core.

    ``target`` defaults to the widest instruction set of the machine. Raises CompilerError when
    the core cannot be built.
    """

    def __init__(self, threads: int = 1, target: native_build.Target | None = None) -> None:
        if not 1 <= threads <= THREADS_MAX:
            raise KernelInputError(f"threads must lie in [1, {THREADS_MAX}], not {threads}")
        self._target = target or native_build.detect_target()
        self._core = native_core.load(native_build.build(self._target))
        self._pool = self._core.pt_pool_new(threads)
        self._threads = threads
        self._partial: Floats = np.zeros(0, np.float32)
        self._recording: list[Launched] | None = None
        weakref.finalize(self, self._core.pt_pool_free, self._pool)

    @property
    def identity(self) -> tuple[tuple[str, str], ...]:
        return (
            ("core", native_build.source_digest()),
            ("instruction_set", self._target.name),
        )

    @property
    def recording(self) -> bool:
        """Whether operations are being kept."""
        return self._recording is not None

    def record(self, work: Callable[[], None]) -> CpuProgram:
        """Run ``work`` and keep every operation it had this device do, to be run again.

        The program reads and writes the same arrays. What ``work`` does by other means (numpy, a
        copy of a page) is no part of it. Raises KernelInputError inside another recording.
        """
        if self._recording is not None:
            raise KernelInputError("a recording is under way; end it before the next begins")
        self._recording = []
        try:
            work()
            return CpuProgram(self, self._core, self._pool, self._recording)
        finally:
            self._recording = None

    def _launch(self, operation: Any, arguments: Structure, *arrays: npt.NDArray[Any]) -> int:
        """Run one operation; ``arrays`` are those that its arguments point into."""
        if self._recording is not None:
            self._recording.append(Launched(operation, arguments, arrays))
        failed: int = operation(self._pool, byref(arguments))
        return failed

    # Pages

    def append(self, pool: PagePool, layer: int, rows: Floats, slots: Int64s) -> None:
        width = pool.spec.heads * pool.spec.width
        check_rows("rows", rows, len(slots), width)
        arguments = native_core.Append(
            address(rows),
            rows.strides[0] // 4,
            len(slots),
            width,
            address(contiguous("slots", slots, np.int64)),
            pool.pages * pool.page_tokens,
            self._layer(pool, layer),
            pool.spec.storage,
        )
        if self._launch(self._core.pt_append, arguments, rows, slots):
            raise KernelInputError(
                f"a slot lies past the pool of {pool.pages} pages of {pool.page_tokens} tokens"
            )

    def attention(
        self,
        what: AttentionSpec,
        layer: int,
        q: Floats,
        keys: Sequence[PagePool],
        values: PagePool,
        batch: RaggedBatch,
        out: Floats,
        lse: Floats | None = None,
    ) -> None:
        check_attention(what, layer, q, keys, values, batch, out, lse)
        heads, width = values.spec.heads, values.spec.width
        padded = -(-width // PANEL) * PANEL
        # Another step of the same shape may leave more partial results, at most one an item.
        slots = batch.partial_slots if self._recording is None else len(batch.items)
        need = slots * what.q_heads * (padded + 2)
        if need > self._partial.size:
            self._partial = np.empty(need, np.float32)
        slabs = [self._slab(pool, layer) for pool in keys]
        arguments = native_core.Attention(
            q=address(q),
            ldq=q.strides[0] // 4,
            rows=batch.rows,
            q_heads=what.q_heads,
            kv_heads=heads,
            keys=(native_core.Slab * 2)(*slabs),
            values=self._slab(values, layer),
            key_slabs=len(slabs),
            storage=values.spec.storage,
            page_tokens=batch.page_tokens,
            q_indptr=address(batch.q_indptr),
            kv_len=address(batch.kv_len),
            kv_base=address(batch.kv_base),
            page_indptr=address(batch.page_indptr),
            page_ids=address(batch.page_ids),
            items=address(batch.items),
            merge_indptr=address(batch.merge_indptr),
            item_count=len(batch.items),
            window=batch.window,
            out=address(out),
            ldo=out.strides[0] // 4,
            lse=address(lse),
            partial=address(self._partial),
            scale=what.scale,
        )
        self._launch(
            self._core.pt_attention,
            arguments,
            *(q, out, self._partial, batch.q_indptr, batch.kv_len, batch.kv_base),
            *(batch.page_indptr, batch.page_ids, batch.items, batch.merge_indptr),
            *(() if lse is None else (lse,)),
        )

    def cut(self, q_heads: int, kv_heads: int, sequences: int) -> Cut:
        rows = max(1, LINES_PER_ITEM // (q_heads // kv_heads))
        return Cut(rows, self._threads > 1 and sequences * kv_heads < 4 * self._threads)

    def page_copy(self, pool: PagePool, source: int, target: int) -> None:
        if not (0 <= source < pool.pages and 0 <= target < pool.pages):
            raise KernelInputError(f"pages {source} and {target} must lie in [0, {pool.pages})")
        self._core.pt_page_copy(*self._extent(pool), source, target)

    def gather(
        self, pool: PagePool, page_ids: Int32s, start: int, end: int
    ) -> npt.NDArray[np.uint8]:
        ids = check_range(pool, page_ids, start, end)
        packed = np.empty(pool.spec.layers * (end - start) * pool.spec.row_bytes, np.uint8)
        self._core.pt_gather(
            *self._extent(pool),
            pool.spec.row_bytes,
            pool.page_tokens,
            address(ids),
            start,
            end,
            address(packed),
        )
        return packed

    def scatter(
        self, pool: PagePool, page_ids: Int32s, start: int, end: int, packed: npt.NDArray[np.uint8]
    ) -> None:
        ids = check_range(pool, page_ids, start, end)
        need = pool.spec.layers * (end - start) * pool.spec.row_bytes
        if packed.dtype != np.uint8 or packed.shape != (need,) or not packed.flags.c_contiguous:
            raise KernelInputError(
                f"rows [{start}, {end}) of slab {pool.spec.name!r} are {need} contiguous bytes, "
                f"not {packed.shape} of {packed.dtype}"
            )
        self._core.pt_scatter(
            *self._extent(pool),
            pool.spec.row_bytes,
            pool.page_tokens,
            address(ids),
            start,
            end,
            address(packed),
        )

    def _extent(self, pool: PagePool) -> tuple[int | None, int, int, int]:
        """Base address, layers, bytes of a layer, bytes of a page."""
        array = pool.array
        return address(array), pool.spec.layers, array.strides[0], array.strides[1]

    def _layer(self, pool: PagePool, layer: int) -> int:
        check_layer(pool, layer)
        return pool.array.ctypes.data + layer * pool.array.strides[0]

    def _slab(self, pool: PagePool, layer: int) -> native_core.Slab:
        element = pool.spec.storage.element_bytes
        strides = [stride // element for stride in pool.array.strides]
        return native_core.Slab(
            self._layer(pool, layer), strides[1], strides[2], strides[3], pool.spec.width
        )

    # Row math

    def pack(self, weight: Floats, storage: Storage, bias: Floats | None = None) -> PackedLinear:
        check_weight(weight, bias)
        outputs, depth = weight.shape
        panels = -(-outputs // PANEL)
        # bf16 lies in pairs of depth, as the native core multiplies it.
        step = (PANEL, 2) if storage is Storage.BF16 else (PANEL,)
        steps = -(-depth // 2) if storage is Storage.BF16 else depth
        data = np.empty((panels, steps, *step), storage.dtype)
        weight = np.ascontiguousarray(weight)
        self._core.pt_pack(self._pool, address(weight), outputs, depth, storage, address(data))
        return PackedLinear(
            outputs, depth, storage, data, None if bias is None else np.ascontiguousarray(bias)
        )

    def linear(self, x: Floats, weight: PackedLinear, out: Floats, add: bool = False) -> None:
        check_rows("x", x, len(x), weight.depth)
        check_rows("out", out, len(x), weight.outputs)
        arguments = native_core.Linear(
            address(x),
            x.strides[0] // 4,
            len(x),
            weight.depth,
            address(weight.data),
            weight.storage,
            weight.outputs,
            address(weight.bias),
            address(out),
            out.strides[0] // 4,
            add,
        )
        self._launch(self._core.pt_linear, arguments, x, out)

    def rows_of(self, weight: PackedLinear, rows: Int32s) -> Floats:
        rows = contiguous("rows", rows, np.int32)
        check_indices("rows", rows, weight.outputs)
        out = np.empty((len(rows), weight.depth), np.float32)
        self._core.pt_unpack_rows(
            address(weight.data),
            weight.depth,
            weight.storage,
            address(rows),
            len(rows),
            address(out),
        )
        return out

    def rms_norm(
        self, x: Floats, groups: int, weight: Floats, plus: float, eps: float, out: Floats
    ) -> None:
        width = groups * len(weight)
        check_rows("x", x, len(x), width)
        check_rows("out", out, len(x), width)
        arguments = native_core.Norm(
            address(x),
            x.strides[0] // 4,
            len(x),
            groups,
            len(weight),
            address(contiguous("weight", weight, np.float32)),
            address(out),
            out.strides[0] // 4,
            plus,
            eps,
        )
        self._launch(self._core.pt_rms_norm, arguments, x, out)

    def rope(
        self,
        x: Floats,
        heads: int,
        head_width: int,
        offset: int,
        positions: Int32s,
        tables: tuple[Floats, Floats],
        interleaved: bool = False,
    ) -> None:
        cosines, sines = tables
        rotary = 2 * cosines.shape[1]
        check_rows("x", x, len(positions), heads * head_width)
        if offset + rotary > head_width or rotary > ROTARY_MAX or cosines.shape != sines.shape:
            raise KernelInputError(
                f"{rotary} rotary values from {offset} on do not fit a head of {head_width}"
            )
        check_indices("positions", positions, len(cosines))
        arguments = native_core.Rope(
            x.ctypes.data + 4 * offset,
            x.strides[0] // 4,
            len(x),
            heads,
            head_width,
            rotary,
            address(contiguous("positions", positions, np.int32)),
            address(cosines),
            address(sines),
            interleaved,
        )
        self._launch(self._core.pt_rope, arguments, x, positions, cosines, sines)

    def gated(self, x: Floats, kind: Activation, out: Floats) -> None:
        width = out.shape[1]
        check_rows("x", x, len(out), 2 * width)
        check_rows("out", out, len(out), width)
        arguments = native_core.Gated(
            address(x),
            x.strides[0] // 4,
            len(x),
            width,
            kind,
            address(out),
            out.strides[0] // 4,
        )
        self._launch(self._core.pt_gated, arguments, x, out)
