"""Runs with growth, preemption, swaps, keeps to RAM and quotas are derived again in full."""

from __future__ import annotations

from collections import Counter

import pytest
from replay_runs import Served, bodies, serve_generated

from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.decision import Outcome
from pagetrail.controlplane.cluster.modelfree import DeclaredCosts
from pagetrail.controlplane.policy.outcomes import OUTCOME_TERMS
from pagetrail.replay.verify import verify


@pytest.fixture(scope="module")
def pressed(tmp_path_factory: pytest.TempPathFactory) -> Served:
    """Two workers with too few pages for what they admit; nothing is stored below the device."""
    return serve_generated(
        tmp_path_factory.mktemp("pressed"),
        requests=100,
        workers=2,
        pages=60,
        lanes=6,
        tiers="none",
        grows=True,
        swap_bytes=40 << 20,
        ram_bytes=1 << 30,
        quotas=(("acme", 20), ("beta", 12)),
        keyframe_every=300,
        costs=DeclaredCosts(decode_ns_per_token=40_000_000),
    )


def test_every_decision_of_a_run_under_pressure_is_derived_again(pressed: Served) -> None:
    result = verify(pressed.directory, processes=1)
    assert result.ok, result.findings[:3]
    assert result.spans > 4
    decided = pressed.report.decisions
    assert {"preempt", "resume", "evict", "admit", "keep", "restore"} <= decided.keys()
    assert result.rederived == decided


def test_the_run_under_pressure_swaps_recomputes_and_charges_tenants(pressed: Served) -> None:
    found = Counter(type(body).__name__ for _, body in bodies(pressed.directory))
    assert found["SwapBegun"] == found["SwapReleased"] > 0
    assert found["StreamPreempted"] > found["SwapBegun"], "and some are computed again"
    accounts = {
        b.account for _, b in bodies(pressed.directory) if type(b).__name__ == "PagesAdopted"
    }
    assert accounts == {0, 1, 2}
    assert pressed.report.failed == 0


def test_outcomes_of_a_run_under_pressure_have_the_values_of_their_kind(pressed: Served) -> None:
    counts: dict[KindId, set[int]] = {}
    for _, body in bodies(pressed.directory):
        if isinstance(body, Outcome):
            counts.setdefault(KindId(body.decision_kind), set()).add(len(body.values))
    assert {KindId.PREEMPT, KindId.RESUME} <= counts.keys()
    assert counts == {kind: {len(OUTCOME_TERMS[kind])} for kind in counts}
