"""What crosses the border of the kernels: storage types, pool layouts, the ragged batch, checks.

Owns the meaning of every array that a device reads. A batch is integers only: it is built by
``plan`` on the host and read by any device. Knows tensors, pages and slots; never a request.

The arrays of a batch (int32 unless said otherwise):

``q_indptr[n + 1]``     rows of sequence s are ``[q_indptr[s], q_indptr[s + 1])``
``kv_len[n]``           keys of the sequence, the rows of this step included; row i of q rows stands
                        at position ``kv_len - q + i`` and sees keys up to and with its own
``kv_base[n]``          first retained token; pages wholly before it have no entry in the table
``page_indptr[n + 1]``  page table of sequence s is ``page_ids[page_indptr[s]:page_indptr[s + 1]]``
``page_ids[...]``       its first entry is the page that holds token ``kv_base``
``items[N, 6]``         ``{seq, q0, rows, kv_lo, kv_hi, slot}``; padding has ``seq = -1``; ``slot``
                        -1 writes the rows' results, else the item is one KV span of one row and
                        leaves a partial result in that slot
``merge_indptr[rows + 1]``  partial slots of each row, from its first span to its last
``slots[rows]`` (int64) ``page * page_tokens + offset`` where the row's K and V go
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import numpy.typing as npt

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]

KV_TILE_TOKENS = 16
KV_SPAN_TOKENS = 256
PAGE_TOKENS_MAX = 1 << 16
ITEM_FIELDS = 6
SEQ, Q0, ROWS, KV_LO, KV_HI, SLOT = range(ITEM_FIELDS)
SKIPPED_SLOT = -1
INT32_MAX = 2**31 - 1


class KernelInputError(ValueError):
    """Arrays that a device must not be handed. Nothing was launched, nothing was written."""


class Storage(IntEnum):
    """How one element lies in a page pool or in packed weights."""

    F32 = 0
    F16 = 1
    BF16 = 2

    @property
    def element_bytes(self) -> int:
        return 4 if self is Storage.F32 else 2

    @property
    def dtype(self) -> np.dtype[np.float32] | np.dtype[np.float16] | np.dtype[np.uint16]:
        """The numpy type of a pool; bf16, which numpy lacks, is kept as its 16 bits."""
        if self is Storage.F32:
            return np.dtype(np.float32)
        return np.dtype(np.float16) if self is Storage.F16 else np.dtype(np.uint16)


def check_slab(name: str, layers: int, heads: int, width: int) -> None:
    """Raise KernelInputError unless a slab has something in every direction."""
    if min(layers, heads, width) < 1:
        raise KernelInputError(
            f"slab {name!r} needs at least one layer, head and element, "
            f"not {layers}, {heads}, {width}"
        )


@dataclass(frozen=True, slots=True)
class SlabSpec:
    """One kind of row that a token leaves in every layer: keys, values, a latent, a rotary key."""

    name: str
    layers: int
    heads: int
    width: int  # elements per head
    storage: Storage = Storage.F32

    def __post_init__(self) -> None:
        check_slab(self.name, self.layers, self.heads, self.width)

    @property
    def row_bytes(self) -> int:
        """Bytes of one token row in one layer."""
        return self.heads * self.width * self.storage.element_bytes


@dataclass(frozen=True, slots=True, eq=False)
class RaggedBatch:
    """Rows of several sequences, planned. See the module for each array."""

    page_tokens: int
    window: int  # 0: no window
    q_indptr: Int32s
    kv_len: Int32s
    kv_base: Int32s
    page_indptr: Int32s
    page_ids: Int32s
    items: Int32s
    merge_indptr: Int32s
    slots: Int64s
    positions: Int32s  # [rows]; position of each row, 0 on padding

    @property
    def rows(self) -> int:
        return len(self.slots)

    @property
    def sequences(self) -> int:
        return len(self.kv_len)

    @property
    def partial_slots(self) -> int:
        """Partial results that the items leave for the merge."""
        return int(self.merge_indptr[-1])


def check_page_tokens(page_tokens: int) -> None:
    """Raise KernelInputError unless ``page_tokens`` is a power of two within bounds."""
    power_of_two = page_tokens > 0 and page_tokens & (page_tokens - 1) == 0
    if not power_of_two or page_tokens > PAGE_TOKENS_MAX:
        raise KernelInputError(
            f"page_tokens must be a power of two from 1 to {PAGE_TOKENS_MAX}, not {page_tokens}"
        )


def check_pages(pages: int, page_tokens: int) -> None:
    """Raise KernelInputError unless a pool can have so many pages of that size."""
    check_page_tokens(page_tokens)
    if pages < 1:
        raise KernelInputError(f"a pool needs at least one page, not {pages}")


def check_batch(batch: RaggedBatch, pages: int) -> None:
    """Raise KernelInputError unless every index of the batch stays inside a pool of ``pages``.

    Slots that are not negative must be unique: two rows on one slot have no defined order.
    """
    check_page_tokens(batch.page_tokens)
    sequences, rows = batch.sequences, batch.rows
    _check_shape("q_indptr", batch.q_indptr, (sequences + 1,))
    _check_shape("kv_base", batch.kv_base, (sequences,))
    _check_shape("page_indptr", batch.page_indptr, (sequences + 1,))
    _check_shape("merge_indptr", batch.merge_indptr, (rows + 1,))
    _check_shape("positions", batch.positions, (rows,))
    _check_shape("items", batch.items, (len(batch.items), ITEM_FIELDS))
    for name, array in (("q_indptr", batch.q_indptr), ("page_indptr", batch.page_indptr)):
        if int(array[0]) != 0 or bool((np.diff(array) < 0).any()):
            raise KernelInputError(f"{name} must start at 0 and never fall, not {array[:8]}...")
    if int(batch.q_indptr[-1]) > rows or int(batch.page_indptr[-1]) > len(batch.page_ids):
        raise KernelInputError(
            f"q_indptr ends at {batch.q_indptr[-1]} of {rows} rows and page_indptr at "
            f"{batch.page_indptr[-1]} of {len(batch.page_ids)} entries; both must lie inside"
        )
    used = batch.page_ids[: int(batch.page_indptr[-1])]
    if used.size and (int(used.min()) < 0 or int(used.max()) >= pages):
        raise KernelInputError(
            f"page ids must lie in [0, {pages}), found {used.min()}..{used.max()}"
        )
    first_page = batch.kv_base // batch.page_tokens
    needed = -(-batch.kv_len // batch.page_tokens) - first_page
    short = np.diff(batch.page_indptr) < np.where(batch.kv_len > 0, needed, 0)
    if bool(short.any()):
        worst = int(np.argmax(short))
        raise KernelInputError(
            f"sequence {worst} has {batch.kv_len[worst]} tokens from {batch.kv_base[worst]} on but "
            f"only {np.diff(batch.page_indptr)[worst]} page entries; it needs {needed[worst]}"
        )
    check_slots(batch.slots, pages * batch.page_tokens)


def check_slots(slots: Int64s, slots_max: int) -> None:
    """Raise KernelInputError when a slot lies past the pool or two rows share one."""
    real = slots[slots >= 0]
    if real.size and int(real.max()) >= slots_max:
        raise KernelInputError(f"slot {int(real.max())} lies past the pool of {slots_max} slots")
    ordered = np.sort(real)
    if bool((ordered[1:] == ordered[:-1]).any()):
        twice = int(ordered[:-1][ordered[1:] == ordered[:-1]][0])
        raise KernelInputError(f"slot {twice} is written by two rows of one step")


def _check_shape(name: str, array: npt.NDArray[np.generic], shape: tuple[int, ...]) -> None:
    if array.shape != shape or not array.flags.c_contiguous:
        raise KernelInputError(
            f"{name} must be contiguous with shape {shape}, not {array.shape} "
            f"(contiguous: {array.flags.c_contiguous})"
        )
