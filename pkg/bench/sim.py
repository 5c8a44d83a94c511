"""`pagetrail bench sim`: how fast the simulated cluster runs on one core, all its checks included.

The workload is four workers, twenty requests a simulated second and a fault every five; every run
is checked as `pagetrail sim run` checks it, and all of its decisions are derived again. Counted are
simulated seconds in which requests come, not those in which a run settles. Time is CPU time of this
process, so a busy machine does not make the simulator look slower than a core is. The floor is the
same number of entries on a time line that do nothing.
"""

from __future__ import annotations

import statistics
import time

import msgspec

from pagetrail.catalog.errors import InvariantError
from pagetrail.controlplane.cluster.simulator.setting import SimSettings
from pagetrail.controlplane.cluster.simulator.timeline import Draw, Timeline
from pagetrail.simulate import simulate

from .table import BenchResult, BenchRow, machine_name

GOAL_S = 1_000  # simulated seconds a minute of one core
FIRST_SEED = 100
WORKLOAD = SimSettings(seed=0, workers=4, requests_per_s=20, fault_every_us=5_000_000)
EVERY_SECOND = msgspec.structs.replace(WORKLOAD, fault_every_us=1_000_000)


def run(quick: bool) -> dict[str, object]:
    """Measure; ``quick`` takes fewer seeds."""
    seeds = range(FIRST_SEED, FIRST_SEED + (4 if quick else 24))
    events, rate = _measured(WORKLOAD, seeds)
    _, hard_rate = _measured(EVERY_SECOND, seeds)
    floor = _floor(events)
    unit = "simulated s a core minute"
    rows = (
        BenchRow(
            "4 workers, 20 requests/s, a fault every 5 s",
            unit,
            rate,
            peer="empty events",
            theirs=floor,
            ratio=round(rate / floor, 3),
            goal=GOAL_S,
            met=rate >= GOAL_S,
        ),
        BenchRow("the same, a fault every second", unit, hard_rate),
        BenchRow("events of a simulated second, settling included", "events", events),
    )
    return msgspec.to_builtins(BenchResult("sim", machine_name(), rows))  # type: ignore[no-any-return]


def _measured(settings: SimSettings, seeds: range) -> tuple[float, float]:
    """(events a simulated second, simulated seconds a minute): medians over the seeds."""
    seconds = settings.simulated_us / 1e6
    events, rates = [], []
    for seed in seeds:
        started_s = time.process_time()
        report = simulate(msgspec.structs.replace(settings, seed=seed))
        took_s = time.process_time() - started_s
        if report.violation:
            raise InvariantError(f"seed {seed} violates: {report.violation}")
        events.append(report.events / seconds)
        rates.append(60 * seconds / took_s)
    return round(statistics.median(events), 1), round(statistics.median(rates), 1)


def _floor(events_per_s: float) -> float:
    """Simulated seconds a minute when nothing happens in an event but its draw of the next."""
    timeline, draw = Timeline(), Draw(0, "floor")
    seconds = 20
    left = int(events_per_s * seconds)

    def happen() -> None:
        nonlocal left
        left -= 1
        if left > 0:
            timeline.after(draw.between(200, 3_000), happen)

    started_s = time.process_time()
    happen()
    timeline.run_until(1 << 62)
    return round(60 * seconds / (time.process_time() - started_s), 1)
