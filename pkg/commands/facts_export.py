"""`pagetrail facts export`: a log's facts as one file for other tools."""

from __future__ import annotations

from pathlib import Path

import click

from pagetrail.commands.options import log_option


@click.command()
@click.argument("out", type=click.Path(path_type=Path))
@log_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "arrow", "jsonl"]),
    default="parquet",
    show_default=True,
)
@click.option("--from", "from_seq", type=click.IntRange(min=0), default=0, show_default=True)
def export(out: Path, log: Path, form: str, from_seq: int) -> None:
    """Write the facts from a position on to the new file OUT.

    Every row has the envelope, the body as stored, and its fields as JSON.
    """
    from pagetrail.controlplane.log.export import export_log

    count = export_log(log, form, out, from_seq=from_seq)
    click.echo(f"{count} facts written to {out}")
