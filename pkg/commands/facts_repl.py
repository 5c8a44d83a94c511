"""`pagetrail facts repl`: a conversation in Datalog with one log."""

from __future__ import annotations

import contextlib
import readline
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pagetrail.catalog.errors import PagetrailError
from pagetrail.commands.options import log_option

if TYPE_CHECKING:
    from pagetrail.catalog.replica import Replica

HISTORY_LINES_MAX = 10_000
PROMPT, MORE = "facts> ", "  ...> "
HELP = """A query ends with a full stop and may take several lines:
  ?- evict(seq: Seq, subject: Stream).
  busy(S, count(Seq)) :- evict(seq: Seq, subject: S). ?- busy(S, N).
:predicates [WORD]   the predicates, with their columns
:as-of POSITION      answer as of this position; :as-of now for the newest
:help                this
:quit                leave (or Ctrl-D)
Tab completes the names of predicates."""


@click.command()
@log_option
@click.option(
    "--history",
    type=click.Path(path_type=Path),
    default=Path("~/.pagetrail_history"),
    show_default=True,
    help="File that keeps what was typed.",
)
def repl(log: Path, history: Path) -> None:
    """Ask one question after another. Tab completes predicates, the arrows recall history."""
    from pagetrail.log_replica import caught_up_replica

    with caught_up_replica(log, None) as replica:
        conversation = Conversation(replica)
        if sys.stdin.isatty():
            click.echo(f"{replica.position} facts; :help tells what can be asked")
            with _line_editing(history.expanduser(), conversation.names):
                conversation.run()
        else:
            conversation.run()


class Conversation:
    """Reads lines until they make a query or a command, and answers it."""

    def __init__(self, replica: Replica) -> None:
        from pagetrail.catalog.replica_schema import SCHEMA
        from pagetrail.catalog.standing import standing_rules

        self._replica = replica
        self._columns = {
            name: [column.name for column in relation.columns] for name, relation in SCHEMA.items()
        }
        self._rules = sorted({rule.predicate for rule in standing_rules()})
        self._as_of: int | None = None

    @property
    def names(self) -> list[str]:
        """Predicates that a query may use."""
        return sorted({*self._columns, *self._rules})

    def run(self) -> None:
        """Until end of input or :quit."""
        waiting = ""
        while True:
            try:
                line = input(MORE if waiting else PROMPT) if sys.stdin.isatty() else input()
            except EOFError:
                return
            except KeyboardInterrupt:
                waiting = ""
                click.echo()
                continue
            if not waiting and line.startswith(":"):
                if line.split()[0] in (":quit", ":q"):
                    return
                self._command(line.split())
                continue
            waiting = f"{waiting}\n{line}".strip()
            if waiting.endswith("."):
                self._answer(waiting)
                waiting = ""

    def _command(self, words: Sequence[str]) -> None:
        match list(words):
            case [":predicates", *rest]:
                for name in self.names:
                    if not rest or rest[0] in name:
                        columns = self._columns.get(name)
                        click.echo(
                            f"{name}({', '.join(columns)})" if columns else f"{name}, a rule"
                        )
            case [":as-of", "now"]:
                self._as_of = None
            case [":as-of", position] if position.isdecimal():
                self._as_of = int(position)
            case _:
                click.echo(HELP)

    def _answer(self, text: str) -> None:
        from pagetrail.arrow_text import TableFormat, write_table

        try:
            table = self._replica.query(text, file="<repl>", as_of=self._as_of)
        except PagetrailError as error:
            click.echo(str(error))
            return
        write_table(table, TableFormat.TABLE, sys.stdout.buffer)
        sys.stdout.flush()


@contextlib.contextmanager
def _line_editing(history: Path, names: Sequence[str]) -> Iterator[None]:
    """History and completion while the block runs."""

    def complete(typed: str, state: int) -> str | None:
        fitting = [name for name in names if name.startswith(typed)]
        return f"{fitting[state]}(" if state < len(fitting) else None

    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(HISTORY_LINES_MAX)
    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n(),:-")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(history)
