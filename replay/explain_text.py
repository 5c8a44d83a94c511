"""An explanation for a terminal. Owns its form; derives and reads nothing."""

from __future__ import annotations

import msgspec
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from .alternatives import Alternative, Rejected
from .explain import Explained, Explanation

VALUE_CHARS_MAX = 400


def render(explanation: Explanation) -> RenderableType:
    """Every decision as a panel, in the order of the log."""
    return Group(*[_panel(decision) for decision in explanation.decisions])


def _panel(decision: Explained) -> Panel:
    parts: list[RenderableType] = [_facts(decision)]
    if decision.terms:
        parts.append(_alternatives(decision))
    parts += [_line("command", f"{told.kind} {_json(told.fields)}") for told in decision.commands]
    for outcome in decision.outcomes:
        values = ", ".join(f"{name} {value:,}" for name, value in outcome.values.items())
        parts.append(_line("outcome", f"{outcome.name}: {values}"))
    for word, links in (("cause", decision.causes), ("effect", decision.effects)):
        for link in links:
            parts.append(_line(word, f"{link.name} at {link.position}: {', '.join(link.kinds)}"))
    if decision.inputs is not None:
        parts.append(_line("inputs", _json(decision.inputs)))
    good = decision.verdict == "derived again"
    parts.append(Text(f"{'verdict':<10}{decision.verdict}", style="green" if good else "bold red"))
    title = f"{decision.kind} {decision.name}, log position {decision.position}"
    return Panel(Group(*parts), title=Text(title), title_align="left")


def _facts(decision: Explained) -> RenderableType:
    about = f"subject {decision.subject}"
    if decision.request:
        about += f", request {decision.request}"
    seen = "" if decision.as_of < 0 else f", catalog as of {decision.as_of}"
    settled = (
        "the first criterion settled it"
        if not decision.tie_break
        else f"{decision.tie_break} criteria tied before it was settled"
    )
    return Group(
        _line("chose", f"{_json(decision.choice)}"),
        _line("because", f"{decision.reason}; {settled}"),
        _line("about", about),
        _line("by", f"{decision.evaluator} {_json(decision.weights)}"),
        _line("saw", f"chain {decision.chain[:16]}{seen}, recorded {_json(decision.recorded)}"),
    )


def _alternatives(decision: Explained) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("alternative")
    table.add_column("why")
    for name, unit in decision.terms.items():
        table.add_column(f"{name}\n[dim]{unit}[/dim]", justify="right", overflow="fold")
    for alternative in decision.chosen:
        table.add_row(*_row(alternative, "chosen"), style="bold")
    for rejected in decision.rejected:
        for alternative in rejected.shown:
            table.add_row(*_row(alternative, rejected.reason))
        if rejected.count > len(rejected.shown):
            table.add_row(*_rest(rejected), style="dim")
    return table


def _row(alternative: Alternative, why: str) -> list[str]:
    return [alternative.what, why, *(f"{value:,}" for value in alternative.terms.values())]


def _rest(rejected: Rejected) -> list[str]:
    ranges = [
        f"{least:,}" if least == most else f"{least:,} to {most:,}"
        for least, most in rejected.ranges.values()
    ]
    return [f"all {rejected.count}", rejected.reason, *ranges]


def _line(name: str, text: str) -> Text:
    return Text(f"{name:<10}{text}")


def _json(value: object) -> str:
    text = msgspec.json.encode(value).decode()
    if len(text) <= VALUE_CHARS_MAX:
        return text
    return f"{text[:VALUE_CHARS_MAX]}... ({len(text)} characters; --json shows all)"
