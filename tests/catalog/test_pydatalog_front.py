"""pyDatalog gives the compiled answer where translation accepts, and is stopped where it hangs."""

from __future__ import annotations

import pyarrow as pa
import pytest
from datalog_programs import BASE, generate, solve_with_clingo
from histories import History, RandomCatalog
from test_datalog_differential import SCHEMA

from pagetrail.catalog.datalog import compile_query
from pagetrail.catalog.datalog.evaluate import ARROW_TYPES
from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.pydatalog_front import (
    PyDatalogError,
    PyDatalogSession,
    open_session,
    translate,
)
from pagetrail.catalog.replica import open_replica

PATIENT_S = 250.0  # wall-clock time, which a pause of the process uses up


def session_over(database: dict[str, set[tuple]]) -> PyDatalogSession:
    relations = {}
    for name in BASE:
        types = [ARROW_TYPES[c.type] for c in SCHEMA[name].columns]
        rows = sorted(database.get(name, ()), key=repr)
        arrays = [pa.array([row[i] for row in rows], t) for i, t in enumerate(types)]
        relations[name] = (SCHEMA[name], pa.table(arrays, [str(i) for i in range(len(types))]))
    return PyDatalogSession(relations)


def compare(seeds: range) -> int:
    """Compare every predicate that can be translated with clingo; how many were."""
    compared = 0
    for seed in seeds:
        program = generate(seed)
        expected = solve_with_clingo(program)
        sources = []
        for name in program.derived:
            arity = len(program.signatures[name])
            goal = f"\n?- {name}({', '.join(f'G{i}' for i in range(arity))})."
            try:
                sources.append((name, *translate(compile_query(program.text() + goal, SCHEMA))))
            except BadInputError:
                continue
        for name, clauses, goal in sources[-1:]:
            with session_over(program.database) as session:
                session.load(clauses, PATIENT_S)
                assert session.ask(goal, PATIENT_S) == expected[name], f"seed {seed}\n{clauses}"
                compared += 1
    return compared


def test_generated_programs_equal_clingo_where_they_are_translated() -> None:
    assert compare(range(12)) >= 5


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(0)
def test_many_generated_programs_equal_clingo_where_they_are_translated() -> None:
    assert compare(range(12, 700)) > 300


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("p(X,Y) :- e(X,Y). p(X,Y) :- e(X,Z), p(Z,Y).", "not in the first literal"),
        ("p(X,Y) :- e(X,Y). p(X,Y) :- p(X,Z), p(Z,Y).", "nonlinear recursion"),
        ("p(X) :- one(X). p(X) :- q(X). q(Y) :- p(X), e(X,Y). ?- p(X).", "mutual recursion"),
        ("p(count(X)) :- one(X).", "an aggregate"),
        ("p(X) :- one(X), not e(_, _).", "without any bound argument"),
    ],
)
def test_what_pydatalog_cannot_be_trusted_with_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadInputError, match=reason):
        translate(compile_query(text, SCHEMA))


@pytest.mark.parametrize(
    ("test", "rows"),
    [
        ("0x00ff <= 0x6162", {(1,), (2,)}),
        ("7 < 3", set()),
        ("2 + 1 = 3", {(1,), (2,)}),
        ("3 != X", {(1,), (2,)}),
    ],
)
def test_a_comparison_of_values_is_pydatalogs_too(test: str, rows: set[tuple[int]]) -> None:
    query = compile_query(f"p(X) :- one(X), {test}. ?- p(X).", SCHEMA)
    with session_over({"one": {(1,), (2,)}}) as session:
        clauses, goal = translate(query)
        session.load(clauses)
        assert session.ask(goal) == rows


def test_an_answer_that_does_not_come_is_stopped_and_the_session_goes_on() -> None:
    with session_over({"one": {(1,), (2,)}}) as session:
        session.load("again(X) <= one(X)")
        session.load("n(X) <= one(X)\nn(X) <= n(Y) & (X == Y + 1)")
        with pytest.raises(PyDatalogError, match="did not answer in time"):
            session.ask("n(X)", limit_s=2.0)
        assert session.ask("again(X)") == {(1,), (2,)}


def test_values_keep_their_types_and_errors_come_back() -> None:
    with session_over({"name": {(1, "it's"), (2, "")}, "blob": {(b"\x00'", 3)}}) as session:
        assert session.ask("blob(X, 3)") == {(b"\x00'",)}
        assert session.ask('name(X, "it\'s")') == {(1,)}
        assert session.ask("one(X)") == set()
        with pytest.raises(PyDatalogError, match="no value of the language"):
            session.ask("name(X, Y) & (Z == X / 2)")
        with pytest.raises(PyDatalogError, match="pyDatalog: "):
            session.ask("nowhere(X)")


def test_a_session_holds_a_replica_at_one_position() -> None:
    catalog = RandomCatalog(seed=3)
    for _ in range(20):
        catalog.step()
    history: History = catalog.history
    with open_replica(None, history) as replica:
        replica.apply(history.facts, history.chain(len(history.facts)))
        end = history.ends[10]
        with open_session(replica, ["node", "copy"], as_of=end) as session:
            query = "?- copy(e: E, state: 1, tier: T, part_id: P)."
            expected = replica.query(query, as_of=end).to_pylist()
            assert session.ask("copy(E, P, W, T, 1, L, R)") != set()
            clauses, goal = translate(replica.compile(query, as_of=True))
            session.load(clauses)
            assert session.ask(goal) == {tuple(row.values()) for row in expected}
        with pytest.raises(BadInputError, match="no stored predicate"):
            open_session(replica, ["prompt"])
