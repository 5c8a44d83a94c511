"""`pagetrail facts query`: Datalog over the facts of a log."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import click

from pagetrail.catalog.errors import BadInputError
from pagetrail.commands.options import log_option

QUERY_BYTES_MAX = 1 << 20
_PARAMETER = re.compile(r"([a-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)


@click.command()
@click.argument("rule", required=False)
@log_option
@click.option("--file", type=click.Path(path_type=Path), help="Read the rules and goal from here.")
@click.option(
    "--param",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    help="Value of $NAME: an integer, 0x... bytes, or else text. May be repeated.",
)
@click.option("--as-of", type=click.IntRange(min=0), help="Answer as of this position of the log.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["table", "json", "csv", "arrow"]),
    default="table",
    show_default=True,
)
@click.option(
    "--replica",
    type=click.Path(path_type=Path),
    help="Keep the replica in this file for the next query, instead of in memory.",
)
def query(
    rule: str | None,
    log: Path,
    file: Path | None,
    parameters: tuple[str, ...],
    as_of: int | None,
    form: str,
    replica: Path | None,
) -> None:
    """Answer a Datalog query, such as '?- evict(seq: Seq, subject: Stream).'

    docs/datalog.md has the language and docs/facts.md the kinds of fact.
    """
    from pagetrail.arrow_text import TableFormat, write_table
    from pagetrail.log_replica import caught_up_replica

    text = _query_text(rule, file)
    values = dict(parameter(given) for given in parameters)
    with caught_up_replica(log, replica) as opened:
        name = "<query>" if file is None else str(file)
        table = opened.query(text, values, file=name, as_of=as_of)
    write_table(table, TableFormat(form), sys.stdout.buffer)


def _query_text(rule: str | None, file: Path | None) -> str:
    if rule is not None and file is None:
        return rule
    if rule is not None or file is None:
        raise BadInputError("expected either a query as the argument or --file; give one of them")
    with file.open("rb") as stream:
        data = stream.read(QUERY_BYTES_MAX + 1)
    if len(data) > QUERY_BYTES_MAX:
        raise BadInputError(f"{file} is larger than {QUERY_BYTES_MAX} bytes; expected rules")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BadInputError(f"{file} is not UTF-8 text ({error}); expected rules") from error


def parameter(given: str) -> tuple[str, int | str | bytes]:
    """(name, value) of a NAME=VALUE; the form of the value decides its type."""
    match = _PARAMETER.fullmatch(given)
    if match is None:
        raise BadInputError(f"{given} is not NAME=VALUE; for example node=17")
    name, text = match.groups()
    if re.fullmatch(r"-?[0-9]+", text):
        return name, int(text)
    if re.fullmatch(r"0x([0-9a-fA-F]{2})*", text):
        return name, bytes.fromhex(text[2:])
    return name, text
