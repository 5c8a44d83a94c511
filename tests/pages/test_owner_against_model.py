"""The page owner agrees with a page-by-page model, and with its own replay, after any history."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pagedriver import Driver

from pagetrail.catalog.kinds.worker import PoolSpec

ONE_GROUP = (PoolSpec("kv", 0, 24, 1),)
TWO_GROUPS = (PoolSpec("global", 0, 24, 1), PoolSpec("window", 5, 16, 1))
THREE_GROUPS = (
    PoolSpec("narrow", 2, 14, 1),
    PoolSpec("global", 0, 30, 1),
    PoolSpec("wide", 9, 20, 1),
)


@pytest.mark.parametrize(
    ("pools", "page_tokens", "slots"),
    [(ONE_GROUP, 4, 0), (ONE_GROUP, 1, 3), (TWO_GROUPS, 4, 0), (THREE_GROUPS, 3, 2)],
    ids=["one", "slots", "window", "three"],
)
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(data=st.data())
def test_any_history_leaves_the_books_equal(
    pools: tuple[PoolSpec, ...], page_tokens: int, slots: int, data: st.DataObject
) -> None:
    driver = Driver(pools, page_tokens, lambda n: data.draw(st.integers(0, n - 1)), slots)
    for _ in range(data.draw(st.integers(1, 40))):
        driver.step()


@pytest.mark.parametrize("pools", [ONE_GROUP, TWO_GROUPS, THREE_GROUPS], ids=["1", "2", "3"])
@pytest.mark.parametrize("seed", range(6))
def test_a_long_seeded_history_leaves_the_books_equal(
    pools: tuple[PoolSpec, ...], seed: int
) -> None:
    random_ = random.Random(seed)
    driver = Driver(pools, 1 + seed % 5, random_.randrange, 4 * (seed % 2))
    for _ in range(300):
        driver.step()
