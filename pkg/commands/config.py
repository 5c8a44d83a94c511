"""`pagetrail config`: what the configuration is and where each value came from."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table

from pagetrail.commands.options import config_options, configuration
from pagetrail.config_fields import all_fields, plain_value
from pagetrail.config_load import LoadedConfig


@click.group(name="config")
def command() -> None:
    """Show the configuration and where each value came from."""


@command.command()
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(config: Path | None, set_: tuple[str, ...], as_json: bool) -> None:
    """Print every setting, its value and its source. Nothing is started."""
    loaded = configuration(config, set_, {})
    values = _values(loaded)
    if as_json:
        rows = {
            name: {"value": value, "source": str(loaded.origins[name])}
            for name, value in values.items()
        }
        click.echo(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
        return
    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("setting", "value", "source"):
        table.add_column(heading, overflow="fold")
    for name, value in values.items():
        shown = "-" if value is None else msgspec.json.encode(value).decode()
        table.add_row(name, shown, str(loaded.origins[name]))
    Console().print(table)


def _values(loaded: LoadedConfig) -> dict[str, str | int | bool | None]:
    return {
        field.name: plain_value(getattr(getattr(loaded.config, field.section), field.key))
        for field in all_fields()
    }
