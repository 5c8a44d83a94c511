"""`pagetrail sim run | sweep | shrink | replay`: the cluster under faults, in simulated time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from pagetrail.catalog.errors import BadInputError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pagetrail.controlplane.cluster.simulator.setting import SimReport, SimSettings

SEEDS_MAX = 1_000_000


def _shape(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--workers", type=click.IntRange(1, 16), default=4, show_default=True),
        click.option("--pages", type=click.IntRange(24, 4_096), default=32, show_default=True),
        click.option("--seconds", type=click.IntRange(1, 3_600), default=20, show_default=True),
        click.option(
            "--requests-per-s", type=click.IntRange(1, 1_000), default=20, show_default=True
        ),
        click.option(
            "--fault-every-ms",
            type=click.IntRange(50, 3_600_000),
            default=1_000,
            show_default=True,
            help="One fault in so much simulated time, on average.",
        ),
    ):
        command = option(command)
    return command


def _settings(
    seed: int, workers: int, pages: int, seconds: int, requests_per_s: int, fault_every_ms: int
) -> SimSettings:
    from pagetrail.controlplane.cluster.simulator.setting import SimSettings

    return SimSettings(
        seed=seed,
        workers=workers,
        pages=pages,
        simulated_us=seconds * 1_000_000,
        requests_per_s=requests_per_s,
        fault_every_us=fault_every_ms * 1_000,
    )


@click.command()
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@_shape
@click.option("--log", type=click.Path(path_type=Path), help="Keep the log in this directory.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def run(seed: int, log: Path | None, as_json: bool, **shape: int) -> None:
    """Run one simulated cluster and derive its decisions again. Ends with 1 on a violation."""
    from pagetrail.simulate import simulate

    if log is not None and log.exists() and any(log.iterdir()):
        raise BadInputError(f"{log} is not empty; choose another directory")
    report = simulate(_settings(seed, **shape), log)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(report), indent=2))
    else:
        click.echo(_line(report))
    if report.violation:
        click.get_current_context().exit(1)


@click.command()
@click.option("--from-seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--seeds", type=click.IntRange(1, SEEDS_MAX), default=100, show_default=True)
@_shape
@click.option(
    "--progress",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Note here what was done; a sweep that finds the file goes on where it ends.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def sweep(from_seed: int, seeds: int, progress: Path | None, as_json: bool, **shape: int) -> None:
    """Run many seeds. Ends with 1 when one has a violation."""
    from pagetrail.simulate import sweep as sweep_seeds

    def told(report: SimReport) -> None:
        if not as_json and report.violation:
            click.echo(_line(report))

    total = sweep_seeds(from_seed, seeds, _settings(0, **shape), told, progress)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(total), indent=2))
    else:
        click.echo(
            f"{total.seeds} seeds, {len(total.failed)} with a violation: {total.requests} "
            f"requests, {sum(total.faults.values())} faults, {total.events} events, "
            f"{total.decisions} decisions derived again"
        )
    if total.failed:
        click.get_current_context().exit(1)


@click.command()
@click.option("--seed", type=click.IntRange(min=0), required=True)
@_shape
@click.argument("target", type=click.Path(path_type=Path))
def shrink(seed: int, target: Path, **shape: int) -> None:
    """Find the smallest plan of faults that still fails, and write it to TARGET as a scenario."""
    from pagetrail.controlplane.cluster.simulator.scenario import render
    from pagetrail.simulate import shrink as shrink_run
    from pagetrail.simulate import simulate

    settings = _settings(seed, **shape)
    smallest = shrink_run(settings, lambda text: click.echo(f"still fails with {text}"))
    report = simulate(smallest)
    if not report.violation:
        raise BadInputError(f"seed {seed} violates nothing with these settings")
    target.write_text(render(smallest, [], report), encoding="utf-8")
    click.echo(f"wrote {target}: {report.violation}")


@click.command()
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--rewrite", is_flag=True, help="Write what the run answers into the file.")
@click.pass_context
def replay(ctx: click.Context, scenario: Path, rewrite: bool) -> None:
    """Run a scenario file. Ends with 1 when it answers otherwise than the file says."""
    from pagetrail.controlplane.cluster.simulator.scenario import answers, parse, render
    from pagetrail.simulate import simulate

    try:
        text = scenario.read_text(encoding="utf-8")
    except OSError as error:
        raise BadInputError(f"cannot read {scenario}: {error.strerror}") from error
    settings, comments, expected = parse(text)
    report = simulate(settings)
    if rewrite:
        scenario.write_text(render(settings, comments, report), encoding="utf-8")
    elif answers(report) != expected:
        click.echo("\n".join(["expected:", *expected, "", "answered:", *answers(report)]))
        ctx.exit(1)
    click.echo(_line(report))


def _line(report: SimReport) -> str:
    verdicts = ", ".join(f"{count} {verdict}" for verdict, count in report.verdicts.items())
    faults = sum(report.faults.values())
    return (
        f"seed {report.seed}: {report.requests} requests ({verdicts}), {faults} faults, "
        f"{report.facts} facts, {report.events} events, digest {report.digest[:16]}; "
        + (f"VIOLATION {report.violation}" if report.violation else "no violation")
    )
