"""Which worker, which prefix, and why not the others."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_inputs import (
    MS,
    Boundary,
    RouteCandidate,
    column,
    drawn_inputs,
    evaluate,
    route_inputs,
    worker,
)

from pagetrail.catalog.kinds.content import Tier
from pagetrail.controlplane.policy.inputs import RouteChoice, RouteInputs, RouteReason

NAME = "routing/min-ttft@1"
RECOMPUTE = Boundary(-1, 0, 0, 0)


def route(
    *candidates: RouteCandidate,
    prompt: int = 101,
    new: int = 0,
    excluded: tuple[str, ...] = (),
) -> RouteInputs:
    return route_inputs(prompt, new, excluded, candidates)


GPU = worker(
    "gpu",
    Boundary(Tier.DEVICE, 64, 0, 0),
    queue_ns=5 * MS,
    prefill_ns_per_token=MS // 2,
    first_token_ns=2 * MS,
)
OBJECT = worker("object", Boundary(Tier.OBJECT, 100, 80 * MS, 8 * MS), first_token_ns=2 * MS)
SSD = worker(
    "ssd",
    Boundary(Tier.SSD, 80, 20 * MS, 5 * MS),
    queue_ns=30 * MS,
    prefill_ns_per_token=MS,
    first_token_ns=2 * MS,
)


def test_gpu_beats_ssd_beats_object_with_100_of_101_tokens_processed() -> None:
    # 5 + 36 x 0.5 + 2; max(0, 80) + 8 + 2; max(30, 20) + 5 + 20 x 1 + 2 milliseconds
    answer = evaluate(NAME, route(GPU, OBJECT, SSD))
    assert column(NAME, answer, "ttft_ns") == (25 * MS, 90 * MS, 57 * MS)
    assert answer.choice == RouteChoice("gpu", 1, Tier.DEVICE, 64, 25 * MS)
    assert (answer.reason, answer.tie_break) == (RouteReason.LOWEST_TTFT, 0)
    without_gpu = evaluate(NAME, route(GPU, OBJECT, SSD, excluded=("gpu",)))
    assert without_gpu.choice.worker == "ssd"


def test_losing_one_location_removes_only_that_alternative() -> None:
    both = worker("a", RECOMPUTE, Boundary(Tier.DEVICE, 64, 0, 0), Boundary(Tier.SSD, 80, MS, MS))
    without = msgspec.structs.replace(both, boundaries=both.boundaries[::2])
    rows = list(zip(*evaluate(NAME, route(both)).columns, strict=True))
    fewer = list(zip(*evaluate(NAME, route(without)).columns, strict=True))
    assert [row[1:3] for row in rows] == [(-1, 0), (Tier.DEVICE, 64), (Tier.SSD, 80)]
    assert [row[1:3] for row in fewer] == [(-1, 0), (Tier.SSD, 80)]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"online": False, "model_loaded": False}, RouteReason.OFFLINE),
        ({"model_loaded": False, "context_tokens": 0}, RouteReason.MODEL_NOT_LOADED),
        ({"context_tokens": 109, "free_pages": 0}, RouteReason.CONTEXT_EXCEEDED),
        ({"context_tokens": 110}, RouteReason.ELIGIBLE),
        (
            {"boundaries": (Boundary(Tier.SSD, 100, 0, 0),), "free_pages": 0},
            RouteReason.PREFIX_LONGER_THAN_REQUEST,
        ),
        ({"boundaries": (Boundary(Tier.SSD, 99, 0, 0),)}, RouteReason.ELIGIBLE),
        ({"free_pages": 3, "reclaimable_pages": 3}, RouteReason.INSUFFICIENT_PAGES),
        ({"free_pages": 3, "reclaimable_pages": 4}, RouteReason.ELIGIBLE),
        ({"free_pages": 7, "verify_rows": 3}, RouteReason.INSUFFICIENT_PAGES),
        ({"free_pages": 7, "verify_rows": 2}, RouteReason.ELIGIBLE),
        ({"worker": "x"}, RouteReason.EXCLUDED),
    ],
)
def test_the_first_constraint_that_fails_is_the_reason(
    changes: dict[str, object], reason: RouteReason
) -> None:
    candidate = msgspec.structs.replace(worker("a"), **changes)
    answer = evaluate(NAME, route(candidate, prompt=100, new=10, excluded=("x",)))
    assert column(NAME, answer, "reason") == (reason,)
    assert (answer.reason == RouteReason.NO_WORKER) == (reason != RouteReason.ELIGIBLE)
    assert (answer.choice.worker == "") == (reason != RouteReason.ELIGIBLE)


def test_whole_resident_pages_inside_the_prefix_count_as_credit() -> None:
    # 110 rows are 7 pages of 16; 47 resident rows are 2 whole ones, 40 of them also 2.
    candidate = worker(
        "a",
        RECOMPUTE,
        Boundary(Tier.DEVICE, 47, 0, 0),
        Boundary(Tier.SSD, 40, 0, 0),
        Boundary(Tier.SSD, 99, 0, 0),
        free_pages=5,
    )
    answer = evaluate(NAME, route(candidate, prompt=100, new=10))
    assert column(NAME, answer, "required_pages") == (7, 5, 5, 5)
    assert column(NAME, answer, "reason") == (RouteReason.INSUFFICIENT_PAGES, 0, 0, 0)


def test_ties_go_to_more_cached_tokens_then_worker_id_then_tier() -> None:
    def settled(*candidates: RouteCandidate) -> tuple[str, int, int]:
        answer = evaluate(NAME, route(*candidates))
        return answer.choice.worker, answer.choice.tier, answer.tie_break

    ram = Boundary(Tier.RAM, 32, 0, 0)
    assert settled(worker("b", Boundary(Tier.SSD, 33, 0, 0)), worker("a", ram)) == ("b", 2, 1)
    assert settled(worker("b", ram), worker("a", ram)) == ("a", 1, 2)
    assert settled(worker("a", ram, Boundary(Tier.SSD, 32, 0, 0))) == ("a", 1, 3)
    assert settled(worker("a", ram)) == ("a", 1, 0)


def test_a_router_that_knows_no_worker_says_so() -> None:
    answer = evaluate(NAME, route())
    assert answer.choice == RouteChoice("", 0, -1, 0, 0)
    assert answer.reason == RouteReason.NO_WORKER


def expected_rows(inputs: RouteInputs) -> list[tuple[int, ...]]:
    """Every alternative by the contract's formulas, one by one."""
    rows = []
    tokens_in_all = inputs.prompt_tokens + inputs.max_new_tokens
    ways = list(zip(inputs.starts, inputs.tiers, inputs.tokens, strict=True))
    for number, (place, tier, tokens) in enumerate(ways):
        resident = max((t for p, at, t in ways if p == place and at == Tier.DEVICE), default=0)
        missing = inputs.prompt_tokens - 1 - tokens
        credit = min(resident, tokens) // inputs.page_tokens
        pages = -(-(tokens_in_all + inputs.verify_rows[place]) // inputs.page_tokens) - credit
        failed = [
            (not inputs.online[place], RouteReason.OFFLINE),
            (not inputs.model_loaded[place], RouteReason.MODEL_NOT_LOADED),
            (tokens_in_all > inputs.context_tokens[place], RouteReason.CONTEXT_EXCEEDED),
            (missing < 0, RouteReason.PREFIX_LONGER_THAN_REQUEST),
            (pages > inputs.available_pages[place], RouteReason.INSUFFICIENT_PAGES),
            (inputs.workers[place] in inputs.excluded, RouteReason.EXCLUDED),
        ]
        reason = next((int(why) for fails, why in failed if fails), 0)
        wait_ns = max(inputs.queue_ns[place], inputs.load_ns[number])
        restore_ns = inputs.restore_ns[number]
        prefill_ns = max(0, missing) * inputs.prefill_ns_per_token[place]
        ttft_ns = wait_ns + restore_ns + prefill_ns + inputs.first_token_ns[place]
        costs = (wait_ns, restore_ns, prefill_ns, ttft_ns)
        rows.append((place, tier, tokens, reason, max(0, pages), *costs))
    return rows


def check_against_contract(inputs: RouteInputs) -> None:
    answer = evaluate(NAME, inputs)
    rows = expected_rows(inputs)
    assert list(zip(*answer.columns, strict=True)) == rows
    ranked = sorted(
        (row[8], -row[2], inputs.workers[row[0]].encode(), row[1]) for row in rows if not row[3]
    )
    if not ranked:
        assert answer.choice.worker == ""
        return
    ttft, tokens, name, tier = ranked[0]
    assert answer.choice == RouteChoice(name.decode(), 1, tier, -tokens, ttft)
    if len(ranked) > 1:
        settled = next(n for n in range(4) if ranked[0][n] != ranked[1][n])
        assert answer.tie_break == settled


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_alternatives_and_choice_are_those_of_the_contract(seed: int) -> None:
    inputs = drawn_inputs("ROUTE", seed)
    assert isinstance(inputs, RouteInputs)
    check_against_contract(inputs)


_SELDOM = st.sampled_from([True] * 9 + [False])
_EVEN = st.fixed_dictionaries(
    {
        "online": _SELDOM,
        "model_loaded": _SELDOM,
        "context_tokens": st.sampled_from([8_192] * 9 + [100]),
        "verify_rows": st.sampled_from([4] * 9 + [9]),
        "free_pages": st.sampled_from([1_000] * 9 + [3]),
        "queue_ns": st.integers(0, 3),
        "prefill_ns_per_token": st.integers(0, 2),
    }
)


@settings(deadline=None)
@given(
    st.lists(_EVEN, min_size=1, max_size=8),
    st.integers(1, 200),
    st.sampled_from([(), (), ("w0",)]),
    st.lists(st.sampled_from([(-1, 0), (Tier.DEVICE, 60), (Tier.SSD, 40)]), max_size=2),
)
def test_what_all_workers_have_in_common_makes_no_difference(
    drawn: list[dict[str, int]],
    prompt: int,
    excluded: tuple[str, ...],
    more: list[tuple[int, int]],
) -> None:
    """Few workers differ in anything, so that shortcuts are taken, nearly taken and missed."""
    first = tuple(
        Boundary(tier, tokens, 0, 0) for tier, tokens in dict.fromkeys([(-1, 0), *sorted(more)])
    )
    candidates = [
        worker(f"w{number}", *(first if number == 1 else (RECOMPUTE,)), **changes)
        for number, changes in enumerate(drawn)
    ]
    check_against_contract(route(*candidates, prompt=prompt, new=10, excluded=excluded))
