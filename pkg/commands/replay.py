"""`pagetrail replay`: derive recorded decisions again, from facts alone."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from pagetrail.replay.verify import VerifyResult

EXPLAIN_CHARS_MIN = 140  # narrower, the columns of figures would be cut


@click.group(name="replay")
def command() -> None:
    """Derive recorded decisions again, from facts alone."""


@command.command()
@click.argument("log", type=click.Path(path_type=Path))
@click.option(
    "--processes",
    type=click.IntRange(1, 64),
    help="Processes to verify with.  [default: one for each core]",
)
@click.option(
    "--check-lookups",
    type=click.IntRange(0, 10_000),
    default=32,
    show_default=True,
    help="Recorded look-ups, at most, that the catalog's rules are asked about too.",
)
@click.option(
    "--compiled/--no-compiled",
    default=True,
    show_default=True,
    help="Ask compiled evaluators first; they may only agree, anything else is derived without.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def verify(
    ctx: click.Context,
    log: Path,
    processes: int | None,
    check_lookups: int,
    compiled: bool,
    as_json: bool,
) -> None:
    """Derive every decision of the run in LOG again and compare byte for byte.

    Ends with 0 when all came out as recorded, with 1 when one did not or an input is missing, with
    2 when the log itself cannot be read.
    """
    from pagetrail.log_replica import caught_up_replica
    from pagetrail.replay.lookups import ByRule
    from pagetrail.replay.verify import verify as verify_run

    by_rule = None
    if check_lookups:
        by_rule = ByRule(check_lookups, partial(caught_up_replica, database=None))
    result = verify_run(log, processes=processes, by_rule=by_rule, compiled=compiled)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(result), indent=2))
    else:
        _print(result)
    if not result.ok:
        ctx.exit(1)


@command.command()
@click.argument("log", type=click.Path(path_type=Path))
@click.argument("decision")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, with everything.")
def explain(log: Path, decision: str, as_json: bool) -> None:
    """Tell why a decision of the run in LOG came out as it did, and what came of it.

    DECISION is a transaction's name client/epoch/client_seq or a position in the log, as `facts
    tail` prints them, or a request id, which stands for every decision about that request.
    """
    from rich.console import Console

    from pagetrail.replay.explain import explain as explain_decision
    from pagetrail.replay.explain_text import render

    explanation = explain_decision(log, decision)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(explanation), indent=2))
    else:
        Console(width=max(Console().width, EXPLAIN_CHARS_MIN)).print(render(explanation))


def _print(result: VerifyResult) -> None:
    click.echo(f"{'decisions':<12}{'re-derived':>12}{'mismatched':>12}{'missing':>12}")
    for kind in sorted({*result.rederived, *result.mismatched, *result.missing}):
        counts = (result.rederived, result.mismatched, result.missing)
        cells = "".join(f"{counted.get(kind, 0):>12}" for counted in counts)
        click.echo(f"{kind:<12}{cells}")
    for finding in result.findings:
        click.echo(f"FINDING: {finding}")
    if result.findings_cut:
        click.echo(f"and {result.findings_cut} findings more")
    for client, count in result.unattested.items():
        click.echo(f"{client}: nothing after its last {count} transactions attests them")
    if result.twins_missing:
        click.echo(f"without compiled evaluators, which are faster: {result.twins_missing}")
    if result.lookups_checked:
        click.echo(f"{result.lookups_checked} recorded look-ups were asked of the rules too")
    click.echo(
        f"{result.facts} facts, {result.decisions} decisions in {result.spans} spans, "
        f"{result.wall_s} s, {result.decisions_per_s} decisions/s"
    )
    if not result.ok:
        click.echo("NOT every decision holds")
    elif result.decisions:
        click.echo("every decision was derived again")
    else:
        click.echo("the log holds no decision")
