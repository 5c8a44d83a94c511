"""What eviction may and may not do, for every residency evaluator."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from functools import cmp_to_key
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_inputs import (
    MS,
    EvictCandidate,
    EvictRows,
    EvictRun,
    PageModel,
    column,
    entry,
    evaluate,
    evict_inputs,
    shared_runs,
    trees,
)

from pagetrail.catalog.errors import BadInputError
from pagetrail.controlplane.policy.inputs import EvictReason
from pagetrail.controlplane.policy.ratios import comparable
from pagetrail.controlplane.policy.registry import EVALUATORS

LEAF_LRU = "residency/leaf-lru@1"
VALUE = "residency/value-density@1"
RESIDENCY = sorted(name for name in EVALUATORS if name.startswith("residency/"))


def test_the_cold_entry_goes_before_the_hot_one() -> None:
    # 0.1 x (10 - 5) ms over 2 pages = 0.25 ms; 0.9 x (20 - 2) ms over 2 pages = 8.1 ms
    hot = entry(1, 0, reuse_ppm=900_000, recompute_ns=20 * MS, reload_ns=2 * MS)
    cold = entry(2, 1, last_access=9, reuse_ppm=100_000, recompute_ns=10 * MS, reload_ns=5 * MS)
    answer = evaluate(VALUE, evict_inputs([2], [EvictRun((2,), 2, 1)] * 2, [hot, cold]))
    assert answer.choice.victims == ((2, 2),)
    assert answer.choice.freed == (2,)
    assert answer.reason == EvictReason.REACHED
    assert answer.tie_break == 0
    assert column(VALUE, answer, "entry") == (1, 2)
    assert column(VALUE, answer, "value_ns") == (16_200_000, 500_000)  # over 2 pages: 8.1, 0.25 ms
    assert column(VALUE, answer, "pages") == (2, 2)


def test_forks_that_share_a_page_go_together_and_only_when_both_may() -> None:
    shared, other = EvictRun((1,), 1, 2), EvictRun((1,), 1, 1)
    a, b = entry(1, 0), entry(2, 0, last_access=1)
    dear = entry(3, 1, last_access=2, reuse_ppm=900_000, recompute_ns=20 * MS)
    both = evaluate(VALUE, evict_inputs([1], [shared, other], [a, b, dear]))
    assert both.choice.victims == ((1, 1), (2, 1))
    assert both.choice.freed == (1,)
    held = msgspec.structs.replace(b, pinned=True)
    instead = evaluate(VALUE, evict_inputs([1], [shared, other], [a, held, dear]))
    assert instead.choice.victims == ((3, 1),)
    assert column(VALUE, instead, "reason") == (
        EvictReason.SHARED,
        EvictReason.PINNED,
        EvictReason.CHOSEN,
    )


def test_value_density_spares_what_is_not_durable_and_its_untiered_form_does_not() -> None:
    inputs = evict_inputs([1], [EvictRun((1,), 1, 1)], [entry(1, 0, durable=False)])
    tiered, untiered = evaluate(VALUE, inputs), evaluate(VALUE.replace("@", "-untiered@"), inputs)
    assert (tiered.reason, tiered.choice.shortfall) == (EvictReason.SHORTFALL, (1,))
    assert column(VALUE, tiered, "reason") == (EvictReason.NOT_DURABLE,)
    assert untiered.choice.victims == ((1, 1),)


def test_a_plan_that_cannot_reach_the_need_evicts_nothing_and_says_what_is_short() -> None:
    runs = [EvictRun((3,), 3, 1), EvictRun((9,), 9, 2)]
    answer = evaluate(LEAF_LRU, evict_inputs([5], runs, [entry(1, 0), entry(2, 1)]))
    assert answer.choice == type(answer.choice)(victims=(), freed=(0,), shortfall=(2,))
    assert column(LEAF_LRU, answer, "reason") == (EvictReason.SHORTFALL, EvictReason.SHARED)


def test_a_parent_goes_after_its_last_child_and_only_as_far_as_needed() -> None:
    runs = [EvictRun((4,), 4, 2), EvictRun((2,), 2, 1), EvictRun((5,), 5, 1)]
    candidates = [entry(1, 0), entry(2, 1, 0, last_access=1), entry(3, 2, last_access=2)]
    little = evaluate(LEAF_LRU, evict_inputs([1], runs, candidates))
    assert little.choice.victims == ((2, 1),)
    assert column(LEAF_LRU, little, "reason") == (
        EvictReason.NOT_A_LEAF,
        EvictReason.CHOSEN,
        EvictReason.NOT_NEEDED,
    )
    more = evaluate(LEAF_LRU, evict_inputs([3], runs, candidates))
    assert more.choice.victims == ((2, 2), (1, 1))


def test_nothing_is_evicted_for_no_need() -> None:
    answer = evaluate(LEAF_LRU, evict_inputs([0], [EvictRun((1,), 1, 1)], [entry(1, 0)]))
    assert (answer.choice.victims, answer.reason) == ((), EvictReason.REACHED)
    assert column(LEAF_LRU, answer, "reason") == (EvictReason.NOT_NEEDED,)


def test_a_victim_whose_pages_the_rest_can_do_without_is_left_out() -> None:
    # Only group 1 is short; the oldest entry holds none of its pages.
    runs = [EvictRun((3, 0), 3, 1), EvictRun((3, 2), 3, 1)]
    answer = evaluate(
        LEAF_LRU, evict_inputs([0, 2], runs, [entry(1, 0), entry(2, 1, last_access=1)])
    )
    assert answer.choice.victims == ((2, 2),)
    assert answer.choice.freed == (2, 2)
    assert column(LEAF_LRU, answer, "reason") == (EvictReason.FREES_NOTHING, EvictReason.CHOSEN)


def test_the_tie_break_says_which_criterion_settled_the_last_victim() -> None:
    runs = [EvictRun((1,), 1, 1)] * 2

    def tie_break(name: str, **second: int) -> int:
        answer = evaluate(name, evict_inputs([1], runs, [entry(1, 0), entry(2, 1, **second)]))
        assert answer.choice.victims == ((1, 1),)
        return answer.tie_break

    assert tie_break(LEAF_LRU, last_access=1) == 0
    assert tie_break(LEAF_LRU) == 1
    assert tie_break(VALUE, reuse_ppm=500_000, recompute_ns=10) == 0
    assert tie_break(VALUE, last_access=1) == 1
    assert tie_break(VALUE) == 2


def test_an_entry_listed_twice_is_refused() -> None:
    inputs = evict_inputs([1], [EvictRun((1,), 1, 1)] * 2, [entry(1, 0), entry(1, 1)])
    with pytest.raises(BadInputError, match="two eviction candidates have the entry number 1"):
        evaluate(LEAF_LRU, inputs)


def density(c: EvictCandidate, inputs: EvictRows) -> Fraction:
    gain = max(0, c.recompute_ns - c.reload_ns)
    value = c.reuse_ppm * gain // 1_000_000 + c.sharing_ns + c.slo_ns
    return Fraction(value, sum(inputs.runs[c.runs[0]].pages))


def gdsf_priority(c: EvictCandidate, inputs: EvictRows) -> Fraction:
    cost = c.recompute_ns + c.recompute_ns * 1_000 * c.depth_columns // 1_000_000
    return 100_000 * c.last_access + Fraction(c.accesses * cost, sum(inputs.runs[c.runs[0]].pages))


def faded_count(c: EvictCandidate, inputs: EvictRows) -> int:
    doublings = max(n for n in range(65) if 2**n <= (c.accesses + 1) ** 16)
    return 16 * c.last_access + 4_096 * doublings


# What each evaluator puts before last access and entry number, written down a second time.
LEADING: dict[str, Callable[[EvictCandidate, EvictRows], Any]] = {
    LEAF_LRU: lambda c, inputs: 0,
    VALUE: density,
    "residency/value-density-untiered@1": density,
    "residency/lru-2@1": lambda c, inputs: c.previous_access,
    "residency/seed-order@1": lambda c, inputs: (not c.superseded, c.resumed),
    "residency/lfu-aging@1": faded_count,
    "residency/gdsf@1": gdsf_priority,
}


def leaf_columns_one_by_one(name: str, inputs: EvictRows) -> list[tuple[int, int]] | None:
    """Evict single page columns of the best leaf; None when the need is out of reach."""
    left = {c.entry: inputs.runs[c.runs[0]].columns for c in inputs.candidates}
    holders = [run.holders for run in inputs.runs]
    by_entry = {c.entry: c for c in inputs.candidates}
    may_go = [
        c
        for c in inputs.candidates
        if not c.pinned and not c.dirty and (c.durable or name != VALUE)
    ]
    cuts: list[tuple[int, int]] = []
    for _ in range(max(inputs.need)):
        leaves = [c for c in may_go if left[c.entry] and holders[c.runs[0]] == 1]
        if not leaves:
            return None
        number = min(leaves, key=lambda c: (LEADING[name](c, inputs), c.last_access, c.entry)).entry
        left[number] -= 1
        if not left[number]:
            for run in by_entry[number].runs:
                holders[run] -= 1
        if cuts and cuts[-1][0] == number:
            cuts[-1] = (number, cuts[-1][1] + 1)
        else:
            cuts.append((number, 1))
    return cuts


def test_every_residency_evaluator_has_its_order_written_down_here() -> None:
    assert sorted(LEADING) == RESIDENCY


def check_equals_giving_up_single_columns(name: str, inputs: EvictRows) -> None:
    """In a tree a plan is the same as giving up single columns of the best leaf."""
    expected = leaf_columns_one_by_one(name, inputs)
    choice = evaluate(name, inputs).choice
    assert list(choice.victims) == (expected or [])
    assert any(choice.shortfall) == (expected is None)


def check_every_cut_page_has_one_holder(name: str, inputs: EvictRows) -> None:
    """In a tree a page is cut only when the entry that owns it holds it alone."""
    model = PageModel(inputs)
    for number, columns in evaluate(name, inputs).choice.victims:
        tail = model.tail(number, columns)
        assert tail
        assert all(held_by == {f"entry {number}"} for held_by in tail)
        model.cut(number, columns)


def most_that_can_go(name: str, inputs: EvictRows) -> tuple[int, ...]:
    """Pages that are free once everything that may go has gone, found without any order."""
    model = PageModel(inputs)
    may_go = {
        c.entry
        for c in inputs.candidates
        if not c.pinned and not c.dirty and (c.durable or name != VALUE)
    }
    owners: dict[int, set[int]] = {}
    for c in inputs.candidates:
        owners.setdefault(c.runs[0], set()).add(c.entry)
    gone: set[int] = set()
    while True:
        held = [
            run.holders - sum(number in c.runs and c.entry in gone for c in inputs.candidates)
            for number, run in enumerate(inputs.runs)
        ]
        now = {
            number
            for run, numbers in owners.items()
            if numbers <= may_go and held[run] == len(numbers)
            for number in numbers
        } - gone
        if not now:
            return model.freed()
        for number in now:
            model.cut(number, inputs.runs[model.runs_of[number][0]].columns)
        gone |= now


def check_frees_what_it_says(name: str, inputs: EvictRows) -> None:
    """A plan frees what it says, as seen page by page, or nothing when all is too little."""
    answer = evaluate(name, inputs)
    choice = answer.choice
    model = PageModel(inputs)
    assert model.freed() == (0,) * len(inputs.need)
    spared = {c.entry for c in inputs.candidates if c.pinned or c.dirty}
    for number, columns in choice.victims:
        assert number not in spared
        model.cut(number, columns)
    assert model.freed() == choice.freed
    assert sum(column(name, answer, "freed_pages")) == sum(choice.freed)
    reachable = most_that_can_go(name, inputs)
    assert choice.shortfall == tuple(
        max(0, need - pages) for need, pages in zip(inputs.need, reachable, strict=True)
    )
    if any(choice.shortfall):
        assert choice.victims == ()
        assert answer.reason == EvictReason.SHORTFALL
    else:
        assert all(pages >= need for pages, need in zip(choice.freed, inputs.need, strict=True))
        assert answer.reason == EvictReason.REACHED


def check_no_victim_is_superfluous(name: str, inputs: EvictRows) -> None:
    """Without any one of them the need is not met, or another's own pages are still held."""
    victims = evaluate(name, inputs).choice.victims
    for left_out in victims:
        rest = [victim for victim in victims if victim != left_out]
        model = PageModel(inputs)
        for number, columns in rest:
            model.cut(number, columns)
        short = any(a < b for a, b in zip(model.freed(), inputs.need, strict=True))
        assert short or any(held_by for cut in rest for held_by in model.tail(*cut))


def check_reasons_are_true(name: str, inputs: EvictRows) -> None:
    answer = evaluate(name, inputs)
    chosen = {number for number, _ in answer.choice.victims}
    rows = zip(inputs.candidates, column(name, answer, "reason"), strict=True)
    for candidate, reason in rows:
        holders = inputs.runs[candidate.runs[0]].holders
        listed = sum(candidate.runs[0] in c.runs for c in inputs.candidates)
        assert (reason == EvictReason.CHOSEN) == (candidate.entry in chosen)
        assert (reason == EvictReason.PINNED) == candidate.pinned
        if reason == EvictReason.SHARED:
            assert holders > 1
        if reason == EvictReason.NOT_A_LEAF:
            assert holders == listed > 1
        if reason == EvictReason.NOT_DURABLE:
            assert not candidate.durable


TREE_CHECKS = (check_equals_giving_up_single_columns, check_every_cut_page_has_one_holder)
CHECKS = (check_frees_what_it_says, check_no_victim_is_superfluous, check_reasons_are_true)


@pytest.mark.parametrize("name", RESIDENCY)
@settings(max_examples=25, deadline=None)
@given(tree=trees() | trees(groups=2), store=shared_runs())
def test_plans_are_right(name: str, tree: EvictRows, store: EvictRows) -> None:
    for check in (*TREE_CHECKS, *CHECKS):
        check(name, tree)
    for check in CHECKS:
        check(name, store)


@pytest.mark.slow
@pytest.mark.parametrize("name", RESIDENCY)
@settings(max_examples=200, deadline=None)
@given(tree=trees() | trees(groups=2), store=shared_runs())
def test_plans_are_right_in_many_more_cases(name: str, tree: EvictRows, store: EvictRows) -> None:
    for check in (*TREE_CHECKS, *CHECKS):
        check(name, tree)
    for check in CHECKS:
        check(name, store)


@pytest.mark.parametrize("name", RESIDENCY)
@settings(max_examples=25, deadline=None)
@given(inputs=trees() | shared_runs(), draw=st.data())
def test_the_order_in_which_inputs_are_gathered_does_not_matter(
    name: str, inputs: EvictRows, draw: st.DataObject
) -> None:
    places = draw.draw(st.permutations(range(len(inputs.runs))))
    runs = [inputs.runs[places.index(place)] for place in range(len(places))]
    candidates = [
        msgspec.structs.replace(c, runs=tuple(places[run] for run in c.runs))
        for c in draw.draw(st.permutations(inputs.candidates))
    ]
    assert evaluate(name, evict_inputs(inputs.need, runs, candidates)) == evaluate(name, inputs)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 9) | st.integers(0, 2**80), st.integers(1, 9) | st.integers(1, 2**40)
        ),
        min_size=1,
        max_size=12,
    )
)
def test_scaled_floors_compare_as_fractions_do(pairs: list[tuple[int, int]]) -> None:
    keys = comparable([n for n, _ in pairs], [d for _, d in pairs])
    for (n, d), key in zip(pairs, keys, strict=True):
        for (m, e), other in zip(pairs, keys, strict=True):
            assert (key < other) == (Fraction(n, d) < Fraction(m, e)) == (n * e < m * d)
            assert (key == other) == (n * e == m * d)


def test_a_fraction_over_zero_comes_after_all_others() -> None:
    low, high, none = comparable([1, 2**90, 0], [3, 1, 0])
    assert low < high < none
    assert comparable([], []) == []


@settings(deadline=None)
@given(shared_runs())
def test_the_order_by_density_is_total_and_that_of_cross_multiplication(
    inputs: EvictRows,
) -> None:
    answer = evaluate(VALUE, inputs)
    rows = [
        (value, pages, last, number)
        for value, pages, last, number in zip(
            *(column(VALUE, answer, t) for t in ("value_ns", "pages", "last_access", "entry")),
            strict=True,
        )
        if pages
    ]

    def compare(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        left, right = (a[0] * b[1], a[2], a[3]), (b[0] * a[1], b[2], b[3])
        return (left > right) - (left < right)

    density = comparable([row[0] for row in rows], [row[1] for row in rows])
    keyed = [(key, *row[2:]) for key, row in zip(density, rows, strict=True)]
    assert len(set(keyed)) == len(keyed)
    assert [row for _, row in sorted(zip(keyed, rows, strict=True))] == sorted(
        rows, key=cmp_to_key(compare)
    )


def test_products_beyond_63_bits_are_exact() -> None:
    # The densities differ only in the last place of a 100-bit product.
    runs = [EvictRun((2**20,), 2**20, 1), EvictRun((2**20 - 1,), 2**20 - 1, 1)]
    for a_ns, b_ns in [(2**60, 2**60 - 2**40), (2**60, 2**60 - 2**40 - 1)]:
        a = entry(1, 0, reuse_ppm=1_000_000, recompute_ns=a_ns)
        b = entry(2, 1, reuse_ppm=1_000_000, recompute_ns=b_ns)
        smaller = 1 if a_ns * (2**20 - 1) <= b_ns * 2**20 else 2
        answer = evaluate(VALUE, evict_inputs([1], runs, [a, b]))
        assert answer.choice.victims == ((smaller, 1),)
        assert answer.tie_break == (0 if a_ns * (2**20 - 1) != b_ns * 2**20 else 2)
