"""`pagetrail sim run | sweep | shrink | replay`: simulated clusters, and their decisions verified.

Owns the way from a simulated log to `replay verify`: the frames are laid down as a segment, so what
is verified is what an operator would verify. The simulation itself does no I/O.
"""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from pagetrail.catalog.errors import BadInputError
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
PROGRESS_SEEDS = 100


class SweepReport(msgspec.Struct, frozen=True):
    """What the seeds of a sweep did, added up."""

    settings: SimSettings  # with seed 0
    first_seed: int
    seeds: int
    failed: tuple[tuple[int, str], ...] = ()  # (seed, violation)
    requests: int = 0
    events: int = 0
    facts: int = 0
    decisions: int = 0  # all derived again
    verdicts: dict[str, int] = {}
    faults: dict[str, int] = {}  # injected, by kind

    def with_run(self, report: SimReport) -> SweepReport:
        """The sweep with one more seed."""
        failed = ((report.seed, report.violation),) if report.violation else ()
        one = SweepReport(
            self.settings,
            report.seed,
            1,
            failed,
            report.requests,
            report.events,
            report.facts,
            report.decisions,
            report.verdicts,
            report.faults,
        )
        return self.plus(one)

    def plus(self, other: SweepReport) -> SweepReport:
        """Both, ``other`` being the seeds that follow."""
        return SweepReport(
            self.settings,
            self.first_seed,
            self.seeds + other.seeds,
            self.failed + other.failed,
            self.requests + other.requests,
            self.events + other.events,
            self.facts + other.facts,
            self.decisions + other.decisions,
            _added(self.verdicts, other.verdicts),
            _added(self.faults, other.faults),
        )


def _added(one: dict[str, int], other: dict[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in sorted({*one, *other})}


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
    first_seed: int,
    seeds: int,
    settings: SimSettings,
    told: Callable[[SimReport], None],
    progress: Path | None = None,
) -> SweepReport:
    """Run many seeds from ``first_seed`` on.

    With a progress file a line is added to it after every ``PROGRESS_SEEDS`` seeds, and a sweep
    of the same settings that finds the file goes on where it ends. Raises BadInputError when the
    file is of another sweep.
    """
    shape = msgspec.structs.replace(settings, seed=0)
    total = SweepReport(shape, first_seed, 0)
    if progress is not None and progress.exists():
        for line in progress.read_bytes().splitlines():
            total = total.plus(_read_part(line, progress, shape, first_seed + total.seeds))
    while total.seeds < seeds:
        part = SweepReport(shape, first_seed + total.seeds, 0)
        for seed in range(part.first_seed, first_seed + min(total.seeds + PROGRESS_SEEDS, seeds)):
            report = simulate(msgspec.structs.replace(settings, seed=seed))
            told(report)
            part = part.with_run(report)
        total = total.plus(part)
        if progress is not None:
            with progress.open("ab") as file:
                file.write(msgspec.json.encode(part) + b"\n")
    return total


def _read_part(line: bytes, progress: Path, shape: SimSettings, seed: int) -> SweepReport:
    try:
        part = msgspec.json.decode(line, type=SweepReport)
    except msgspec.MsgspecError as error:
        raise BadInputError(f"{progress} is no progress of a sweep: {error}") from error
    if (part.settings, part.first_seed) != (shape, seed):
        raise BadInputError(
            f"{progress} is of another sweep, or has a gap: expected seed {seed} of {shape}, found "
            f"{part.first_seed} of {part.settings}; give another file"
        )
    return part


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
