"""The planner of a ragged batch, against a plain walk over every row."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetrail.kernels.abi import KernelInputError, check_batch, check_slots
from pagetrail.kernels.plan import Capacity, Cut, SequenceRows, plan

PAGES = 64


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[SequenceRows], int, int]:
    page_tokens = draw(st.sampled_from([1, 4, 16, 32]))
    window = draw(st.sampled_from([0, 0, 3, 20]))
    free = list(draw(st.permutations(range(PAGES))))
    sequences = []
    for _ in range(draw(st.integers(0, 4))):
        length = draw(st.integers(0, min(70, len(free) * page_tokens)))
        rows = draw(st.integers(0, length))
        base = 0
        if window:
            lowest = max(0, length - rows + 1 - window)
            base = draw(st.integers(0, lowest)) if rows else 0
        count = -(-length // page_tokens) - base // page_tokens
        table = np.array([free.pop() for _ in range(count)], np.int32)
        sequences.append(SequenceRows(rows, length, table, base))
    return sequences, page_tokens, window


@settings(max_examples=200, deadline=None)
@given(steps(), st.integers(1, 40), st.booleans())
def test_slots_positions_and_items_equal_a_walk_over_the_rows(
    step: tuple[list[SequenceRows], int, int], rows_per_item: int, split: bool
) -> None:
    sequences, page_tokens, window = step
    batch = plan(sequences, page_tokens, window=window, cut=Cut(rows_per_item, split))
    check_batch(batch, PAGES)
    row = 0
    visible = []
    for sequence in sequences:
        for index in range(sequence.q_rows):
            position = sequence.kv_len - sequence.q_rows + index
            page = sequence.page_ids[position // page_tokens - sequence.kv_base // page_tokens]
            assert batch.slots[row] == int(page) * page_tokens + position % page_tokens
            assert batch.positions[row] == position
            low = max(sequence.kv_base, position + 1 - window if window else 0)
            visible.append((low, position + 1))
            row += 1
    assert row == batch.rows

    partial: dict[int, list[tuple[int, int, int]]] = {}
    whole = []
    for seq, q0, count, low, high, slot in batch.items.tolist():
        assert batch.q_indptr[seq] <= q0 < q0 + count <= batch.q_indptr[seq + 1]
        if slot < 0:
            whole += range(q0, q0 + count)
            assert low <= min(visible[r][0] for r in range(q0, q0 + count))
            assert high == max(visible[r][1] for r in range(q0, q0 + count))
        else:
            assert count == 1
            assert low // 256 == (high - 1) // 256
            partial.setdefault(q0, []).append((slot, low, high))
    assert sorted(whole + list(partial)) == list(range(batch.rows))
    for r in range(batch.rows):
        first, last = int(batch.merge_indptr[r]), int(batch.merge_indptr[r + 1])
        spans = partial.get(r, [])
        assert [slot for slot, _, _ in spans] == list(range(first, last))
        if spans:
            assert spans[0][1] == visible[r][0]
            assert spans[-1][2] == visible[r][1]
            assert all(a[2] == b[1] for a, b in itertools.pairwise(spans))


def table(*ids: int) -> np.ndarray:
    return np.array(ids, np.int32)


@pytest.mark.parametrize(
    ("sequence", "window", "message"),
    [
        (SequenceRows(3, 2, table(0)), 0, "more rows than tokens"),
        (SequenceRows(1, 17, table(0)), 0, "fewer page entries"),
        (SequenceRows(1, 40, table(1, 2), kv_base=16), 0, "below its first retained"),
        (SequenceRows(2, 40, table(1, 2), kv_base=16), 24, "below its first retained"),
        (SequenceRows(-1, 4, table(0)), 0, "must lie in"),
    ],
)
def test_a_sequence_that_cannot_run_is_refused_by_name(
    sequence: SequenceRows, window: int, message: str
) -> None:
    with pytest.raises(KernelInputError, match=message):
        plan([sequence], 16, window=window)


@pytest.mark.parametrize("page_tokens", [0, 3, -16, 1 << 17])
def test_a_page_size_that_is_no_power_of_two_in_bounds_is_refused(page_tokens: int) -> None:
    with pytest.raises(KernelInputError, match="power of two"):
        plan([], page_tokens)


def test_a_batch_padded_to_a_capacity_keeps_its_rows_and_skips_the_rest() -> None:
    sequences = [SequenceRows(2, 20, table(3, 4)), SequenceRows(1, 5, table(7))]
    small = plan(sequences, 16)
    big = plan(sequences, 16, capacity=Capacity(sequences=5, rows=8, page_entries=9, items=6))
    check_batch(big, PAGES)
    assert (big.slots[:3] == small.slots).all()
    assert (big.slots[3:] == -1).all()
    assert (big.items[2:, 0] == -1).all()
    assert big.q_indptr.tolist() == [0, 2, 3, 3, 3, 3]
    assert len(big.merge_indptr) == 9
    with pytest.raises(KernelInputError, match="3 rows, the capacity is 2"):
        plan(sequences, 16, capacity=Capacity(5, 2, 9, 6))


def test_batches_that_point_outside_the_pool_are_refused() -> None:
    batch = plan([SequenceRows(1, 20, table(3, 4))], 16)
    check_batch(batch, 5)
    with pytest.raises(KernelInputError, match="page ids must lie in"):
        check_batch(batch, 4)
    with pytest.raises(KernelInputError, match="needs 2"):
        check_batch(dataclasses.replace(batch, page_indptr=table(0, 1)), 5)
    with pytest.raises(KernelInputError, match="never fall"):
        check_batch(dataclasses.replace(batch, q_indptr=table(0, -1)), 5)


def test_two_rows_on_one_slot_and_a_slot_past_the_pool_are_refused() -> None:
    check_slots(np.array([-1, 3, -1, 0]), 4)
    with pytest.raises(KernelInputError, match="slot 3 is written by two rows"):
        check_slots(np.array([3, 1, 3]), 4)
    with pytest.raises(KernelInputError, match="past the pool"):
        check_slots(np.array([4]), 4)
