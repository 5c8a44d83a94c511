"""`pagetrail keys`: CURVE keys for the sockets between processes."""

from __future__ import annotations

from pathlib import Path

import click


@click.command(name="keys")
@click.argument("name")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path(),
    show_default=True,
    help="Where to write them.",
)
def command(name: str, directory: Path) -> None:
    """Make the key pair NAME.key (public, to hand out) and NAME.key_secret (to keep)."""
    from pagetrail.curve_keys import create_key_pair

    for file in create_key_pair(directory, name):
        click.echo(file)
