"""Facts as people and other programs read them: one line, or one plain object.

Field names come from the kind's struct; byte strings become hexadecimal. The object holds
everything; the line cuts long values. Nothing is guessed: a kind or version that this build does
not know raises, as everywhere.
"""

from __future__ import annotations

from typing import Any

import msgspec

from pagetrail.catalog.envelope import Fact, Op
from pagetrail.catalog.facts import KINDS, decode_body
from pagetrail.catalog.plain import plain

LINE_VALUE_CHARS_MAX = 160


def fact_object(fact: Fact) -> dict[str, Any]:
    """The fact as plain JSON values, envelope first, its own fields under `body`.

    Raises UnknownKindError or CorruptionError as `catalog.facts.decode_body` does.
    """
    body = decode_body(fact.kind, fact.schema_v, fact.body)
    return {
        "seq": fact.seq,
        "tx": fact.tx,
        "t_us": fact.t_us,
        "writer_epoch": fact.writer_epoch,
        "client": fact.client,
        "client_epoch": fact.client_epoch,
        "client_seq": fact.client_seq,
        "index": fact.index,
        "causes": [[cause.client, cause.client_epoch, cause.client_seq] for cause in fact.causes],
        "op": Op(fact.op).name.lower(),
        "kind": KINDS[fact.kind].name,
        "schema_v": fact.schema_v,
        "body": plain(body),
    }


def fact_line(fact: Fact) -> str:
    """The fact on one line: position, clock, client's name for it, kind, then its fields.

    A value of more than LINE_VALUE_CHARS_MAX characters is cut and says how long it is.
    """
    shown = fact_object(fact)
    mark = "-" if fact.op == Op.RETRACT else "+"
    fields = " ".join(f"{name}={_short(value)}" for name, value in shown["body"].items())
    who = f"{fact.client}/{fact.client_epoch}/{fact.client_seq}"
    return f"{fact.seq} {fact.t_us} {who} {mark}{shown['kind']} {fields}".rstrip()


def _short(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    if len(text) <= LINE_VALUE_CHARS_MAX:
        return text
    return f"{text[:LINE_VALUE_CHARS_MAX]}...({len(text)} characters)"
