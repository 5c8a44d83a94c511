"""Block hits of traces: against an independent simulation, and against known figures."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import block_lru
import pytest
from replay_runs import Served, adopted_columns, derived, serve

from pagetrail.catalog.facts import KindId
from pagetrail.controlplane.policy.inputs import EvictReason
from pagetrail.replay.trace import generate_trace, read_trace
from pagetrail.replay.verify import verify

LRU = {"tiers": "none", "evaluators": ("residency/leaf-lru@1",)}

# Hit blocks in percent of the public conversation trace, by pages of the one pool.
SERVING = {
    1_000: "4.45",
    5_000: "11.16",
    10_000: "21.13",
    30_000: "32.54",
    50_000: "35.41",
    100_000: "36.33",
    1_000_000: "36.60",
}
TRACE = {
    1_000: "4.45",
    5_000: "11.18",
    10_000: "21.16",
    30_000: "32.57",
    50_000: "35.46",
    100_000: "36.37",
    1_000_000: "36.64",
}


def found_blocks(served: Served) -> list[int]:
    found = adopted_columns(served.directory)
    return [found[f"trace-{number}"] for number in range(1, len(served.requests) + 1)]


@pytest.mark.parametrize("count", ["serving", "trace"])
@pytest.mark.parametrize(("seed", "pages"), [(1, 120), (2, 300), (3, 100_000)])
def test_every_request_finds_the_blocks_that_an_lru_over_single_blocks_would_have(
    tmp_path: Path, seed: int, pages: int, count: str
) -> None:
    served = serve(tmp_path, generate_trace(seed, 250), pages=pages, count=count, **LRU)
    expected = block_lru.hits(served.requests, pages, count)
    assert found_blocks(served) == expected
    assert served.report.hit_blocks == sum(expected)
    assert served.report.hit_percent == block_lru.percent(expected, served.requests)


def test_the_first_requests_of_the_public_trace_agree_with_the_simulation(
    tmp_path: Path, public_trace: Path
) -> None:
    served = serve(tmp_path, islice(read_trace(public_trace), 700), pages=1_000, **LRU)
    assert found_blocks(served) == block_lru.hits(served.requests, 1_000, "serving")
    assert verify(tmp_path).ok


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("count", "pages", "percent"),
    [("serving", *row) for row in SERVING.items()] + [("trace", *row) for row in TRACE.items()],
)
def test_the_public_trace_has_the_known_hits_at_every_size_of_pool(
    tmp_path: Path, public_trace: Path, count: str, pages: int, percent: str
) -> None:
    served = serve(tmp_path, read_trace(public_trace), pages=pages, count=count, **LRU)
    assert served.report.hit_percent == percent
    assert served.report.failed == 0
    result = verify(tmp_path)
    assert result.ok, result.findings


def test_a_pool_under_pressure_makes_evictions_that_choose_and_reject(one_worker: Served) -> None:
    _has_evictions_that_choose_among_many(one_worker, least=20)


@pytest.mark.slow
def test_the_public_trace_at_1000_pages_makes_evictions_that_choose_and_reject(
    tmp_path: Path, public_trace: Path
) -> None:
    served = serve(tmp_path, islice(read_trace(public_trace), 1_500), pages=1_000, **LRU)
    _has_evictions_that_choose_among_many(served, least=20)


def _has_evictions_that_choose_among_many(served: Served, least: int) -> None:
    found = 0
    for eviction in derived(served.directory, KindId.EVICT):
        reasons = eviction.evaluation.columns[1]
        eligible = reasons.count(EvictReason.CHOSEN) + reasons.count(EvictReason.NOT_NEEDED)
        shared = reasons.count(EvictReason.SHARED)
        found += eligible >= 3 and EvictReason.CHOSEN in reasons and shared >= 1
    assert found >= least
