"""docs/commands.md: the commands of a worker's view, and what each does to the page owner."""

from __future__ import annotations

from pagetrail.catalog.facts import KINDS, Kind, Role
from pagetrail.catalog.kinds import worker
from pagetrail.controlplane.pages import check, owner, runs
from pagetrail.controlplane.pages.commands import OPERATIONS
from pagetrail.docgen.markdown import code, document, prose, table
from pagetrail.docgen.schema import field_table

_INTRODUCTION = """
A worker's policy-visible state is its page owner, queue and calibration, folded over the facts
below in the order of its journal. Production folds each fact as it writes it and replay folds the
same facts with the same code. A command is checked whole before anything changes: one that cannot
be carried out is refused with a message and leaves everything as it was. While a log is folded, a
command that is refused is a breach of an invariant: the worker stops, and replay reports it.
"""


def commands_document() -> str:
    """The text of docs/commands.md."""
    kinds = [
        kind
        for kind in KINDS.values()
        if kind.role is Role.COMMAND and kind.struct.__module__ == worker.__name__
    ]
    return document(
        "Commands",
        _INTRODUCTION,
        "## The page owner",
        prose(owner.__doc__),
        prose(runs.__doc__),
        f"## Invariants\n\n{prose(check.__doc__)}",
        "## All commands",
        _overview(kinds),
        *(_section(kind) for kind in kinds),
    )


def _overview(kinds: list[Kind]) -> str:
    rows = [
        (code(kind.name), "page owner" if kind.struct in OPERATIONS else "queue and calibration")
        for kind in kinds
    ]
    return table(("command", "changes"), rows)


def _section(kind: Kind) -> str:
    parts = [f"### {kind.name}", prose(kind.struct.__doc__)]
    operation = OPERATIONS.get(kind.struct)
    if operation is not None:
        parts += ["What the page owner does:", prose(operation.__doc__)]
    return "\n\n".join([*parts, field_table(kind.struct)])
