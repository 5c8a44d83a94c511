"""`pagetrail up`: a whole cluster on this machine."""

from __future__ import annotations

import signal
import time
from pathlib import Path
from types import FrameType

import click

from pagetrail.catalog.errors import BadInputError
from pagetrail.commands.options import config_options, configuration

WORKERS_MAX = 64
CHECK_S = 0.5


@click.command(name="up")
@config_options
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path("pagetrail-run"),
    show_default=True,
    help="Directory of the run: log, spools, tiers, messages of the processes.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, WORKERS_MAX),
    default=1,
    show_default=True,
    help="Worker processes.",
)
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=8_000, show_default=True, help="HTTP port."
)
@click.option("--model", help="Model to serve (model.name).")
def command(
    config: Path | None,
    set_: tuple[str, ...],
    directory: Path,
    workers: int,
    port: int,
    model: str | None,
) -> None:
    """Start writer, gateway and workers on loopback and serve until Ctrl-C."""
    from pagetrail.up import ClusterOptions, LocalCluster, check_before_start

    settings = set_ if model is None else (*set_, f"model.name={model}")
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if directory.exists() and not directory.is_dir():
        raise BadInputError(f"{directory} is no directory; choose another with --directory")
    check_before_start(configuration(config, settings, {}).config, port)
    options = ClusterOptions(directory, workers, settings, gateway_port=port, config=config)
    with LocalCluster(options) as cluster:
        click.echo(f"serving {cluster.model} at {cluster.url}/v1 (Ctrl-C stops it)")
        click.echo(f"the log is {directory}; its processes' messages are in {directory}/run")
        while not stopping:
            cluster.check()
            time.sleep(CHECK_S)
        click.echo("stopping")
