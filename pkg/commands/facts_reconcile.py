"""`pagetrail facts reconcile`: demands against copies."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from pagetrail.catalog.reconciliation import Action, Reconciliation


@click.command()
@click.argument("log", type=click.Path(path_type=Path))
@click.option("--as-of", type=click.IntRange(min=0), help="Answer as of this position of the log.")
@click.option(
    "--now",
    "now_us",
    type=click.IntRange(min=0),
    metavar="US",
    help="Log time that decides which demands have expired.  [default: the newest fact's]",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
)
def reconcile(log: Path, as_of: int | None, now_us: int | None, form: str) -> None:
    """Say of each demand in the run's directory LOG whether it is satisfied, in progress or
    unsatisfied, and what would satisfy it.

    Answers by the standing rules (catalog/rules/reconciliation.dl). Changes and deletes nothing.
    """
    from pagetrail.catalog.reconciliation import reconcile as by_rule
    from pagetrail.log_replica import caught_up_replica

    with caught_up_replica(log, None) as replica:
        found = by_rule(replica, as_of=as_of, now_us=now_us)
    if form == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(found), indent=2))
    else:
        _print(found)


def _print(found: Reconciliation) -> None:
    """A table with one row a demand, and one line in it for each action."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(
        box=box.SIMPLE_HEAD,
        caption=f"{len(found.demands)} demands in force at position {found.position}, log time "
        f"{found.now_us}",
        caption_justify="left",
    )
    for heading in ("demand", "state", "priority", "node", "where", "owner", "tenant", "to do"):
        right = heading in ("priority", "node")
        table.add_column(heading, justify="right" if right else "left", overflow="fold")
    for report in found.demands:
        table.add_row(
            report.demand,
            report.state.value,
            str(report.priority),
            str(report.node),
            f"{report.worker or 'object store'}/{_tier(report.tier)}",
            report.owner,
            report.tenant,
            "\n".join(_text(action) for action in report.actions),
        )
    Console().print(table)


def _tier(number: int) -> str:
    from pagetrail.catalog.kinds.content import Tier

    return Tier(number).name.lower() if number in set(Tier) else str(number)


def _text(action: Action) -> str:
    if action.part < 0:
        return action.action
    return (
        f"{action.action} part {action.part} (group {action.group}, shard {action.shard}, "
        f"{action.size_bytes} B)"
    )
