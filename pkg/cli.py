"""The command line: the group `pagetrail` and what all its commands share.

Commands live in `pagetrail.commands`, one module for each group, and are imported when named; what
they run (the log, DuckDB, replay) is imported inside them, so that `--help` stays quick. A command
ends with 0 when it did its work, 1 when what it checked is not right, and 2 with one line on
standard error when it was given something it cannot use.
"""

from __future__ import annotations

import errno
from importlib import import_module
from typing import Any

import click

import pagetrail
from pagetrail.catalog.errors import PagetrailError

_COMMANDS = {
    "bench": "Measure a part, beside a floor and peers.",
    "config": "Show the configuration and where each value came from.",
    "demo": "Serve a real model on this machine and derive every decision again.",
    "docs": "Write the reference documents, or check that they match the code.",
    "facts": "Look into the log of a run.",
    "gateway": "Take HTTP requests and route them to workers.",
    "keys": "Make CURVE keys for the sockets between processes.",
    "layout": "Print what a model's attention state takes, in bytes.",
    "replay": "Derive recorded decisions again, from facts alone.",
    "sim": "Run the control plane without a model.",
    "up": "Start a whole cluster on this machine.",
    "worker": "Run one worker, with its model and its pages.",
    "writer": "Run the one process that appends to the log.",
}


class BadInputExit(click.ClickException):
    """Ends the program with code 2 and the message, usually one line, on standard error."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"pagetrail: {self.message}", file=file, err=True)


class PagetrailGroup(click.Group):
    """Finds commands by name without importing the others, and turns errors into one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        command = import_module(f"pagetrail.commands.{name}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"pagetrail.commands.{name}.command is no command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(sorted(_COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except PagetrailError as error:
            raise BadInputExit(str(error)) from error
        except OSError as error:
            if error.errno == errno.EPIPE:  # `| head`: click ends the program quietly
                raise
            raise BadInputExit(_os_error_line(error)) from error


def _os_error_line(error: OSError) -> str:
    what = error.strerror or str(error)
    where = f" ({error.filename})" if error.filename else ""
    return f"the operating system refused: {what}{where}; check the path, its rights and its space"


@click.group(cls=PagetrailGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(pagetrail.__version__, prog_name="pagetrail")
def main() -> None:
    """Paged KV-cache serving whose decisions can be re-derived from its fact log."""
