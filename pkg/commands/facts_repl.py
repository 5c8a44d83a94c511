"""`pagetrail facts repl`: a conversation in Datalog with one log."""

from __future__ import annotations

import contextlib
import readline
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.commands.options import log_option

if TYPE_CHECKING:
    from pagetrail.catalog.datalog import Query
    from pagetrail.catalog.datalog.model import Program, Rule, Value
    from pagetrail.catalog.replica import Replica

HISTORY_LINES_MAX = 10_000
PROMPT, MORE = "facts> ", "  ...> "
HELP = """A query ends with a full stop and may take several lines:
  ?- evict(seq: Seq, subject: Stream).
  busy(S, count(Seq)) :- evict(seq: Seq, subject: S). ?- busy(S, N).
Rules without a query are kept for later ones:
  busy(S, count(Seq)) :- evict(seq: Seq, subject: S).
:predicates [WORD]    the predicates, with their columns or their rules
:rules                the rules that were kept
:forget NAME          keep the rules of a predicate no longer
:set NAME=VALUE       the value of $NAME: an integer, 0x... bytes, or else text
:as-of POSITION       answer as of this position; :as-of now for the newest
:explain QUERY        strata, SQL and the database's plan instead of the answer
:help                 this
:quit                 leave (or Ctrl-D)
Tab completes predicates and commands; Ctrl-C drops what was typed."""
COMMANDS = (":as-of", ":explain", ":forget", ":help", ":predicates", ":quit", ":rules", ":set")
FILE = "<repl>"


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
            with _line_editing(history.expanduser(), conversation):
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
        self._standing = standing_rules()
        self._kept: tuple[Rule, ...] = ()
        self._values: dict[str, Value] = {}
        self._as_of: int | None = None

    @property
    def names(self) -> list[str]:
        """Predicates that a query may use."""
        rules = (rule.predicate for rule in (*self._standing, *self._kept))
        return sorted({*self._columns, *rules})

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
                self._tried(self._command, line)
                continue
            waiting = f"{waiting}\n{line}".strip()
            if waiting.endswith("."):
                self._tried(self._take, waiting)
                waiting = ""

    def _tried(self, act: Callable[[str], None], text: str) -> None:
        """An error ends its query and nothing else; so does Ctrl-C while it runs."""
        try:
            act(text)
        except PagetrailError as error:
            click.echo(str(error))
        except KeyboardInterrupt:
            click.echo("stopped")

    def _command(self, line: str) -> None:
        name, _, rest = line.partition(" ")
        match [name, *rest.split()]:
            case [":predicates", *words]:
                self._list(words[0] if words else "")
            case [":rules"]:
                for rule in self._kept:
                    click.echo(rule.text)
            case [":forget", predicate]:
                self._forget(predicate)
            case [":set", _, *_]:
                from pagetrail.commands.facts_query import parameter

                key, value = parameter(rest.strip())
                self._values[key] = value
            case [":as-of", "now"]:
                self._as_of = None
            case [":as-of", position] if position.isdecimal():
                self._go_to(int(position))
            case [":explain", _, *_]:
                self._explain(rest)
            case _:
                click.echo(HELP)

    def _list(self, word: str) -> None:
        for name in self.names:
            if word in name:
                columns = self._columns.get(name)
                if columns:
                    click.echo(f"{name}({', '.join(columns)})")
                for rule in (*self._standing, *self._kept):
                    if rule.predicate == name:
                        click.echo(rule.text)

    def _forget(self, predicate: str) -> None:
        left = tuple(rule for rule in self._kept if rule.predicate != predicate)
        if left == self._kept:
            raise BadInputError(f"no rules of {predicate} are kept; :rules lists those that are")
        self._kept = left

    def _go_to(self, position: int) -> None:
        if position > self._replica.position:
            raise BadInputError(
                f"the log has {self._replica.position} facts; give a position up to that"
            )
        self._as_of = position

    def _take(self, text: str) -> None:
        """Answer a query, or keep rules that come without one."""
        from pagetrail.arrow_text import TableFormat, write_table
        from pagetrail.catalog.datalog.model import GOAL
        from pagetrail.catalog.datalog.parser import parse

        program = parse(text, FILE)
        query = self._compile(text, program)
        if program.answer != GOAL:
            heads = {rule.predicate for rule in program.rules}
            left = (rule for rule in self._kept if rule.predicate not in heads)
            self._kept = (*left, *program.rules)
            click.echo(f"kept: {', '.join(sorted(heads))}")
            return
        values = {name: self._values[name] for name in query.parameters if name in self._values}
        missing = [name for name in query.parameters if name not in values]
        if missing:
            kind = query.parameters[missing[0]].name
            raise BadInputError(
                f"${missing[0]} ({kind}) has no value; give it one with :set {missing[0]}=VALUE"
            )
        table = self._replica.run(query, values, as_of=self._as_of)
        write_table(table, TableFormat.TABLE, sys.stdout.buffer)
        sys.stdout.flush()

    def _explain(self, text: str) -> None:
        from pagetrail.catalog.datalog import explain
        from pagetrail.catalog.datalog.parser import parse

        query = self._compile(text, parse(text, FILE))
        click.echo(str(explain(self._replica.connection, query)))

    def _compile(self, text: str, program: Program) -> Query:
        from pagetrail.catalog.datalog import compile_query
        from pagetrail.catalog.datalog.model import type_of
        from pagetrail.catalog.replica_schema import SCHEMA

        heads = {rule.predicate for rule in program.rules}
        types = {name: type_of(value) for name, value in self._values.items()}
        return compile_query(
            text,
            SCHEMA,
            file=FILE,
            library=(*self._standing, *(r for r in self._kept if r.predicate not in heads)),
            parameters={name: type_ for name, type_ in types.items() if type_ is not None},
            as_of=self._as_of is not None,
        )


def completions(typed: str, names: Sequence[str]) -> list[str]:
    """What Tab offers for the word before the cursor: commands, or predicates."""
    if typed.startswith(":"):
        return [name for name in COMMANDS if name.startswith(typed)]
    return [f"{name}(" for name in names if name.startswith(typed)]


@contextlib.contextmanager
def _line_editing(history: Path, conversation: Conversation) -> Iterator[None]:
    """History and completion while the block runs."""

    def complete(typed: str, state: int) -> str | None:
        fitting = completions(typed, conversation.names)
        return fitting[state] if state < len(fitting) else None

    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    readline.set_history_length(HISTORY_LINES_MAX)
    readline.set_completer(complete)
    readline.set_completer_delims(" \t\n(),")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            readline.write_history_file(history)
