"""The common form of a benchmark's result, and how it is printed.

A bench module returns plain data (`BenchResult` as a dict); this module checks its form, so that
every result file under benchmarks/results has the same columns. It measures nothing and judges
nothing: whether a goal was met is the bench's own statement.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

import msgspec
from rich.table import Table

from pagetrail.catalog.errors import BadInputError


class BenchRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One measured case. `ratio` is ours to theirs, oriented so that more is better for us.

    `theirs` is None where the peer is not installed; `goal` is what `met` was judged against,
    None where the row is information only.
    """

    case: str
    unit: str
    ours: float | None
    peer: str | None = None
    theirs: float | None = None
    ratio: float | None = None
    goal: str | float | None = None
    met: bool | None = None


class BenchResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything one bench measured in one run on one machine."""

    bench: str
    machine: str
    rows: tuple[BenchRow, ...]


def machine_name() -> str:
    """The machine in one line: CPU model, cores this process may use, Python, kernel."""
    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            names = (line.partition(":")[2].strip() for line in lines if "model name" in line)
            model = next(names, model)
    except FileNotFoundError:  # not Linux: the platform's own name must do
        pass
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{model}, {cores} cores, Python {platform.python_version()}, {platform.release()}"


def result_from_plain(plain: Mapping[str, object]) -> BenchResult:
    """Checks a bench's plain result against the common form.

    Raises BadInputError naming the path of the first value that does not fit.
    """
    try:
        return msgspec.convert(plain, type=BenchResult)
    except msgspec.ValidationError as error:
        raise BadInputError(
            f"a bench returned a result of another form ({error}); expected the fields of "
            "pagetrail.bench.table.BenchResult; correct the bench module"
        ) from error


def bench_table(result: BenchResult) -> Table:
    """The result as a table for a terminal; one line a row, in the bench's own order."""
    table = Table(title=f"bench {result.bench}", caption=result.machine)
    table.add_column("case", overflow="fold")
    for heading in ("ours", "unit", "peer", "theirs", "ratio", "goal", "met"):
        table.add_column(heading, justify="left" if heading in ("unit", "peer") else "right")
    for row in result.rows:
        table.add_row(
            row.case,
            _figure(row.ours),
            row.unit,
            row.peer or "",
            _figure(row.theirs),
            _figure(row.ratio),
            row.goal if isinstance(row.goal, str) else _figure(row.goal),
            {True: "yes", False: "NO", None: ""}[row.met],
        )
    return table


def _figure(value: float | None) -> str:
    """At most four significant digits, thousands separated; nothing for an absent value."""
    if value is None:
        return ""
    if abs(value) >= 1_000 or float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.4g}"
