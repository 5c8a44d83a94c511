"""Nothing leaks: long random traffic ends with every page free."""

from __future__ import annotations

import os

import pytest
from pagetraffic import Traffic

OPERATIONS_VARIABLE = "PAGETRAIL_PAGE_OPERATIONS"


def drained(traffic: Traffic) -> None:
    traffic.owner.check()
    traffic.drain()
    traffic.owner.check()
    assert traffic.owner.free() == traffic.owner.total()
    assert traffic.owner.promised_in_all() == (0,)
    assert len(traffic.index) == 0


@pytest.mark.parametrize(("pages", "seed"), [(40, 1), (200, 2)])
def test_ten_thousand_operations_keep_the_identities_of_the_counts(pages: int, seed: int) -> None:
    """Case 9: available + promised + held = total, reclaimable <= held, after each of them."""
    traffic = Traffic(pages, seed)
    traffic.run(10_000)
    drained(traffic)


@pytest.mark.slow
@pytest.mark.timeout(7_200)
def test_long_traffic_leaks_nothing() -> None:
    """200,000 operations, or as many as the environment variable asks for."""
    operations = int(os.environ.get(OPERATIONS_VARIABLE, "200000"))
    traffic = Traffic(500, 3)
    for _ in range(20):
        traffic.run(operations // 20)
        traffic.owner.check()
    drained(traffic)
