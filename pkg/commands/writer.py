"""`pagetrail writer`: the one process that appends to the log."""

from __future__ import annotations

from pathlib import Path

import click

from pagetrail.catalog.errors import BadInputError
from pagetrail.commands.options import config_options, configuration, lifeline_option
from pagetrail.config import log_limits


@click.command(name="writer")
@config_options
@click.option("--directory", help="Directory of the run (run.directory).")
@click.option("--bind", help="Endpoint for appends (writer.bind).")
@click.option("--publish", help="Endpoint of the live stream (writer.publish).")
@click.option("--clock", help="wall or logical (writer.clock).")
@click.option("--takeover", is_flag=True, help="Fence a writer that still runs on this directory.")
@lifeline_option
def command(
    config: Path | None,
    set_: tuple[str, ...],
    directory: str | None,
    bind: str | None,
    publish: str | None,
    clock: str | None,
    takeover: bool,
    until_stdin_ends: bool,
) -> None:
    """Append facts for all processes of a run, until SIGTERM or Ctrl-C.

    Prints one JSON line with the bound endpoints as soon as it serves.
    """
    import zmq

    from pagetrail.controlplane.log.clock import clock_of_name
    from pagetrail.controlplane.log.writer import open_writer, serve_until_signal
    from pagetrail.curve_keys import server_keys
    from pagetrail.lifeline import end_with_stdin

    settings = configuration(
        config,
        set_,
        {
            "run.directory": ("--directory", directory),
            "writer.bind": ("--bind", bind),
            "writer.publish": ("--publish", publish),
            "writer.clock": ("--clock", clock),
        },
    ).config
    try:
        loop = open_writer(
            settings.run.directory,
            bind=settings.writer.bind,
            publish=settings.writer.publish,
            bulk=settings.writer.bulk,
            limits=log_limits(settings),
            clock=clock_of_name(settings.writer.clock),
            keys=server_keys(settings.sockets),
            takeover=takeover,
        )
    except zmq.ZMQError as error:
        raise BadInputError(
            f"cannot listen on {settings.writer.bind} and {settings.writer.publish}: {error}; "
            "choose free ports with --bind and --publish (port 0 takes any)"
        ) from error
    if until_stdin_ends:
        end_with_stdin()
    serve_until_signal(loop)
