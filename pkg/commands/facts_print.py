"""What the commands that print facts share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from pagetrail.catalog.envelope import Fact


def print_fact(fact: Fact, as_json: bool) -> None:
    """One line on standard output. Raises as `fact_text.fact_object` does."""
    from pagetrail.fact_text import fact_line, fact_object

    click.echo(msgspec.json.encode(fact_object(fact)) if as_json else fact_line(fact))


def kind_ids(names: tuple[str, ...]) -> frozenset[int] | None:
    """The ids of named kinds, None when none is named. Raises BadInputError for an unknown one."""
    from pagetrail.catalog.facts import KIND_OF_NAME
    from pagetrail.names import unknown_name

    for name in names:
        if name not in KIND_OF_NAME:
            raise unknown_name("kind of fact", name, KIND_OF_NAME, "see docs/facts.md")
    return frozenset(int(KIND_OF_NAME[name].id) for name in names) or None
