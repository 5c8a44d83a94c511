"""A prompt's boundaries by the rules: the specification that look-ups in the index are held to.

Slower than the index by orders of magnitude, so it runs off the request path: on a sample of
production look-ups, and in replay.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from .datalog.evaluate import ARROW_TYPES
from .replica import Replica
from .replica_schema import PROMPT

_KNOWN = "?- known_chunks(Chunks)."
_BOUNDARIES = "?- boundary(Worker, Tier, Chunks)."


@dataclass(frozen=True, slots=True)
class Boundaries:
    """``known``: leading chunks that the catalog knows. ``held``: (worker, tier, chunks) for each
    holder of the first chunk, with the number of leading chunks that it holds whole."""

    known: int
    held: frozenset[tuple[str, int, int]]


def boundaries_by_rule(
    replica: Replica, fingerprint: bytes, prompt: Sequence[bytes], as_of: int
) -> Boundaries:
    """The boundaries of a prompt's chunk digests, root first, at a position of the log."""
    if not prompt:
        return Boundaries(0, frozenset())
    schema = pa.schema([(c.name, ARROW_TYPES[c.type]) for c in PROMPT.columns])
    given = pa.table([range(len(prompt)), list(prompt)], schema=schema)
    chunks = replica.query(
        "?- chunk_of(I, Node).",
        {"fingerprint": fingerprint},
        inputs={"prompt": given},
        as_of=as_of,
    )
    known = replica.query(_KNOWN, inputs={"chunk": chunks}, as_of=as_of)
    held = replica.query(_BOUNDARIES, inputs={"chunk": chunks}, as_of=as_of)
    rows = zip(*(column.to_pylist() for column in held.columns), strict=True)
    return Boundaries(known.column("Chunks")[0].as_py(), frozenset(rows))
