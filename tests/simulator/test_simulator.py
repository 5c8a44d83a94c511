"""Simulated clusters: functions of their seed, sound under faults, and quick to see mistakes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from planted import PLANTED, SHORT, Planted, lost_results_stay_lost, settings_of

from pagetrail.controlplane.cluster.simulator.faults import FaultKind, plan
from pagetrail.controlplane.cluster.simulator.scenario import answers, parse, render
from pagetrail.controlplane.cluster.simulator.setting import SimSettings
from pagetrail.controlplane.cluster.simulator.world import World
from pagetrail.simulate import shrink, simulate

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))
SEEDS_MAX = 300


def _seeded(seed: int, settings: SimSettings = SHORT) -> SimSettings:
    return msgspec.structs.replace(settings, seed=seed)


def test_two_runs_of_a_seed_are_equal_byte_for_byte() -> None:
    first, second = World(_seeded(5)), World(_seeded(5))
    assert first.run() == second.run()
    assert [read.frame.raw for read in first.reads] == [read.frame.raw for read in second.reads]


def test_other_seeds_give_other_runs() -> None:
    assert World(_seeded(1)).run().digest != World(_seeded(2)).run().digest


def _pythons() -> list[str]:
    """This Python, and every other one here that has what a run needs."""
    found = [sys.executable]
    for name in ("python3.11", "python3.12", "python3.13"):
        other = shutil.which(name)
        if other is not None and other != sys.executable:
            needs = "import msgspec, numpy, google_crc32c, blake3, pagetrail"
            if subprocess.run([other, "-c", needs], capture_output=True, check=False).returncode:
                continue
            found.append(other)
    return found


@pytest.mark.parametrize("python", _pythons())
def test_a_run_is_the_same_under_any_hash_seed_and_python(python: str) -> None:
    script = (
        "from pagetrail.controlplane.cluster.simulator.setting import SimSettings\n"
        "from pagetrail.controlplane.cluster.simulator.world import World\n"
        "settings = SimSettings(seed=9, simulated_us=3_000_000, fault_every_us=300_000)\n"
        "print(World(settings).run().digest)\n"
    )
    here = World(SimSettings(seed=9, simulated_us=3_000_000, fault_every_us=300_000)).run().digest
    for hash_seed in ("0", "1", "4711"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        ran = subprocess.run(
            [python, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        assert ran.stdout.strip() == here


def test_every_kind_of_fault_is_drawn_within_few_seeds() -> None:
    workers = ["worker-0", "worker-1"]
    drawn = {
        fault.kind for seed in range(12) for fault in plan(seed, workers, 10_000_000, 1_000_000)
    }
    assert drawn == set(FaultKind)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_violated_under_faults_and_every_decision_derives_again(seed: int) -> None:
    report = simulate(_seeded(seed))
    assert report.violation == ""
    assert sum(report.verdicts.values()) == report.requests
    assert report.decisions > report.requests
    assert sum(report.faults.values()) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 300, 20))
def test_three_hundred_seeds_hold(first: int) -> None:
    settings = msgspec.structs.replace(SHORT, workers=4, requests_per_s=20)
    for seed in range(1_000 + first, 1_020 + first):
        report = simulate(_seeded(seed, settings))
        assert report.violation == "", report


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios_answer_as_they_are_written(path: Path, rewrite: bool) -> None:
    settings, comments, expected = parse(path.read_text(encoding="utf-8"))
    report = simulate(settings)
    written = render(settings, comments, report)
    if rewrite:
        path.write_text(written, encoding="utf-8")
        return
    assert answers(report) == expected
    assert written == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("planted", PLANTED, ids=lambda planted: planted.name)
def test_a_planted_mistake_is_caught(planted: Planted, monkeypatch: pytest.MonkeyPatch) -> None:
    planted.plant(monkeypatch)
    for seed in range(SEEDS_MAX):
        violation = simulate(settings_of(planted, seed)).violation
        if violation:
            assert planted.says in violation
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not notice")


def test_a_failing_seed_shrinks_to_few_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    lost_results_stay_lost(monkeypatch)
    failing = next(seed for seed in range(60) if simulate(_seeded(seed)).violation)
    smallest = shrink(_seeded(failing), lambda text: None)
    assert simulate(smallest).violation
    assert len(smallest.faults or ()) <= 2
