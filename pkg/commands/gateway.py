"""`pagetrail gateway`: the HTTP surface and the router."""

from __future__ import annotations

import os
from pathlib import Path

import click
import msgspec

from pagetrail.commands.options import config_options, configuration, lifeline_option


@click.command(name="gateway")
@config_options
@click.option("--directory", help="Directory of the run (run.directory).")
@click.option("--host", help="Address to listen on (gateway.host).")
@click.option("--port", help="Port (gateway.port).")
@lifeline_option
def command(
    config: Path | None,
    set_: tuple[str, ...],
    directory: str | None,
    host: str | None,
    port: str | None,
    until_stdin_ends: bool,
) -> None:
    """Take HTTP requests and route them to workers, until SIGTERM or Ctrl-C.

    Prints one JSON line as soon as it serves.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported
    from pagetrail.curve_keys import client_keys, gateway_server_keys
    from pagetrail.gateway.process import GatewayReady, run_gateway
    from pagetrail.lifeline import end_with_stdin

    settings = configuration(
        config,
        set_,
        {
            "run.directory": ("--directory", directory),
            "gateway.host": ("--host", host),
            "gateway.port": ("--port", port),
        },
    ).config

    def ready(line: GatewayReady) -> None:
        if until_stdin_ends:
            end_with_stdin()
        click.echo(msgspec.json.encode(line))

    run_gateway(
        settings,
        settings.writer.bind,
        settings.writer.publish,
        ready,
        keys=client_keys(settings.sockets),
        worker_keys=gateway_server_keys(settings.sockets),
    )
