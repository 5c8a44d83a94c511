"""`pagetrail facts`: look into the log of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from pagetrail.commands.facts_export import export
from pagetrail.commands.facts_follow import follow
from pagetrail.commands.facts_print import kind_ids, print_fact
from pagetrail.commands.facts_query import query
from pagetrail.commands.facts_reconcile import reconcile
from pagetrail.commands.facts_repl import repl
from pagetrail.commands.facts_seal import retain, seal
from pagetrail.commands.options import log_option

if TYPE_CHECKING:
    from pagetrail.catalog.envelope import Fact

LINES_MAX = 1_000_000


@click.group(name="facts")
def command() -> None:
    """Look into the log of a run."""


for subcommand in (export, follow, query, reconcile, repl, retain, seal):
    command.add_command(subcommand)


@command.command()
@log_option
@click.option("--from", "from_seq", type=click.IntRange(min=0), help="First position to print.")
@click.option(
    "--lines",
    type=click.IntRange(1, LINES_MAX),
    help="Facts to print, at most; the last ones unless --from is given.  [default: 20]",
)
@click.option("--kind", "kinds", multiple=True, help="Only facts of this kind. May be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a line.")
def tail(
    log: Path, from_seq: int | None, lines: int | None, kinds: tuple[str, ...], as_json: bool
) -> None:
    """Print facts, the newest last."""
    facts = _facts(log, from_seq or 0, kind_ids(kinds))
    chosen = deque(facts, lines or 20) if from_seq is None else islice(facts, lines)
    for fact in chosen:
        print_fact(fact, as_json)


@command.command()
@log_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def verify(ctx: click.Context, log: Path, as_json: bool) -> None:
    """Walk the chain of the whole log and name the first bad byte; end with 1 if there is one."""
    from pagetrail.controlplane.log.reader import verify_log

    report = verify_log(log)
    position = report.position
    if as_json:
        shown = {
            "head_seq": position.next_seq,
            "chain": position.chain.hex(),
            "segments": report.segments,
            "frames": report.frames,
            "transactions": report.transactions,
            "facts": report.facts,
            "torn_bytes": report.torn_bytes,
            "fenced_bytes": report.fenced_bytes,
            "problem": report.problem,
        }
        click.echo(msgspec.json.format(msgspec.json.encode(shown), indent=2))
    else:
        click.echo(
            f"{report.facts} facts in {report.transactions} transactions, {report.frames} frames "
            f"and {report.segments} segments; next position {position.next_seq}"
        )
        click.echo(f"chain {position.chain.hex()}")
        if report.torn_bytes:
            click.echo(f"{report.torn_bytes} bytes of an unfinished last frame; the writer cuts it")
        if report.fenced_bytes:
            click.echo(f"{report.fenced_bytes} bytes left by writers that had been fenced")
        click.echo(f"BAD: {report.problem}" if report.problem else "every byte is accounted for")
    if report.problem:
        ctx.exit(1)


def _facts(log: Path, from_seq: int, kinds: frozenset[int] | None) -> Iterator[Fact]:
    from pagetrail.controlplane.log.reader import read_log

    for frame in read_log(log, from_seq):
        for fact in frame.facts():
            if fact.seq >= from_seq and (kinds is None or fact.kind in kinds):
                yield fact
