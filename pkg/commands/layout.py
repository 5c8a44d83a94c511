"""`pagetrail layout`: what a model's attention state takes, in bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec
from rich import box
from rich.table import Table

from pagetrail.catalog.errors import BadInputError
from pagetrail.commands.wide import print_whole

if TYPE_CHECKING:
    from pagetrail.catalog.layout_table import LayoutTable

CONFIG_BYTES_MAX = 16 << 20


@click.command(name="layout")
@click.argument("model")
@click.option("--page-tokens", type=int, default=16, show_default=True)
@click.option(
    "--dtype",
    type=click.Choice(["fp32", "fp16", "bf16", "fp8_e4m3", "int8"]),
    default="bf16",
    show_default=True,
    help="How attention state is stored.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(model: str, page_tokens: int, dtype: str, as_json: bool) -> None:
    """Print the bytes of MODEL's attention state: per token, per page, per stream.

    MODEL is a directory with a config.json, such a file, or the name of a worked example.
    """
    from pagetrail.catalog.layout import ElementType
    from pagetrail.catalog.layout_families import layout_of
    from pagetrail.catalog.layout_table import layout_table

    elements = {element.value[0]: element for element in ElementType}
    table = layout_table(layout_of(_model_config(model), page_tokens, elements[dtype]))
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(table), indent=2))
    else:
        _print(table)


def _model_config(model: str) -> Mapping[str, object]:
    from pagetrail.catalog.layout_families import WORKED

    if model in WORKED:
        return WORKED[model]
    path = Path(model)
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise BadInputError(
            f"{model} is no model directory, no config.json and no worked example; the worked "
            f"examples are {', '.join(WORKED)}"
        )
    with file.open("rb") as stream:
        data = stream.read(CONFIG_BYTES_MAX + 1)
    try:
        config = json.loads(data) if len(data) <= CONFIG_BYTES_MAX else None
    except ValueError as error:
        raise BadInputError(f"{file} is not JSON ({error}); expected a config.json") from error
    if not isinstance(config, dict):
        raise BadInputError(f"{file} holds no JSON object; expected a config.json")
    return config


def _print(table: LayoutTable) -> None:
    shown = Table(title=table.title, box=box.SIMPLE_HEAD)
    for place, heading in enumerate(table.headings):
        shown.add_column(heading, justify="left" if place < 3 else "right")
    for row in table.rows:
        shown.add_row(*row)
    print_whole(shown)
    for note in table.notes:
        click.echo(note)
