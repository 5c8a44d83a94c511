"""Recorded look-ups are asked of the catalog's rules, and a wrong one is told."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace
from replay_runs import serve_generated

from pagetrail.catalog.errors import BadInputError
from pagetrail.log_replica import caught_up_replica
from pagetrail.replay.loading import Loaded
from pagetrail.replay.lookups import (
    ByRule,
    LookupSample,
    SampledLookup,
    lookup_findings,
    lowest,
)
from pagetrail.replay.verify import verify


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with tiers, so that look-ups find chunks in more than one of them."""
    made = tmp_path_factory.mktemp("lookups")
    return serve_generated(
        made, seed=5, requests=40, workers=2, pages=60, keyframe_every=60
    ).directory


def everything(directory: Path) -> list[SampledLookup]:
    loaded = Loaded.read(directory)
    sample = LookupSample(10_000, loaded.history)
    loaded.derive_all(sample.observe)
    return sample.kept


def test_a_sample_of_look_ups_is_asked_of_the_rules(directory: Path) -> None:
    by_rule = ByRule(12, partial(caught_up_replica, database=None))
    alone = verify(directory, processes=1, by_rule=by_rule)
    shared = verify(directory, processes=3, by_rule=by_rule)
    assert (alone.findings, shared.findings) == ([], [])
    assert alone.lookups_checked == shared.lookups_checked == 12
    assert verify(directory).lookups_checked == 0


def test_a_look_up_that_the_rules_answer_otherwise_is_a_finding(directory: Path) -> None:
    found = [one for one in everything(directory) if one.known > 1 and len(one.held) > 1]
    right = found[len(found) // 2]
    known, last, missing = right.recorded
    worker, tier, chunks = right.held[0]
    wrong = [
        replace(right, known=known - 1),
        replace(right, held=right.held[1:]),
        replace(right, held=((worker, tier, chunks - 1), *right.held[1:])),
        replace(right, root=last),
        replace(right, recorded=(known - 1, last, missing)),
        replace(right, recorded=(known, last, last)),
        replace(right, recorded=(known, bytes(32), missing)),
        replace(right, as_of=0),
        replace(right, as_of=2**40),
    ]
    with caught_up_replica(directory, None) as replica:
        assert list(lookup_findings(replica, found[:20])) == []
        findings = list(lookup_findings(replica, wrong))
    assert len(findings) == len(wrong)
    names = {(one.client, one.client_epoch, one.client_seq, one.kind) for one in findings}
    assert names == {(right.client, right.client_epoch, right.client_seq, right.kind)}


def test_the_sample_is_the_same_however_the_log_is_shared_out(directory: Path) -> None:
    every = everything(directory)
    assert len(every) > 50
    loaded = Loaded.read(directory)
    sample = LookupSample(7, loaded.history)
    loaded.derive_all(sample.observe)
    whole = lowest(sample.kept, 7)
    assert len(whole) == 7
    assert [one.as_of for one in whole] == sorted(one.as_of for one in whole)
    assert whole == lowest(every, 7)
    thirds = [lowest(every[share::3], 7) for share in range(3)]
    assert whole == lowest([one for third in thirds for one in third], 7)
    assert lowest([], 7) == []


@pytest.mark.parametrize("most", [0, -1, 10_001])
def test_a_number_of_look_ups_out_of_bounds_is_refused(most: int) -> None:
    with pytest.raises(BadInputError, match="look-ups to check must be 1 to 10000"):
        ByRule(most, partial(caught_up_replica, database=None))
