"""From sequences to the arrays of a ragged batch. Pure: integers in, integers out, no device.

Owns the cutting of work into items. How work is cut never changes a bit of a result (spans and
tiles lie at fixed positions of the sequence), so it may follow the number of threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .abi import (
    INT32_MAX,
    ITEM_FIELDS,
    KV_HI,
    KV_LO,
    KV_SPAN_TOKENS,
    Q0,
    ROWS,
    SEQ,
    SKIPPED_SLOT,
    SLOT,
    Int32s,
    Int64s,
    KernelInputError,
    RaggedBatch,
    check_page_tokens,
)


@dataclass(frozen=True, slots=True, eq=False)
class SequenceRows:
    """The last ``q_rows`` tokens of a sequence of ``kv_len``, and where its rows lie.

    ``page_ids`` starts with the page that holds token ``kv_base`` and reaches at least to the page
    of the last token. A sequence without rows (``q_rows = 0``) is an inactive lane.
    """

    q_rows: int
    kv_len: int
    page_ids: Int32s
    kv_base: int = 0


@dataclass(frozen=True, slots=True)
class Cut:
    """How items are cut: rows of one sequence per item, and whether one row's keys are split."""

    rows_per_item: int = 32
    split_keys: bool = False


@dataclass(frozen=True, slots=True)
class Capacity:
    """Fixed sizes of the arrays, so that a captured launch can be replayed with other values."""

    sequences: int
    rows: int
    page_entries: int
    items: int


def plan(
    sequences: Sequence[SequenceRows],
    page_tokens: int,
    *,
    window: int = 0,
    cut: Cut = Cut(),
    capacity: Capacity | None = None,
) -> RaggedBatch:
    """Arrays of one step over ``sequences``, in their order; padded up to ``capacity`` if given.

    Raises KernelInputError when a sequence has more rows than tokens, too few pages, or reads
    below its first retained token, and when the step passes the capacity.
    """
    check_page_tokens(page_tokens)
    if window < 0 or cut.rows_per_item < 1:
        raise KernelInputError(
            f"window must not be negative and an item needs a row, not {window}, "
            f"{cut.rows_per_item}"
        )
    count = len(sequences)
    q_rows = np.fromiter((s.q_rows for s in sequences), np.int64, count)
    kv_len = np.fromiter((s.kv_len for s in sequences), np.int64, count)
    kv_base = np.fromiter((s.kv_base for s in sequences), np.int64, count)
    entries = np.fromiter((len(s.page_ids) for s in sequences), np.int64, count)
    _check_sequences(q_rows, kv_len, kv_base, entries, page_tokens, window)

    q_indptr = _indptr(q_rows)
    page_indptr = _indptr(entries)
    page_ids = (
        np.concatenate([np.asarray(s.page_ids, np.int32) for s in sequences])
        if count
        else np.zeros(0, np.int32)
    )
    rows = int(q_indptr[-1])
    sequence_of = np.repeat(np.arange(count), q_rows)
    positions = (kv_len - q_rows)[sequence_of] + np.arange(rows) - q_indptr[sequence_of]
    entry = (
        page_indptr[sequence_of] + positions // page_tokens - kv_base[sequence_of] // page_tokens
    )
    slots = page_ids[entry].astype(np.int64) * page_tokens + positions % page_tokens
    lows = np.maximum(kv_base[sequence_of], positions + 1 - window if window else 0)
    items, merge_counts = _items(q_rows, q_indptr, positions, lows, cut)
    batch = RaggedBatch(
        page_tokens=page_tokens,
        window=window,
        q_indptr=q_indptr.astype(np.int32),
        kv_len=kv_len.astype(np.int32),
        kv_base=kv_base.astype(np.int32),
        page_indptr=page_indptr.astype(np.int32),
        page_ids=page_ids,
        items=items,
        merge_indptr=_indptr(merge_counts).astype(np.int32),
        slots=slots,
        positions=positions.astype(np.int32),
    )
    return batch if capacity is None else padded(batch, capacity)


def _check_sequences(
    q_rows: Int64s, kv_len: Int64s, kv_base: Int64s, entries: Int64s, page_tokens: int, window: int
) -> None:
    if not len(q_rows):
        return
    if int(min(q_rows.min(), kv_len.min(), kv_base.min())) < 0 or int(kv_len.max()) > INT32_MAX:
        raise KernelInputError(f"rows, lengths and bases must lie in [0, {INT32_MAX}]")
    needed = np.where(q_rows > 0, -(-kv_len // page_tokens) - kv_base // page_tokens, 0)
    lowest = np.maximum(kv_len - q_rows + 1 - window, 0) if window else np.zeros_like(kv_len)
    for wrong, why in (
        (q_rows > kv_len, "has more rows than tokens"),
        (entries < needed, "has fewer page entries than its tokens need"),
        ((q_rows > 0) & (kv_base > lowest), "reads below its first retained token"),
    ):
        if bool(wrong.any()):
            s = int(np.argmax(wrong))
            raise KernelInputError(
                f"sequence {s} {why}: {q_rows[s]} rows, {kv_len[s]} tokens from {kv_base[s]} on, "
                f"{entries[s]} entries of {page_tokens} tokens, window {window}"
            )


def _items(
    q_rows: Int64s, q_indptr: Int64s, positions: Int64s, lows: Int64s, cut: Cut
) -> tuple[Int32s, Int64s]:
    """Items of every sequence in order, and the number of partial slots of every row."""
    per_sequence = -(-q_rows // cut.rows_per_item)
    sequence = np.repeat(np.arange(len(q_rows)), per_sequence)
    index = np.arange(len(sequence)) - np.repeat(_indptr(per_sequence)[:-1], per_sequence)
    first = q_indptr[sequence] + index * cut.rows_per_item
    count = np.minimum(cut.rows_per_item, q_indptr[sequence + 1] - first)
    items = np.empty((len(sequence), ITEM_FIELDS), np.int32)
    items[:, SEQ] = sequence
    items[:, Q0] = first
    items[:, ROWS] = count
    items[:, KV_LO] = lows[first]
    items[:, KV_HI] = positions[first + count - 1] + 1
    items[:, SLOT] = SKIPPED_SLOT
    merge_counts = np.zeros(len(positions), np.int64)
    if cut.split_keys:
        items = _split(items, merge_counts)
    return items, merge_counts


def _split(items: Int32s, merge_counts: Int64s) -> Int32s:
    """Cut one-row items that reach over several spans into one item a span."""
    span = KV_SPAN_TOKENS
    first_span = items[:, KV_LO] // span
    spans = np.maximum(1, -(-items[:, KV_HI] // span) - first_span)
    spans = np.where(items[:, ROWS] == 1, spans, 1).astype(np.int64)
    cut = np.repeat(items, spans, axis=0)
    index = np.arange(len(cut)) - np.repeat(_indptr(spans)[:-1], spans)
    several = np.repeat(spans > 1, spans)
    start = (np.repeat(first_span, spans) + index) * span
    low = np.maximum(cut[:, KV_LO], start)
    high = np.minimum(cut[:, KV_HI], start + span)
    cut[:, KV_LO] = np.where(several, low, cut[:, KV_LO])
    cut[:, KV_HI] = np.where(several, high, cut[:, KV_HI])
    cut[several, SLOT] = np.arange(int(several.sum()))
    merge_counts[items[spans > 1, Q0]] = spans[spans > 1]
    return cut


def _indptr(counts: Int64s) -> Int64s:
    total = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=total[1:])
    return total


def padded(batch: RaggedBatch, capacity: Capacity) -> RaggedBatch:
    """The batch with arrays of fixed sizes; what is padded is skipped by every kernel.

    Raises KernelInputError when the batch passes the capacity.
    """
    entries = int(batch.page_indptr[-1])
    for name, have, most in (
        ("sequences", batch.sequences, capacity.sequences),
        ("rows", batch.rows, capacity.rows),
        ("page entries", entries, capacity.page_entries),
        ("items", len(batch.items), capacity.items),
    ):
        if have > most:
            raise KernelInputError(f"the step has {have} {name}, the capacity is {most}")
    items = np.full((capacity.items, ITEM_FIELDS), 0, np.int32)
    items[:, SEQ] = -1
    items[: len(batch.items)] = batch.items
    return RaggedBatch(
        page_tokens=batch.page_tokens,
        window=batch.window,
        q_indptr=_grown(batch.q_indptr, capacity.sequences + 1, int(batch.q_indptr[-1])),
        kv_len=_grown(batch.kv_len, capacity.sequences, 0),
        kv_base=_grown(batch.kv_base, capacity.sequences, 0),
        page_indptr=_grown(batch.page_indptr, capacity.sequences + 1, entries),
        page_ids=_grown(batch.page_ids, capacity.page_entries, 0),
        items=items,
        merge_indptr=_grown(batch.merge_indptr, capacity.rows + 1, batch.partial_slots),
        slots=np.concatenate(
            [batch.slots, np.full(capacity.rows - batch.rows, SKIPPED_SLOT, np.int64)]
        ),
        positions=_grown(batch.positions, capacity.rows, 0),
    )


def _grown(array: Int32s, size: int, fill: int) -> Int32s:
    return np.concatenate([array, np.full(size - len(array), fill, np.int32)])
