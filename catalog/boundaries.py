"""A prompt's boundaries by the rules: the specification that look-ups in the index are held to.

Slower than the index by orders of magnitude, so it runs off the request path: on a sample of
production look-ups, and in replay, which has of a look-up only its edge (``recorded_by_rule``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from .datalog.evaluate import ARROW_TYPES
from .errors import InvariantError
from .replica import Replica
from .replica_schema import PROMPT

_KNOWN = "?- known_chunks(Chunks)."
_BOUNDARIES = "?- boundary(Worker, Tier, Chunks)."
_WALKED = "?- walked(I, Prefix)."
_KNOWN_AFTER_ALL = "?- known_after_all(Node)."


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
        "?- chunk_of(I, Node, Part).",
        {"fingerprint": fingerprint},
        inputs={"prompt": given},
        as_of=as_of,
    )
    known = replica.query(_KNOWN, inputs={"chunk": chunks}, as_of=as_of)
    held = replica.query(_BOUNDARIES, inputs={"chunk": chunks}, as_of=as_of)
    rows = zip(*(column.to_pylist() for column in held.columns), strict=True)
    return Boundaries(known.column("Chunks")[0].as_py(), frozenset(rows))


def recorded_by_rule(
    replica: Replica,
    fingerprint: bytes,
    root: bytes,
    recorded: tuple[int, bytes, bytes],
    as_of: int,
) -> Boundaries:
    """The boundaries behind a recorded look-up, from facts alone.

    ``recorded`` is (known, last, missing) as ``controlplane.lookup.PrefixLookup`` holds them,
    ``root`` the tenant's root, ``as_of`` the position that the decision saw. Raises InvariantError
    when the catalog cannot have answered so: the chain back from ``last`` does not reach ``root``
    in ``known`` steps, or ``missing`` was known.
    """
    known, last, missing = recorded
    if missing:
        values = {"fingerprint": fingerprint, "missing": missing}
        if replica.query(_KNOWN_AFTER_ALL, values, as_of=as_of).num_rows:
            raise InvariantError(
                f"the look-up calls chunk {missing.hex()[:16]} missing; by the rule it was known "
                f"at {as_of}"
            )
    if not known:
        return Boundaries(0, frozenset())
    walked = replica.query(
        _WALKED, {"fingerprint": fingerprint, "last": last, "steps": known}, as_of=as_of
    )
    prefixes = walked.column("Prefix").to_pylist()
    if len(prefixes) != known + 1 or prefixes.pop() != root or root in prefixes:
        raise InvariantError(
            f"the look-up names {known} known chunks up to {last.hex()[:16]}; by the rule the "
            f"chain back from there does not reach the root in as many steps at {as_of}"
        )
    return boundaries_by_rule(replica, fingerprint, prefixes[::-1], as_of)
