"""`pagetrail demo`: a small cluster serves a real model, and every decision replays."""

from __future__ import annotations

import shutil
import signal
import tempfile
from pathlib import Path

import click
import msgspec

from pagetrail.catalog.errors import BadInputError
from pagetrail.commands.options import configuration


@click.command(name="demo")
@click.option("--seed", type=click.IntRange(min=0), default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print the figures as one JSON object.")
@click.option(
    "--deterministic",
    is_flag=True,
    help="One request in flight, fixed costs, no kill: two runs decide the same.",
)
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    help="Where the run is kept; must be empty or absent. Without it a scratch directory is made.",
)
@click.option("--model", help="Model to serve (model.name).")
def command(
    seed: int, as_json: bool, deterministic: bool, directory: Path | None, model: str | None
) -> None:
    """Serve real requests with a real model, kill a worker, and derive every decision again.

    Ends with 0 only if every request ended as it should, nothing that was acknowledged is lost
    and every decision was derived again.
    """
    try:
        import httpx  # noqa: F401 - the demo's own client
    except ImportError as error:
        raise BadInputError(
            "the demo needs its HTTP client; run: pip install 'pagetrail[demo]'"
        ) from error
    from rich.console import Console

    from pagetrail.demo.figures import figures
    from pagetrail.demo.run import requests_in, run_demo
    from pagetrail.demo.screen import Screen
    from pagetrail.demo.table import print_figures
    from pagetrail.demo.workload import make_workload
    from pagetrail.replay.report import write_report
    from pagetrail.up import check_before_start

    settings = () if model is None else (f"model.name={model}",)
    _refuse_filled(directory)
    check_before_start(configuration(None, settings, {}).config, 0)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends the cluster, as Ctrl-C does
    where = _empty_directory(directory)
    console = Console(stderr=as_json)
    workload = make_workload(seed)
    with Screen(console, requests_in(workload, deterministic)) as screen:
        result = run_demo(where, workload, screen, deterministic=deterministic, model=model)
        screen.step("writing the report")
        report = write_report(where, where / "report.html", verdict=result.verdict)
    numbers = figures(result, report)
    if as_json:
        click.echo(msgspec.json.encode(numbers))
    else:
        print_figures(console, numbers)
    if not numbers.ok:
        raise SystemExit(1)


def _refuse_filled(directory: Path | None) -> None:
    if directory is None or not directory.exists():
        return
    if not directory.is_dir() or any(directory.iterdir()):
        raise BadInputError(f"{directory} is not an empty directory; choose another or remove it")


def _empty_directory(directory: Path | None) -> Path:
    if directory is None:
        return Path(tempfile.mkdtemp(prefix="pagetrail-demo-"))
    _refuse_filled(directory)
    directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory).free
    if free < 1 << 30:
        raise BadInputError(
            f"{directory} has {free >> 20} MiB free; the demo stores up to 1 GiB of chunks"
        )
    return directory
