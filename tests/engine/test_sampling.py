"""Sampling: a draw is a function of seed and position; every filter does what its name says."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetrail.catalog.errors import BadInputError
from pagetrail.engine.sampling import (
    Sampled,
    SamplingParams,
    TokenCounts,
    logprobs_of,
    parse_logit_bias,
    sample,
    uniform,
)

NOTHING = TokenCounts(frozenset())


def logits(seed: int, size: int = 50) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(size) * 3).astype(np.float32)


def drawn(row: np.ndarray, params: SamplingParams, count: int = 4_000) -> Counter[int]:
    return Counter(sample(row, params, position, NOTHING).token for position in range(count))


def test_the_draw_is_the_first_53_bits_of_a_digest_of_seed_and_position() -> None:
    import hashlib

    body = b"pagetrail/draw/1\n" + bytes(7) + b"\x05" + bytes(7) + b"\x09"
    first = int.from_bytes(hashlib.sha256(body).digest()[:8], "big")
    assert uniform(5, 9) == (first >> 11) / 2**53
    assert uniform(5, 9) != uniform(9, 5)


def test_draws_are_uniform() -> None:
    values = np.array([uniform(1, position) for position in range(20_000)])
    counts, _ = np.histogram(values, bins=20, range=(0, 1))
    # Chi-squared with 19 degrees of freedom: 43.8 is its 0.1 % point.
    assert ((counts - 1_000) ** 2 / 1_000).sum() < 43.8


def test_a_seed_and_a_position_give_the_same_token_whatever_came_before() -> None:
    params = SamplingParams(temperature=0.9, seed=3)
    rows = [logits(i) for i in range(20)]
    forwards = [sample(row, params, position, NOTHING) for position, row in enumerate(rows)]
    backwards = [
        sample(row, params, position, NOTHING) for position, row in reversed(list(enumerate(rows)))
    ]
    assert forwards == backwards[::-1]
    assert drawn(rows[0], params) != drawn(rows[0], SamplingParams(temperature=0.9, seed=4))


def test_temperature_zero_is_the_best_token_and_the_lowest_id_among_equals() -> None:
    row = np.array([1.0, 7.0, 7.0, -2.0], np.float32)
    assert sample(row, SamplingParams(temperature=0.0), 0, NOTHING) == Sampled(1)


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(top_k=5),
        SamplingParams(top_p=0.7),
        SamplingParams(min_p=0.1),
        SamplingParams(temperature=1.3, top_k=12, top_p=0.9, min_p=0.05),
    ],
)
def test_frequencies_equal_the_distribution_that_transformers_filters_to(
    params: SamplingParams,
) -> None:
    row = logits(7)
    scores = torch.from_numpy(row)[None].double()
    scores = transformers.TemperatureLogitsWarper(params.temperature)(None, scores)
    if params.top_k:
        scores = transformers.TopKLogitsWarper(params.top_k)(None, scores)
    if params.top_p < 1.0:
        scores = transformers.TopPLogitsWarper(params.top_p)(None, scores)
    if params.min_p:
        scores = transformers.MinPLogitsWarper(params.min_p)(None, scores)
    want = scores.softmax(-1)[0].numpy()
    count = 6_000
    found = drawn(row, params, count)
    assert set(found) <= set(np.flatnonzero(want))
    common = [token for token in range(len(row)) if want[token] * count >= 5]
    statistic = sum((found[t] - want[t] * count) ** 2 / (want[t] * count) for t in common)
    # The 0.1 % point of chi-squared, by Wilson and Hilferty.
    degrees = max(1, len(common) - 1)
    limit = degrees * (1 - 2 / (9 * degrees) + 3.09 * math.sqrt(2 / (9 * degrees))) ** 3
    assert statistic < limit


def test_top_k_cuts_ties_by_the_lower_id() -> None:
    row = np.zeros(10, np.float32)
    assert set(drawn(row, SamplingParams(top_k=3), 400)) == {0, 1, 2}


@settings(max_examples=100, deadline=None)
@given(st.floats(0.001, 1.0), st.integers(0, 2**31), st.integers(0, 1000))
def test_top_p_always_keeps_the_best_token(top_p: float, seed: int, position: int) -> None:
    params = SamplingParams(top_p=top_p, seed=seed)
    row = np.array([0.0, 50.0, 0.0], np.float32)
    assert sample(row, params, position, NOTHING).token == 1


def test_penalties_are_those_of_the_api_and_of_the_ctrl_paper() -> None:
    row = np.array([2.0, 1.0, -1.0, 0.5], np.float32)
    counts = TokenCounts.of(prompt=[0, 2], generated=[1, 1, 3])

    def best(**penalties: float) -> int:
        return sample(row, SamplingParams(temperature=0.0, **penalties), 0, counts).token

    assert best() == 0
    # 0: 2 / 3, 1: 1 / 3, 2: -1 * 3, 3: 0.5 / 3.
    assert best(repetition_penalty=3.0) == 0
    assert best(repetition_penalty=1.0, presence_penalty=-1.5) == 1  # 1 + 1.5 > 2
    assert best(frequency_penalty=-1.0) == 1  # 1 + 2 > 2
    assert best(frequency_penalty=-0.4) == 0  # 1 + 0.8 < 2


def test_a_logit_bias_moves_its_token() -> None:
    row = logits(0)
    worst = int(row.argmin())
    params = SamplingParams(temperature=0.0, logit_bias=parse_logit_bias({str(worst): 100.0}))
    assert sample(row, params, 0, NOTHING).token == worst
    with pytest.raises(BadInputError, match="the vocabulary has 50"):
        sample(row, SamplingParams(logit_bias=((50, 1.0),)), 0, NOTHING)
    with pytest.raises(BadInputError, match="token ids"):
        parse_logit_bias({"x": 1.0})


def test_logprobs_are_of_the_models_own_distribution() -> None:
    row = logits(2)
    want = torch.log_softmax(torch.from_numpy(row).double(), 0).numpy()
    got = sample(row, SamplingParams(temperature=0.2, top_k=1, logprobs=4), 0, NOTHING)
    order = np.argsort(-row, kind="stable")[:4]
    assert got.token == order[0]
    assert got.logprob == pytest.approx(want[order[0]], abs=1e-12)
    assert [token for token, _ in got.top] == order.tolist()
    np.testing.assert_allclose([value for _, value in got.top], want[order], atol=1e-12)
    assert logprobs_of(row, 3, 0) == (pytest.approx(want[3]), ())


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_logits_that_are_not_numbers_are_refused(bad: float) -> None:
    row = logits(0)
    row[3] = bad
    with pytest.raises(BadInputError, match="not finite"):
        sample(row, SamplingParams(), 12, NOTHING)


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": -0.1},
        {"temperature": 2.1},
        {"temperature": math.nan},
        {"top_p": 0.0},
        {"top_p": 1.1},
        {"min_p": -1.0},
        {"top_k": -1},
        {"presence_penalty": 3.0},
        {"frequency_penalty": -2.5},
        {"repetition_penalty": 0.0},
        {"seed": -1},
        {"seed": 2**64},
        {"logprobs": 21},
        {"logit_bias": ((-1, 0.0),)},
        {"logit_bias": ((1, math.inf),)},
    ],
)
def test_parameters_out_of_bounds_are_refused(fields: dict) -> None:
    with pytest.raises(BadInputError):
        SamplingParams(**fields)
