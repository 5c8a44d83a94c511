"""`pagetrail sim run | sweep | shrink | replay`: simulated clusters, and their decisions verified.

Owns the way from a simulated log to `replay verify`: the frames are laid down as a segment, so what
is verified is what an operator would verify. The simulation itself does no I/O.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pagetrail.controlplane.cluster.simulator.faults import Fault
from pagetrail.controlplane.cluster.simulator.setting import SimReport, SimSettings
from pagetrail.controlplane.cluster.simulator.world import World
from pagetrail.controlplane.log.frames import LOG_START, Frame
from pagetrail.controlplane.log.segments import (
    SegmentHeader,
    encode_segment_header,
    log_directory,
    segment_name,
)
from pagetrail.replay.verify import verify

GARBAGE_OBJECTS = 200_000


def simulate(settings: SimSettings, directory: Path | None = None) -> SimReport:
    """Run, and derive every decision of the run again; a mismatch is a violation too.

    With a directory the log is kept there.
    """
    with _collecting_seldom():
        return _simulate(settings, directory)


@contextmanager
def _collecting_seldom() -> Iterator[None]:
    """A run's objects live until it ends; looking for garbage among them takes a fifth of it."""
    thresholds = gc.get_threshold()
    gc.set_threshold(GARBAGE_OBJECTS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _simulate(settings: SimSettings, directory: Path | None) -> SimReport:
    world = World(settings)
    report = world.run()
    frames = [read.frame for read in world.reads]
    if directory is not None:
        return _verified(report, frames, directory)
    with tempfile.TemporaryDirectory(prefix="pagetrail-sim-") as scratch:
        return _verified(report, frames, Path(scratch))


def sweep(
    seeds: Iterable[int], settings: SimSettings, told: Callable[[SimReport], None]
) -> list[SimReport]:
    """Run many seeds; the reports that have a violation."""
    failed = []
    for seed in seeds:
        report = simulate(msgspec.structs.replace(settings, seed=seed))
        told(report)
        if report.violation:
            failed.append(report)
    return failed


def shrink(settings: SimSettings, told: Callable[[str], None]) -> SimSettings:
    """The smallest plan of faults, and the shortest run, that still violate something.

    Returns the settings unchanged when they violate nothing.
    """
    faults = World(settings).faults
    smallest = msgspec.structs.replace(settings, faults=faults)
    report = simulate(smallest)
    if not report.violation:
        return settings
    step = max(1, len(faults) // 2)
    while True:
        shorter = _without(smallest, step)
        if shorter is not None:
            smallest = shorter
            told(f"{len(smallest.faults or ())} faults")
        elif step == 1:
            break
        else:
            step //= 2
    while smallest.simulated_us > 1_000_000:
        half = msgspec.structs.replace(smallest, simulated_us=smallest.simulated_us // 2)
        if not simulate(half).violation:
            break
        smallest = half
        told(f"{smallest.simulated_us / 1e6:.3f} s")
    return smallest


def _without(settings: SimSettings, step: int) -> SimSettings | None:
    """The plan with some run of ``step`` faults left out, if it still violates something."""
    faults = settings.faults or ()
    for start in range(0, len(faults), step):
        left: tuple[Fault, ...] = faults[:start] + faults[start + step :]
        candidate = msgspec.structs.replace(settings, faults=left)
        if len(left) < len(faults) and simulate(candidate).violation:
            return candidate
    return None


def _verified(report: SimReport, frames: list[Frame], directory: Path) -> SimReport:
    log = log_directory(directory)
    log.mkdir(parents=True, exist_ok=True)
    segment = log / segment_name(0, 1)
    header = encode_segment_header(SegmentHeader(1, LOG_START))
    segment.write_bytes(header + b"".join(frame.raw for frame in frames))
    verdict = verify(directory, processes=1)
    report = msgspec.structs.replace(report, decisions=sum(verdict.rederived.values()))
    if verdict.ok or report.violation:
        return report
    finding = verdict.findings[0] if verdict.findings else "not every decision holds"
    return msgspec.structs.replace(report, violation=f"replay: {finding}")
