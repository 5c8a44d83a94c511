"""Simulated clusters: functions of their seed, sound under faults, and quick to see mistakes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from pagetrail.controlplane.cluster.messages import Ended
from pagetrail.controlplane.cluster.router import RouterMachine
from pagetrail.controlplane.cluster.simulator.nodes import WorkerStores
from pagetrail.controlplane.cluster.simulator.scenario import answers, parse, render
from pagetrail.controlplane.cluster.simulator.world import (
    Fault,
    FaultKind,
    SimSettings,
    World,
)
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.cluster.worker_state import WorkerState
from pagetrail.controlplane.log.books import ClientBooks
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.sequencer import Sequencer
from pagetrail.simulate import shrink, simulate

SHORT = SimSettings(seed=0, simulated_us=4_000_000, workers=3, requests_per_s=15)
SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))
Patch = Callable[[pytest.MonkeyPatch], None]


def _seeded(seed: int, settings: SimSettings = SHORT) -> SimSettings:
    return msgspec.structs.replace(settings, seed=seed)


def test_two_runs_of_a_seed_are_equal_byte_for_byte() -> None:
    first, second = World(_seeded(5)), World(_seeded(5))
    assert first.run() == second.run()
    assert [frame.raw for frame in first.frames] == [frame.raw for frame in second.frames]


def test_other_seeds_give_other_runs() -> None:
    assert World(_seeded(1)).run().digest != World(_seeded(2)).run().digest


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_violated_under_faults_and_every_decision_derives_again(seed: int) -> None:
    report = simulate(_seeded(seed))
    assert report.violation == ""
    assert report.verdicts == {"completed": report.requests}
    assert report.faults >= 2


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 300, 20))
def test_three_hundred_seeds_hold(first: int) -> None:
    settings = msgspec.structs.replace(SHORT, workers=4, requests_per_s=20)
    for seed in range(1_000 + first, 1_020 + first):
        report = simulate(_seeded(seed, settings))
        assert report.violation == "", report


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_scenarios_answer_as_they_are_written(path: Path) -> None:
    settings, comments, expected = parse(path.read_text(encoding="utf-8"))
    report = simulate(settings)
    assert answers(report) == expected
    assert render(settings, comments, report) == path.read_text(encoding="utf-8")


# ---------------------------------------------------------------- planted mistakes


def _dedup_lost_at_restart(patch: pytest.MonkeyPatch) -> None:
    replay = Sequencer.replay

    def forgetful(self: Sequencer, frames: object) -> None:
        replay(self, frames)  # type: ignore[arg-type]
        self._books = ClientBooks(LogLimits().answers)

    patch.setattr(Sequencer, "replay", forgetful)


def _attempts_unfenced(patch: pytest.MonkeyPatch) -> None:
    ended = RouterMachine.ended

    def unfenced(self: RouterMachine, result: Ended) -> object:
        live = self._open.get(result.number)
        attempt = live.attempt if live is not None else result.attempt
        return ended(self, replace(result, attempt=attempt))

    patch.setattr(RouterMachine, "ended", unfenced)


def _published_before_the_receipt(patch: pytest.MonkeyPatch) -> None:
    stored_in = WorkerStores.stored_in

    def hasty(self: WorkerStores, prefix: bytes, tiers: tuple[int, ...]) -> object:
        stored_in(self, prefix, tiers)
        return tuple((tier, prefix.hex()) for tier in tiers)

    patch.setattr(WorkerStores, "stored_in", hasty)


def _lost_results_stay_lost(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(RouterMachine, "listed", lambda self, worker, epoch, running: [])


def _a_stream_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    def forget(self: WorkerMachine, stream: int) -> object:
        live = self._state.live[stream]
        return self._state.forget(live, live.finish)  # without StreamFinished

    patch.setattr(WorkerMachine, "closed", forget)


def _advances_go_unrecorded(patch: pytest.MonkeyPatch) -> None:
    def unrecorded(self: WorkerState) -> None:
        if self.advanced:
            from pagetrail.catalog.kinds.worker import RowsAdvanced

            self.view.owner.apply(RowsAdvanced(tuple(sorted(self.advanced.items()))))
            self.advanced = {}

    patch.setattr(WorkerState, "flush_advanced", unrecorded)


def _pauses() -> tuple[Fault, ...]:
    """Workers that stand still a little longer than the router waits for them, in turn."""
    return tuple(
        Fault(500_000 + 250_000 * turn, FaultKind.PAUSE_WORKER, f"worker-{turn % 3}", 750_000)
        for turn in range(12)
    )


@pytest.mark.parametrize(
    ("plant", "faults"),
    [
        (_dedup_lost_at_restart, None),
        (_attempts_unfenced, _pauses()),
        (_published_before_the_receipt, None),
        (_lost_results_stay_lost, None),
        (_a_stream_is_forgotten, None),
        (_advances_go_unrecorded, None),
    ],
    ids=lambda value: value.__name__.strip("_") if callable(value) else "",
)
def test_a_planted_mistake_is_caught(
    plant: Patch, faults: tuple[Fault, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(30):
        settings = msgspec.structs.replace(SHORT, seed=seed, faults=faults)
        if simulate(settings).violation:
            return
    pytest.fail("thirty seeds did not notice")


def test_a_failing_seed_shrinks_to_few_faults(monkeypatch: pytest.MonkeyPatch) -> None:
    _lost_results_stay_lost(monkeypatch)
    failing = next(seed for seed in range(60) if simulate(_seeded(seed)).violation)
    smallest = shrink(_seeded(failing), lambda text: None)
    assert simulate(smallest).violation
    assert len(smallest.faults or ()) <= 2
