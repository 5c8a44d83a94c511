"""`pagetrail worker`: one worker, with its model and its pages."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import FrameType

import click
import msgspec

from pagetrail.commands.options import config_options, configuration, lifeline_option

WAIT_S = 0.5


@click.command(name="worker")
@config_options
@click.option("--directory", help="Directory of the run (run.directory).")
@click.option("--id", "identity", help="Name of the worker (worker.id).")
@click.option("--gateway", help="The gateway's cluster endpoint (gateway.cluster).")
@lifeline_option
def command(
    config: Path | None,
    set_: tuple[str, ...],
    directory: str | None,
    identity: str | None,
    gateway: str | None,
    until_stdin_ends: bool,
) -> None:
    """Serve requests that the gateway offers, until SIGTERM or Ctrl-C.

    Prints one JSON line as soon as it serves.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported
    from pagetrail.curve_keys import client_keys, gateway_client_keys
    from pagetrail.daemon import Endpoints, Worker
    from pagetrail.lifeline import end_with_stdin

    settings = configuration(
        config,
        set_,
        {
            "run.directory": ("--directory", directory),
            "worker.id": ("--id", identity),
            "gateway.cluster": ("--gateway", gateway),
        },
    ).config
    worker = Worker(
        settings,
        Endpoints(settings.writer.bind, settings.writer.publish, settings.gateway.cluster),
        keys=client_keys(settings.sockets),
        gateway_keys=gateway_client_keys(settings.sockets),
    )
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    if until_stdin_ends:
        end_with_stdin()
    worker.start()
    if worker.model.notice:
        click.echo(f"pagetrail: {worker.model.notice}", err=True)
    click.echo(
        msgspec.json.encode({"event": "ready", "worker": settings.worker.id, "epoch": worker.epoch})
    )
    try:
        while not stopping:
            worker.wait(WAIT_S)
    finally:
        worker.close()
