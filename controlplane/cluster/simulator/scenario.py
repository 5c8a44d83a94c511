"""Scenarios: a simulated run as text that reads like a story, with what came of it below.

    seed 7, 2 workers of 48 pages and 2 lanes, 20 requests a second for 4.000 s
    at 1.200 crash-worker worker-1 for 0.500
    at 2.000 cut-link worker-0>router for 0.300

    requests 80
    completed 80
    violation none

Lines from ``requests`` on are what the run answered; a run with other answers has changed its
behaviour. ``#`` begins a comment. Times are seconds, exact to the microsecond.
"""

from __future__ import annotations

import re

import msgspec

from pagetrail.catalog.errors import BadInputError

from .faults import Fault, FaultKind
from .setting import SimReport, SimSettings

_HEAD = re.compile(
    r"seed (\d+), (\d+) workers? of (\d+) pages and (\d+) lanes?, "
    r"(\d+) requests a second for (\d+\.\d+) s"
)
_FAULT = re.compile(r"at (\d+\.\d+) ([a-z-]+)(?: ([a-z0-9->]+))? for (\d+\.\d+)")


def parse(text: str) -> tuple[SimSettings, list[str], list[str]]:
    """(settings, comment lines at the top, expected answers). Raises BadInputError by line."""
    comments: list[str] = []
    expected: list[str] = []
    faults: list[Fault] = []
    settings: SimSettings | None = None
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if line.startswith("#") and settings is None:
            comments.append(line)
        if not line or line.startswith("#"):
            continue
        head, fault = _HEAD.fullmatch(line), _FAULT.fullmatch(line)
        if settings is None:
            if head is None:
                raise BadInputError(f"line {number}: expected 'seed N, N workers of ...': {line!r}")
            seed, workers, pages, lanes, rate = (int(text) for text in head.groups()[:5])
            settings = SimSettings(
                seed=seed,
                workers=workers,
                pages=pages,
                lanes=lanes,
                requests_per_s=rate,
                simulated_us=_microseconds(head.group(6)),
            )
        elif fault is not None and not expected:
            if fault.group(2) not in {kind.value for kind in FaultKind}:
                known = ", ".join(kind.value for kind in FaultKind)
                raise BadInputError(
                    f"line {number}: {fault.group(2)!r} is no fault; known: {known}"
                )
            faults.append(
                Fault(
                    _microseconds(fault.group(1)),
                    FaultKind(fault.group(2)),
                    fault.group(3) or "",
                    _microseconds(fault.group(4)),
                )
            )
        else:
            expected.append(line)
    if settings is None:
        raise BadInputError("the scenario has no first line 'seed N, N workers of ...'")
    return msgspec.structs.replace(settings, faults=tuple(faults)), comments, expected


def answers(report: SimReport) -> list[str]:
    """What a run answered, as a scenario states it."""
    lines = [f"requests {report.requests}"]
    lines += [f"{verdict} {count}" for verdict, count in report.verdicts.items()]
    lines.append(f"violation {report.violation or 'none'}")
    return lines


def render(settings: SimSettings, comments: list[str], report: SimReport) -> str:
    """The scenario's text."""
    seconds = _seconds(settings.simulated_us)
    lines = [
        *comments,
        f"seed {settings.seed}, {settings.workers} workers of {settings.pages} pages and "
        f"{settings.lanes} lanes, {settings.requests_per_s} requests a second for {seconds} s",
    ]
    for fault in settings.faults or ():
        target = f" {fault.target}" if fault.target else ""
        lines.append(
            f"at {_seconds(fault.at_us)} {fault.kind}{target} for {_seconds(fault.for_us)}"
        )
    return "\n".join([*lines, "", *answers(report)]) + "\n"


def _microseconds(text: str) -> int:
    whole, _, part = text.partition(".")
    return int(whole) * 1_000_000 + int(part.ljust(6, "0")[:6])


def _seconds(us: int) -> str:
    return f"{us // 1_000_000}.{us % 1_000_000:06d}"
