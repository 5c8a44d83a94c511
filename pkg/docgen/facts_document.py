"""docs/facts.md: every kind of fact, from the table in `catalog.facts`."""

from __future__ import annotations

from importlib import import_module

from pagetrail.catalog.envelope import Fact
from pagetrail.catalog.facts import KINDS, Kind, Role
from pagetrail.docgen.markdown import code, document, table
from pagetrail.docgen.schema import (
    enumeration_table,
    enumerations_of,
    field_table,
    nested_structs,
    summary,
)

_INTRODUCTION = """
A fact is a row of the log. Its envelope is the same for every kind; its body is a msgpack array of
the kind's fields in the order given here: integers, text, byte strings, nil, booleans and nested
arrays, never a float or a map, so that equal values have equal bytes. Units are part of names:
`_us` and `_ns` are micro- and nanoseconds, `_ppm` parts per million, `_bytes`, `_tokens` and
`_pages` count what they say.

Fields are only added, at the end and with a default, and raise the kind's version. A reader that
meets a kind or a version it does not know stops and says so.
"""

_ENVELOPE_TEXT = """
What the log returns with every body. The integer id of an entity is the `seq` of the fact that
first named it; it is not stored.
"""

_ENVELOPE = {  # its fields carry no descriptions, because a `Fact` is built once for every row read
    "seq": "place of the fact in the log, from 0 without gaps; given by the writer",
    "tx": "`seq` of the first fact of its transaction",
    "t_us": "writer's clock in microseconds, strictly rising by transaction",
    "writer_epoch": "run of the writer that accepted it",
    "client": "process that stated it",
    "client_epoch": "that process's start, strictly rising",
    "client_seq": "number of the transaction inside the client's epoch, from 0 without gaps",
    "index": "place of the fact inside its transaction",
    "causes": "transactions that led to it, each (client, client_epoch, client_seq)",
    "op": "1 states the fact, 0 takes the last statement about its entity back",
    "kind": "kind id",
    "schema_v": "version of the kind's fields",
    "body": "the kind's own fields",
}

_ROLE_HEADINGS = {
    Role.SYSTEM: ("Facts of the writer", "The writer states these itself."),
    Role.CATALOG: (
        "Catalog",
        "What is known about models, prefixes and where their bytes are. Replicas and the live "
        "index are projections of these; a later fact about the same entity replaces the earlier "
        "one, and a retraction ends it.",
    ),
    Role.JOURNAL: (
        "Journals",
        "The frame of a decider's own journal: its start, with everything its view begins from, "
        "and keyframes.",
    ),
    Role.COMMAND: (
        "Commands and completions",
        "What a decider's view was given, in order. Folding them rebuilds the view; each enters "
        "the view's chain of digests. docs/commands.md says what each does to the page owner.",
    ),
    Role.DECISION: (
        "Decisions",
        "All kinds of decision have the same fields; docs/decisions.md says what `recorded`, "
        "`choice`, `reason` and the alternatives are for each evaluator.",
    ),
    Role.OUTCOME: ("Outcomes", "What happened after a decision."),
}


def facts_document() -> str:
    """The text of docs/facts.md."""
    kinds = sorted(KINDS.values(), key=lambda kind: kind.id)
    nested = nested_structs(kind.struct for kind in kinds)
    modules = sorted({kind.struct.__module__ for kind in kinds})
    blocks = [_INTRODUCTION, "## Envelope", _ENVELOPE_TEXT, _envelope_table()]
    blocks += ["## All kinds", _overview(kinds)]
    for role, (heading, text) in _ROLE_HEADINGS.items():
        blocks += [f"## {heading}", text]
        blocks += _kinds_of(role, kinds)
    blocks += ["## Structs inside fields"]
    blocks += [f"### {s.__name__}\n\n{summary(s)}\n\n{field_table(s)}" for s in nested]
    blocks += ["## Enumerations"]
    blocks += [
        f"### {e.__name__}\n\n{summary(e)}\n\n{enumeration_table(e)}"
        for e in enumerations_of(import_module(module) for module in modules)
    ]
    return document("Kinds of fact", *blocks)


def _envelope_table() -> str:
    rows = [(code(name), _ENVELOPE[name]) for name in Fact.__struct_fields__]
    return table(("field", "meaning"), rows)


def _overview(kinds: list[Kind]) -> str:
    rows = [
        (
            str(int(kind.id)),
            code(kind.name),
            str(kind.version),
            kind.role.name.lower(),
            ", ".join(map(code, kind.entity)) or "none",
            "yes" if kind.policy_visible else "no",
        )
        for kind in kinds
    ]
    headings = ("id", "kind", "version", "role", "entity it names", "an evaluator may read it")
    return table(headings, rows)


def _kinds_of(role: Role, kinds: list[Kind]) -> list[str]:
    mine = [kind for kind in kinds if kind.role is role]
    if role is Role.DECISION:  # one struct for all of them
        names = ", ".join(code(kind.name) for kind in mine)
        struct = mine[0].struct
        return [f"{names}\n\n{summary(struct)}\n\n{field_table(struct)}"]
    return [
        f"### {kind.name} ({int(kind.id)})\n\n{summary(kind.struct)}\n\n{field_table(kind.struct)}"
        for kind in mine
    ]
