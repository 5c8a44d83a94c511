"""`pagetrail docs`: the reference documents that follow from the code."""

from __future__ import annotations

from pathlib import Path

import click


@click.group(name="docs")
def command() -> None:
    """Write the reference documents, or check that they match the code."""


@command.command()
@click.option("--check", is_flag=True, help="Write nothing; end with 1 when a document is stale.")
@click.option(
    "--directory",
    type=click.Path(path_type=Path),
    default=Path("docs"),
    show_default=True,
    help="Where the documents are.",
)
@click.pass_context
def generate(ctx: click.Context, check: bool, directory: Path) -> None:
    """Write docs/*.md from the code and name those that changed."""
    from pagetrail.docgen.documents import stale_documents, write_documents

    names = stale_documents(directory) if check else write_documents(directory)
    for name in names:
        click.echo(f"{'stale' if check else 'written'}: {directory / name}")
    if not names:
        click.echo(f"{directory}: every document matches the code")
    if check and names:
        ctx.exit(1)
