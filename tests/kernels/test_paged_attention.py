"""Paged attention against float64, over poisoned pools, and the invariances of its bits."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
from attention_cases import Case, build, relative_error
from pairwise import pairwise

from pagetrail.kernels.abi import KernelInputError, Storage
from pagetrail.kernels.cpu import CpuDevice
from pagetrail.kernels.device import StepDevice
from pagetrail.kernels.oracle import Doubles
from pagetrail.kernels.plan import Cut, SequenceRows, plan

TOLERANCE = 2e-6  # of fp32 arithmetic; the oracle reads the rounded pages
# Where weights are rounded to bf16, one that fp32's error moves over the middle between two of its
# numbers is another by 2^-8 of itself: a few in ten thousand.
PAIRED_TOLERANCE, PAIRED_LSE = 1e-4, 1e-3
BF16_TOLERANCE = 5e-3  # of those roundings themselves, as on a card

AXES = {
    "page_tokens": [16, 32, 1, 128],
    "length": ["0", "1", "ps-1", "ps", "ps+1", "129", "2050"],
    "window": ["0", "1", "ps", "ps+1", "4000"],
    "group": [1, 2, 3, 4, 5, 7, 8, 16],
    "width": [64, 96, 128, 256, 40],
    "storage": list(Storage),
    "cut": [Cut(), Cut(1, True), Cut(3, True), Cut(5)],
    "rows": ["decode", "prefill", "mixed"],
}


def number(text: str, page_tokens: int) -> int:
    return int(eval_of[text](page_tokens)) if text in eval_of else int(text)


eval_of = {
    "ps-1": lambda ps: ps - 1,
    "ps": lambda ps: ps,
    "ps+1": lambda ps: ps + 1,
}


def case_of(chosen: dict) -> Case:
    ps = chosen["page_tokens"]
    length = number(chosen["length"], ps)
    lengths = {
        "decode": ((min(length, 1), length), (1, 70)),
        "prefill": ((min(length, 90), length), (40, 40)),
        "mixed": ((min(length, 5), length), (0, 0), (1, 33), (0, 50), (7, 19)),
    }[chosen["rows"]]
    return Case(
        lengths,
        page_tokens=ps,
        window=number(chosen["window"], ps),
        kv_heads=2,
        group=chosen["group"],
        width=chosen["width"],
        storage=chosen["storage"],
        cut=chosen["cut"],
    )


MATRIX = pairwise(AXES)
ANSWERS: dict[tuple[Case, bool], tuple[Doubles, Doubles]] = {}


def test_the_matrix_covers_every_pair_of_values() -> None:
    for (a, va), (b, vb) in itertools.combinations(AXES.items(), 2):
        for x, y in itertools.product(va, vb):
            assert any(row[a] == x and row[b] == y for row in MATRIX), (a, x, b, y)


def test_every_pair_of_the_matrix_equals_float64(device: StepDevice) -> None:
    for chosen in MATRIX:
        built = build(case_of(chosen), device)
        built.known = ANSWERS
        out, lse = built.run()
        want, want_lse = built.oracle()
        assert np.isfinite(out).all(), chosen
        most, lse_most = (PAIRED_TOLERANCE, PAIRED_LSE) if built.paired else (TOLERANCE, 2e-5)
        assert relative_error(out.reshape(want.shape), want) < most, chosen
        np.testing.assert_allclose(lse, want_lse, atol=lse_most, err_msg=str(chosen))


def test_rounding_to_bf16_costs_no_more_than_on_a_card(device: StepDevice) -> None:
    for chosen in MATRIX:
        if chosen["storage"] is Storage.BF16:
            built = build(case_of(chosen), device)
            want, _ = built.oracle(paired=False)
            assert relative_error(built.run()[0].reshape(want.shape), want) < BF16_TOLERANCE, chosen


RAGGED = Case(
    ((1, 1), (1, 300), (40, 129), (3, 530), (0, 0), (20, 20), (1, 1025)), group=3, window=0
)


@pytest.mark.parametrize("window", [0, 17, 300])
@pytest.mark.parametrize("storage", list(Storage))
def test_no_bit_depends_on_pages_splits_items_or_threads(
    device: StepDevice, storage: Storage, window: int
) -> None:
    case = dataclasses.replace(RAGGED, storage=storage, window=window)
    out, lse = build(case, device).run()
    for change in (
        {"page_order_seed": 7},
        {"page_tokens": 32},
        {"page_tokens": 1},
        {"page_tokens": 512},
        {"cut": Cut(1, True)},
        {"cut": Cut(7, True)},
        {"cut": Cut(1)},
    ):
        other, other_lse = build(dataclasses.replace(case, **change), device).run()
        np.testing.assert_array_equal(other.view(np.uint32), out.view(np.uint32), str(change))
        np.testing.assert_array_equal(other_lse, lse, str(change))


def test_a_row_has_the_same_bits_alone_as_among_neighbours(device: StepDevice) -> None:
    built = build(RAGGED, device)
    out, _ = built.run()
    row = 0
    for s, (rows, tokens) in enumerate(RAGGED.lengths):
        table = built.batch.page_ids[built.batch.page_indptr[s] : built.batch.page_indptr[s + 1]]
        for index in range(rows):
            # Row `index` as the only row of a step in which the sequence ends with it.
            alone = plan([SequenceRows(1, tokens - rows + index + 1, table)], RAGGED.page_tokens)
            single = dataclasses.replace(built, q=built.q[row : row + 1])
            got, _ = single.run(alone)
            np.testing.assert_array_equal(got[0].view(np.uint32), out[row].view(np.uint32))
            row += 1


def test_one_thread_equals_two() -> None:
    out, lse = build(RAGGED, CpuDevice(1)).run()
    other, other_lse = build(dataclasses.replace(RAGGED, cut=Cut(1, True)), CpuDevice(2)).run()
    np.testing.assert_array_equal(other.view(np.uint32), out.view(np.uint32))
    np.testing.assert_array_equal(other_lse, lse)


@pytest.mark.parametrize("window", [7, 8, 9])
def test_a_window_includes_the_row_itself(device: StepDevice, window: int) -> None:
    # 8 keys: a window of 7 hides the first, 8 and 9 see all. V holds the position.
    case = Case(((1, 8),), group=1, kv_heads=1, width=16, window=window)
    built = build(case, device)
    built.q[:] = 0.0
    values = built.values.array[0].reshape(-1, 16)
    values[built.batch.page_ids[0] * 16 + np.arange(8)] = np.arange(8, dtype=np.float32)[:, None]
    out, _ = built.run()
    visible = np.arange(8)[max(0, 8 - window) :]
    np.testing.assert_allclose(out[0], visible.mean(), rtol=1e-6)


def test_thirteen_keys_in_pages_of_four_ignore_the_poisoned_tail(device: StepDevice) -> None:
    built = build(Case(((1, 13), (5, 13)), page_tokens=4), device)
    out, lse = built.run()
    want, _ = built.oracle()
    assert np.isfinite(out).all()
    assert np.isfinite(lse).all()
    assert relative_error(out.reshape(want.shape), want) < TOLERANCE


def test_a_row_that_sees_no_key_gives_zero_and_minus_infinity(device: StepDevice) -> None:
    built = build(Case(((1, 5),)), device)
    nothing = dataclasses.replace(
        built.batch, kv_len=np.zeros(1, np.int32), items=built.batch.items.copy()
    )
    nothing.items[0, 3:5] = 0
    out, lse = built.run(nothing)
    assert (out == 0.0).all()
    assert (lse == -np.inf).all()


@pytest.mark.parametrize("group", [5, 6, 7, 16, 40])
def test_groups_of_any_size_equal_the_oracle_head_by_head(device: StepDevice, group: int) -> None:
    built = build(Case(((1, 100), (9, 40)), group=group, kv_heads=3, width=32), device)
    out, _ = built.run()
    want, _ = built.oracle()
    got = out.reshape(want.shape)
    for head in range(want.shape[1]):
        assert relative_error(got[:, head], want[:, head]) < TOLERANCE


@pytest.mark.parametrize("storage", list(Storage))
@pytest.mark.parametrize("chunk", [1, 16, 50, 77])
def test_chunked_prefill_sees_keys_up_to_each_row(
    device: StepDevice, chunk: int, storage: Storage
) -> None:
    tokens = 150
    built = build(Case(((tokens, tokens),), storage=storage), device)
    whole, _ = built.run()
    table = built.batch.page_ids
    for start in range(0, tokens, chunk):
        end = min(tokens, start + chunk)
        part = dataclasses.replace(built, q=built.q[start:end])
        out, _ = part.run(plan([SequenceRows(end - start, end, table)], 16))
        np.testing.assert_array_equal(out.view(np.uint32), whole[start:end].view(np.uint32))


def test_values_of_one_give_one_and_equal_scores_give_the_mean(device: StepDevice) -> None:
    built = build(dataclasses.replace(RAGGED, width=32), device)
    mean, _ = dataclasses.replace(built, q=np.zeros_like(built.q)).run()
    oracle_mean, _ = dataclasses.replace(built, q=np.zeros_like(built.q)).oracle()
    assert relative_error(mean.reshape(oracle_mean.shape), oracle_mean) < TOLERANCE
    built.values.array[~np.isnan(built.values.array)] = 1.0
    out, _ = built.run()
    np.testing.assert_allclose(out, 1.0, rtol=1e-5)


@pytest.mark.parametrize("storage", list(Storage))
@pytest.mark.parametrize("position", [24, 25])  # the first and the second of a pair of keys
@pytest.mark.parametrize("cut", [Cut(), Cut(2)])  # many lines, and few
def test_a_nan_in_another_sequence_or_a_later_row_does_not_spread(
    storage: Storage, position: int, cut: Cut
) -> None:
    device = CpuDevice(1)
    built = build(Case(((30, 30), (1, 20)), storage=storage, cut=cut), device)
    clean, _ = built.run()
    table = built.batch.page_ids
    nan = 0x7FC0 if storage is Storage.BF16 else np.nan
    for pool in (built.keys, built.values):
        pool.array[0, table[position // 16], position % 16] = nan
    out, _ = built.run()
    np.testing.assert_array_equal(out[:position].view(np.uint32), clean[:position].view(np.uint32))
    assert np.isnan(out[position:30]).all()
    np.testing.assert_array_equal(out[30].view(np.uint32), clean[30].view(np.uint32))


@pytest.mark.parametrize("position", [78, 79])
@pytest.mark.parametrize("storage", list(Storage))
def test_a_nan_before_a_window_reaches_only_the_rows_that_see_it(
    storage: Storage, position: int
) -> None:
    device = CpuDevice(1)
    for cut in (Cut(), Cut(2)):
        built = build(Case(((30, 110),), window=20, storage=storage, cut=cut), device)
        clean, _ = built.run()
        nan = 0x7FC0 if storage is Storage.BF16 else np.nan
        for pool in (built.keys, built.values):
            pool.array[0, built.batch.page_ids[position // 16], position % 16] = nan
        out, _ = built.run()
        seeing = position + 20 - 80  # rows stand at 80 and on; as many see the position
        assert np.isnan(out[:seeing]).all()
        np.testing.assert_array_equal(out[seeing:].view(np.uint32), clean[seeing:].view(np.uint32))


@pytest.mark.parametrize("storage", list(Storage))
@pytest.mark.parametrize("window", [1, 2, 3])
def test_rows_that_share_no_key_take_nothing_from_earlier_steps(
    device: StepDevice, storage: Storage, window: int
) -> None:
    case = Case(((17, 17),), group=1, window=window, storage=storage)
    alone, _ = build(dataclasses.replace(case, cut=Cut(1)), device).run()
    built = build(dataclasses.replace(case, cut=Cut(3)), device)
    # Working memory is kept between calls: this one leaves NaN in it.
    without_window = plan([SequenceRows(17, 17, built.batch.page_ids)], case.page_tokens)
    dataclasses.replace(built, q=np.full_like(built.q, np.nan)).run(without_window)
    together, _ = built.run()
    np.testing.assert_array_equal(together.view(np.uint32), alone.view(np.uint32))


def test_evicted_window_pages_need_no_entries(device: StepDevice) -> None:
    built = build(Case(((2, 100),), window=20), device)
    out, _ = built.run()
    table = built.batch.page_ids
    # Row 98 sees keys from 79 on: pages 0..3 (tokens 0..63) may be gone.
    short = plan([SequenceRows(2, 100, table[4:], kv_base=64)], 16, window=20)
    again, _ = built.run(short)
    np.testing.assert_array_equal(again.view(np.uint32), out.view(np.uint32))
    with pytest.raises(KernelInputError, match="below its first retained token"):
        plan([SequenceRows(2, 100, table[5:], kv_base=80)], 16, window=20)


def test_latent_and_rotary_slabs_equal_one_wide_key(device: StepDevice) -> None:
    from pagetrail.kernels.abi import SlabSpec
    from pagetrail.kernels.device import AttentionSpec
    from pagetrail.kernels.oracle import attention as oracle

    rng = np.random.default_rng(0)
    latent = device.allocate(SlabSpec("latent", 1, 1, 64), 4, 16)
    rotary = device.allocate(SlabSpec("rotary", 1, 1, 16), 4, 16)
    for pool in (latent, rotary):
        device.append(
            pool,
            0,
            rng.standard_normal((40, pool.spec.width)).astype(np.float32),
            np.arange(40, dtype=np.int64),
        )
    batch = plan([SequenceRows(3, 40, np.arange(3, dtype=np.int32))], 16)
    q = rng.standard_normal((3, 8 * 80)).astype(np.float32)
    out = np.empty((3, 8 * 64), np.float32)
    device.attention(AttentionSpec(8, 0.1), 0, q, [latent, rotary], latent, batch, out)
    keys = np.concatenate([latent.array[0], rotary.array[0]], axis=3).astype(np.float64)
    want, _ = oracle(
        q.reshape(3, 8, 80).astype(np.float64), keys, latent.array[0].astype(np.float64), batch, 0.1
    )
    assert relative_error(out.reshape(want.shape), want) < TOLERANCE
