"""Resident, restored or recomputed: what is on the device first."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from policy_inputs import MS, column, drawn_inputs, evaluate

from pagetrail.catalog.kinds.content import Tier
from pagetrail.controlplane.policy.inputs import (
    RestoreChoice,
    RestoreInputs,
    RestoreOption,
    RestoreReason,
)

NAME = "restore/min-completion@1"


def restore(
    *options: RestoreOption,
    resident: int = 0,
    reusable: int = 100,
    page_tokens: int = 8,
    pages: int = 1_000,
    per_token_ns: int = MS,
) -> RestoreInputs:
    ordered = sorted(options, key=lambda o: (o.tier, o.tokens, o.worker.encode()))
    return RestoreInputs(resident, reusable, page_tokens, pages, per_token_ns, tuple(ordered))


def test_the_lowest_completion_wins_not_the_longest_prefix() -> None:
    answer = evaluate(
        NAME,
        restore(
            RestoreOption(Tier.SSD, "", 64, 10 * MS), RestoreOption(Tier.OBJECT, "", 96, 80 * MS)
        ),
    )
    assert column(NAME, answer, "completion_ns") == (46 * MS, 84 * MS, 100 * MS)
    assert answer.choice == RestoreChoice(Tier.SSD, "", 64, 46 * MS)
    assert answer.reason == RestoreReason.CHEAPEST


def test_at_equal_completion_resident_comes_before_restored_before_recomputed() -> None:
    option = RestoreOption(Tier.SSD, "", 64, 64 * MS)
    recomputed = evaluate(NAME, restore(option, per_token_ns=MS))
    assert (recomputed.choice.tier, recomputed.tie_break) == (Tier.SSD, 1)
    resident = evaluate(NAME, restore(RestoreOption(Tier.SSD, "", 64, 32 * MS), resident=32))
    assert resident.choice == RestoreChoice(Tier.DEVICE, "", 32, 68 * MS)
    assert (resident.reason, resident.tie_break) == (RestoreReason.RESIDENT, 1)


def test_at_equal_cost_more_tokens_win_then_tier_then_holder() -> None:
    def chosen(*options: RestoreOption) -> tuple[int, str, int, int]:
        answer = evaluate(NAME, restore(*options, per_token_ns=0, resident=0))
        choice = answer.choice
        return choice.tier, choice.worker, choice.tokens, answer.tie_break

    free = [
        RestoreOption(tier, name, tokens, 0)
        for tier, name, tokens in [
            (Tier.RAM, "", 32),
            (Tier.PEER, "b", 64),
            (Tier.PEER, "a", 64),
            (Tier.OBJECT, "", 64),
        ]
    ]
    assert chosen(*free[:2]) == (Tier.PEER, "b", 64, 2)
    assert chosen(*free) == (Tier.PEER, "a", 64, 3)


def test_without_any_option_everything_is_recomputed() -> None:
    answer = evaluate(NAME, restore())
    assert answer.choice == RestoreChoice(-1, "", 0, 100 * MS)
    assert answer.reason == RestoreReason.RECOMPUTE


def test_under_pressure_at_most_the_allocated_rows_are_used() -> None:
    # 32 rows are resident, 48 are known elsewhere, 40 are allocated: 4 + 1 pages of 8.
    ends = [RestoreOption(Tier.PEER, "p", tokens, 0) for tokens in (40, 48)]
    answer = evaluate(NAME, restore(*ends, resident=32, pages=1))
    assert answer.choice.tokens == 40
    assert column(NAME, answer, "reason") == (0, 0, RestoreReason.PRESSURE, 0)
    only_long = evaluate(NAME, restore(ends[1], resident=32, pages=1))
    assert (only_long.choice.tokens, only_long.reason) == (32, RestoreReason.RESIDENT)


def test_the_last_prompt_token_is_never_restored() -> None:
    # 64 tokens, page 16, all cached: 63 may be reused, a whole-page source gives 48.
    options = [RestoreOption(Tier.SSD, "", tokens, 0) for tokens in (48, 64)]
    answer = evaluate(NAME, restore(*options, reusable=63, page_tokens=16))
    assert answer.choice.tokens == 48
    assert column(NAME, answer, "reason") == (0, RestoreReason.LONGER_THAN_REQUEST, 0)


def test_an_option_that_is_no_longer_than_what_is_resident_is_useless() -> None:
    answer = evaluate(NAME, restore(RestoreOption(Tier.RAM, "", 32, 0), resident=32))
    assert column(NAME, answer, "reason") == (0, RestoreReason.NOT_LONGER_THAN_RESIDENT, 0)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_the_choice_is_the_least_of_a_total_order(seed: int) -> None:
    inputs = drawn_inputs("RESTORE", seed)
    assert isinstance(inputs, RestoreInputs)
    answer = evaluate(NAME, inputs)
    reusable, per_token_ns = inputs.reusable_tokens, inputs.prefill_ns_per_token
    ranked = [(reusable * per_token_ns, 2, 0, -1, "")]
    if inputs.resident_tokens:
        tokens = inputs.resident_tokens
        ranked.append(((reusable - tokens) * per_token_ns, 0, -tokens, 0, ""))
    for option in inputs.options:
        pages = -(-option.tokens // 16) - inputs.resident_tokens // 16
        if inputs.resident_tokens < option.tokens <= reusable and pages <= inputs.pages_for_restore:
            completion = option.cost_ns + (reusable - option.tokens) * per_token_ns
            ranked.append((completion, 1, -option.tokens, option.tier, option.worker))
    assert len(set(ranked)) == len(ranked)
    completion, _, tokens, tier, name = min(ranked)
    assert answer.choice == RestoreChoice(tier, name, -tokens, completion)
