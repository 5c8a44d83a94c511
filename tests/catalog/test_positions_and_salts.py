"""Over all relations and standing rules: any position is what a fresh replay to it gives, and what
is stored under one salt is found under no other."""

from __future__ import annotations

import pyarrow as pa
import pytest
from histories import History, RandomCatalog, digest, node_of, parts_of

from pagetrail.catalog.boundaries import Boundaries, boundaries_by_rule
from pagetrail.catalog.datalog import Query
from pagetrail.catalog.datalog.evaluate import ARROW_TYPES
from pagetrail.catalog.identity import ROOT, chain, salted_root
from pagetrail.catalog.kinds.content import (
    Copy,
    CopyState,
    Demand,
    LayoutPart,
    Model,
    RetentionLease,
    Reuse,
    Tier,
)
from pagetrail.catalog.replica import Replica, open_replica
from pagetrail.catalog.replica_schema import PROMPT, SCHEMA
from pagetrail.catalog.standing import standing_rules

F = digest("model")
ARITIES = {rule.predicate: len(rule.head) for rule in standing_rules()}
LOOKED_UP = {"fingerprint": F, "prefix": b"", "last": b"", "missing": b"", "steps": 1}
"""Parameters that say what is looked for; a rule with one of them, or with a prompt, is a look-up
(of a fingerprint alone: of everything the model has)."""
OTHERS: dict[str, int] = {"now_us": 5_000, "horizon_us": 10**9, "token": 300, "from_us": 0}
OTHERS["to_us"] = 10**9


def compiled(replica: Replica, *, as_of: bool) -> dict[str, Query]:
    """A query for all rows of each relation and of each standing predicate."""
    sizes = {name: relation.arity for name, relation in SCHEMA.items() if not relation.provided}
    return {
        name: replica.compile(
            f"?- {name}({', '.join(f'A{i}' for i in range(arity))}).", as_of=as_of
        )
        for name, arity in (sizes | ARITIES).items()
    }


def run(
    replica: Replica, query: Query, prompt: tuple[bytes, ...], wanted: dict[str, object], **at: int
) -> pa.Table:
    schema = pa.schema([(c.name, ARROW_TYPES[c.type]) for c in PROMPT.columns])
    inputs = {PROMPT.name: pa.table([range(len(prompt)), list(prompt)], schema=schema)}
    names = {relation.name for relation in query.inputs}
    if "chunk" in names:
        given = replica.query("?- chunk_of(I, N, P).", {"fingerprint": F}, inputs=inputs, **at)
        inputs["chunk"] = given
    values = {name: (wanted | OTHERS)[name] for name in query.parameters}
    return replica.run(query, values, inputs={n: inputs[n] for n in names}, **at)


def _replayed(history: History, position: int) -> Replica:
    replica = open_replica(None, history)
    replica.connection.execute("SET threads = 1")
    replica.apply(history.facts[:position], history.chain(position))
    return replica


def _histories_equal(seed: int, steps: int) -> None:
    catalog = RandomCatalog(seed, chunks=3)
    for _ in range(steps):
        catalog.step()
    history = catalog.history
    fingerprint, (_, *prompt), _ = catalog.prompts[0]
    node = node_of(fingerprint, prompt[0], ROOT, 0).node_id
    history.say(Demand("d", node, "w0", Tier.SSD, "o", "", 1, 0))
    wanted = LOOKED_UP | {"fingerprint": F, "prefix": prompt[0], "last": prompt[-1]}
    wanted["missing"] = prompt[-1]
    with _replayed(history, len(history.facts)) as whole:
        then = compiled(whole, as_of=True)
        now = compiled(whole, as_of=False)
        for end in history.ends:
            with _replayed(history, end) as fresh:
                for name in then:
                    expected = run(fresh, now[name], tuple(prompt), wanted)
                    found = run(whole, then[name], tuple(prompt), wanted, as_of=end)
                    assert found == expected, f"{name} as of {end}"


def test_as_of_every_position_equals_a_fresh_replay_to_it_for_every_predicate() -> None:
    _histories_equal(seed=3, steps=3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_as_of_every_position_equals_a_fresh_replay_over_longer_logs(seed: int) -> None:
    _histories_equal(seed, steps=25)


TOKENS = list(range(256))
SALTS: tuple[bytes | None, ...] = (b"A", b"B", b"", None)


def _root(salt: bytes | None) -> bytes:
    return ROOT if salt is None else salted_root(salt)


def _stored_under(salt: bytes | None) -> tuple[History, bytes]:
    """One whole chunk of a model with a layout, wanted, leased and reused; and its prefix."""
    prefix = chain(_root(salt), TOKENS)
    node = node_of(F, prefix, _root(salt), 0, "tenant")
    (part,) = parts_of(node.node_id, 1)
    history = History()
    history.say(Model(F, "m", "llama", digest("layout"), 256), LayoutPart(digest("layout"), 0, 0))
    history.say(node, part, Copy(part.part_id, "w0", Tier.SSD, CopyState.READY, "k"))
    history.say(
        Demand("d", node.node_id, "w0", Tier.SSD, "o", "tenant", 1, 0),
        RetentionLease("l", node.node_id, "o", 0),
        Reuse(node.node_id, "w0", 1, 256),
    )
    return history, prefix


@pytest.mark.parametrize("stored", [b"A", None])
def test_what_is_stored_under_one_salt_is_found_under_no_other_by_any_lookup(
    stored: bytes | None,
) -> None:
    history, own = _stored_under(stored)
    nothing = History()
    nothing.say(Model(F, "m", "llama", digest("layout"), 256), LayoutPart(digest("layout"), 0, 0))
    with _replayed(history, len(history.facts)) as replica, _replayed(nothing, 2) as empty:
        queries = compiled(replica, as_of=False)
        lookups = {
            name: query
            for name, query in queries.items()
            if query.inputs or {"prefix", "last", "missing"} & query.parameters.keys()
        }
        assert {"boundary", "known_chunks", "chunk_of", "node_at", "walked"} <= lookups.keys()
        found = {}
        for salt in SALTS:
            prefix = chain(_root(salt), TOKENS)
            wanted = LOOKED_UP | {"prefix": prefix, "last": prefix, "missing": prefix}
            for name, query in lookups.items():
                seen = run(replica, query, (prefix,), wanted)
                unseen = run(empty, query, (prefix,), wanted)
                if salt == stored:
                    found[name] = seen != unseen
                else:
                    assert seen == unseen, f"{name} under salt {salt!r}"
        assert {name for name, differs in found.items() if not differs} <= {"parts_wanted"}
        assert boundaries_by_rule(replica, F, (own,), len(history.facts)) == Boundaries(
            1, frozenset({("w0", Tier.SSD, 1)})
        )


def test_salts_and_their_absence_make_different_prefixes() -> None:
    assert len({chain(_root(salt), TOKENS) for salt in SALTS}) == len(SALTS)
