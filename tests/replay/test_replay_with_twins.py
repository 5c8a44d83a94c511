"""With compiled twins of evaluators, and without them, replay reaches the same verdicts."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import pytest
from log_editor import BODY, FACTS, KIND, EditableLog
from replay_runs import Served

from pagetrail.catalog.facts import KindId
from pagetrail.controlplane import twins
from pagetrail.kernels.compiler import COMPILERS
from pagetrail.replay.verify import VerifyResult, verify

DIGEST = 8  # place of the digest among a decision's fields
TIMES = {"wall_s": 0.0, "decisions_per_s": 0}

needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason=f"needs one of {', '.join(COMPILERS)}"
)


@pytest.fixture
def for_any_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twins are used however short a log is."""
    monkeypatch.setattr("pagetrail.replay.verify.TWINS_FACTS_MIN", 0)
    twins.load_twins.cache_clear()


def verdict(result: VerifyResult) -> VerifyResult:
    """What does not depend on time, nor on whether there were twins."""
    return msgspec.structs.replace(result, by_twin=0, twins_missing="", **TIMES)


def with_wrong_digest(directory: Path, into: Path) -> Path:
    """The log with another digest in its first route decision."""
    log = EditableLog.read(directory)
    for _, _, _, transaction in log.places():
        fact = transaction[FACTS][0]
        if fact[KIND] == KindId.ROUTE:
            fact[BODY][DIGEST] = bytes(32)
            break
    log.write(into)
    return into


@needs_compiler
@pytest.mark.usefixtures("for_any_log")
@pytest.mark.parametrize("processes", [1, 2])
def test_every_route_is_derived_by_the_twin_and_the_verdict_is_the_same(
    four_workers: Served, processes: int
) -> None:
    with_twins = verify(four_workers.directory, processes=processes)
    assert with_twins.ok
    assert with_twins.by_twin == with_twins.rederived["route"] > 0
    assert with_twins.twins_missing == ""
    without = verify(four_workers.directory, processes=processes, compiled=False)
    assert without.by_twin == 0
    assert verdict(without) == verdict(with_twins)


@needs_compiler
@pytest.mark.usefixtures("for_any_log")
def test_what_was_altered_is_told_in_the_same_words(four_workers: Served, tmp_path: Path) -> None:
    altered = with_wrong_digest(four_workers.directory, tmp_path / "altered")
    with_twins = verify(altered, processes=1)
    assert "digest: recorded '0000" in with_twins.findings[0]
    assert verdict(verify(altered, processes=1, compiled=False)) == verdict(with_twins)


@pytest.mark.usefixtures("for_any_log")
def test_a_twin_that_is_wrong_changes_no_verdict(
    four_workers: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(weights: msgspec.Struct, inputs: msgspec.Struct) -> twins.Answer | None:
        return b"", 0, 0, b""

    monkeypatch.setattr(
        "pagetrail.replay.verify.load_twins", lambda: dict.fromkeys(twins.SOURCES, wrong)
    )
    result = verify(four_workers.directory, processes=1)
    assert result.ok
    assert result.by_twin == 0


@pytest.mark.usefixtures("for_any_log")
def test_without_a_compiler_replay_goes_on_and_says_so(
    four_workers: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    result = verify(four_workers.directory, processes=1)
    assert result.ok
    assert result.by_twin == 0
    assert result.twins_missing.startswith("no C++ compiler found")
