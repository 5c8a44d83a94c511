"""`pagetrail facts seal | retain`: full segments to Parquet, and old ones let go."""

from __future__ import annotations

from pathlib import Path

import click

from pagetrail.commands.options import log_option


@click.command()
@log_option
def seal(log: Path) -> None:
    """Turn every segment but the newest into Parquet, one table a kind. Safe beside a writer."""
    from pagetrail.controlplane.log.sealing import seal_log

    report = seal_log(log)
    click.echo(
        f"sealed {report.segments} segments with {report.facts} facts: {report.active_bytes} bytes "
        f"became {report.sealed_bytes}"
    )


@click.command()
@log_option
@click.option(
    "--keep-from",
    type=click.IntRange(min=0),
    required=True,
    metavar="POSITION",
    help="Sealed segments that lie wholly before this position are removed.",
)
def retain(log: Path, keep_from: int) -> None:
    """Remove old sealed segments; what is kept still verifies."""
    from pagetrail.controlplane.log.sealing import retain_log

    report = retain_log(log, keep_from)
    click.echo(f"removed {report.segments} segments; the log now starts at {report.first_seq}")
