"""Measured costs, smoothed in integers."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.catalog.kinds.worker import Metric
from pagetrail.controlplane.calibration import (
    VALUE_MAX,
    Cost,
    configured,
    decode,
    encode,
    observe,
)

MS = 1_000_000
START = configured((metric, 1_000 + metric) for metric in Metric)
SAMPLES = st.lists(
    st.tuples(st.sampled_from(Metric), st.integers(0, 100) | st.integers(0, VALUE_MAX)),
    max_size=30,
)


def test_ten_twenty_five_milliseconds_give_twelve_then_ten_point_six() -> None:
    state = START
    values = []
    for sample in (10 * MS, 20 * MS, 5 * MS):
        state = observe(state, Metric.FIRST_TOKEN_NS, sample)
        values.append(state.values()[Metric.FIRST_TOKEN_NS])
    assert values == [10 * MS, 12 * MS, 10_600_000]
    assert state.costs[Metric.FIRST_TOKEN_NS] == Cost(10_600_000, 3, 5 * MS, 20 * MS, 5 * MS)


def test_a_configured_cost_stands_until_its_first_sample() -> None:
    state = observe(START, Metric.SSD_NS_PER_MIB, 7)
    assert state.values() == tuple(
        7 if metric is Metric.SSD_NS_PER_MIB else 1_000 + metric for metric in Metric
    )
    assert state.samples() == tuple(int(metric is Metric.SSD_NS_PER_MIB) for metric in Metric)


@settings(deadline=None)
@given(SAMPLES)
def test_the_fold_keeps_what_a_list_of_samples_would_tell(samples: list[tuple[int, int]]) -> None:
    state = START
    for metric, value in samples:
        state = observe(state, metric, value)
    for metric in Metric:
        mine = [value for m, value in samples if m == metric]
        cost = state.costs[metric]
        assert cost.samples == len(mine)
        if mine:
            assert (cost.least, cost.most, cost.last) == (min(mine), max(mine), mine[-1])
            assert min(mine) <= cost.value <= max(mine)
    assert decode(encode(state)) == state
    assert encode(decode(encode(state))) == encode(state)


def test_every_metric_is_configured_exactly_once() -> None:
    pairs = [(int(metric), 1) for metric in Metric]
    with pytest.raises(BadInputError, match="missing: prefill_ns_per_token;"):
        configured(pairs[1:])
    with pytest.raises(BadInputError, match=r"unknown numbers: \[99\]"):
        configured([*pairs, (99, 1)])
    with pytest.raises(BadInputError, match="named twice: 1"):
        configured([*pairs, (0, 2)])
    with pytest.raises(BadInputError, match="prefill_ns_per_token must be from 0"):
        configured([(0, -1), *pairs[1:]])


@pytest.mark.parametrize(
    ("metric", "value", "said"),
    [
        (99, 1, "there is no metric 99"),
        (-1, 1, "there is no metric -1"),
        (0, -1, "must be from 0"),
        (0, VALUE_MAX + 1, "must be from 0"),
    ],
)
def test_an_impossible_sample_is_refused(metric: int, value: int, said: str) -> None:
    with pytest.raises(BadInputError, match=said):
        observe(START, metric, value)


@pytest.mark.parametrize(
    "damaged",
    [
        b"",
        b"\xc0",
        encode(START)[:-1],
        encode(START) + b"\x00",
        msgspec.msgpack.encode([[[1, 0, 0, 0, 0]]]),
        encode(START).replace(b"\xcd\x03\xe8", b"\xce\x00\x00\x03\xe8"),
    ],
)
def test_bytes_that_no_state_encodes_to_are_refused(damaged: bytes) -> None:
    with pytest.raises(CorruptionError, match="this is no calibration state"):
        decode(damaged)
