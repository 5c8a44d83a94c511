"""Queries for given values derive only what they ask for: seen by what they never stumble over.

Each program has a chain on which its arithmetic overflows. Whoever asks for everything gets the
error; whoever asks for another chain does not come near it.
"""

from __future__ import annotations

import duckdb
import pytest

from pagetrail.catalog.datalog import (
    Column,
    EvaluationError,
    Relation,
    Schema,
    Type,
    answer,
    compile_query,
)

SCHEMA = Schema(
    [
        Relation("e", (Column("a", Type.INT), Column("b", Type.INT)), "e", (("a", "b"),)),
        Relation("weight", (Column("a", Type.INT), Column("w", Type.INT)), "weight", (("a",),)),
    ]
)
MAX = 2**63 - 1
LEFT = "path(X, Y, 0) :- e(X, Y). path(X, Y, C) :- path(X, Z, B), e(Z, Y), weight(Z, W), C = B + W."
RIGHT = (
    "path(X, Y, 0) :- e(X, Y). path(X, Y, C) :- e(X, Z), weight(X, W), path(Z, Y, B), C = B + W."
)


@pytest.fixture
def con() -> duckdb.DuckDBPyConnection:
    """1 -> 2 -> 3 with weights of 1, and 10 -> 11 -> 12 -> 13 with weights near the limit."""
    con = duckdb.connect()
    con.execute("CREATE TABLE e (a BIGINT, b BIGINT)")
    con.execute("CREATE TABLE weight (a BIGINT, w BIGINT)")
    con.execute("INSERT INTO e VALUES (1, 2), (2, 3), (10, 11), (11, 12), (12, 13)")
    con.execute(f"INSERT INTO weight VALUES (1, 1), (2, 1), (10, {MAX}), (11, {MAX}), (12, {MAX})")
    return con


def rows(con: duckdb.DuckDBPyConnection, text: str, **values: int) -> list[tuple[object, ...]]:
    table = answer(con, SCHEMA, text, values)
    return list(zip(*(c.to_pylist() for c in table.columns), strict=True))


@pytest.mark.parametrize("rules", [LEFT, RIGHT])
@pytest.mark.parametrize(
    ("goal", "values", "expected"),
    [
        ("path(1, Y, C)", {}, [(2, 0), (3, 1)]),
        ("path($from, Y, C)", {"from": 2}, [(3, 0)]),
        ("path(X, 3, C)", {}, [(1, 1), (2, 0)]),
        ("path(1, $to, C)", {"to": 3}, [(1,)]),
        ("path(1, 13, C)", {}, []),
        ("not path(2, 2, 0), path(1, 2, C)", {}, [(0,)]),
    ],
)
def test_recursion_starts_at_the_values_asked_for(
    con: duckdb.DuckDBPyConnection,
    rules: str,
    goal: str,
    values: dict[str, int],
    expected: list[tuple[int, ...]],
) -> None:
    with pytest.raises(EvaluationError):
        rows(con, f"{rules} ?- path(X, Y, C).")
    assert rows(con, f"{rules} ?- {goal}.", **values) == expected


def test_values_reach_through_rules_that_do_not_recurse(con: duckdb.DuckDBPyConnection) -> None:
    program = f"{LEFT} far(X, Y) :- path(X, Y, C), C > 0. twice(X, Y) :- far(X, Y), e(X, _)."
    assert rows(con, f"{program} ?- twice(1, Y).") == [(3,)]
    with pytest.raises(EvaluationError):
        rows(con, f"{program} ?- twice(X, Y).")


def test_groups_of_an_aggregate_are_derived_for_the_values_asked_for(
    con: duckdb.DuckDBPyConnection,
) -> None:
    program = f"{LEFT} reach(X, count(Y), max(C), sum(C)) :- path(X, Y, C)."
    assert rows(con, f"{program} ?- reach(1, N, M, S).") == [(2, 1, 1)]
    assert rows(con, f"{program} ?- reach(4, N, M, S).") == []
    with pytest.raises(EvaluationError):
        rows(con, f"{program} ?- reach(X, N, M, S).")


def test_callers_that_ask_for_different_values_are_all_answered(
    con: duckdb.DuckDBPyConnection,
) -> None:
    for rules in (LEFT, RIGHT):
        assert rows(con, f"{rules} ?- path(1, X, _), path(2, Y, _).") == [(2, 3), (3, 3)]


def test_a_caller_that_asks_for_everything_gets_everything(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("DELETE FROM weight WHERE a >= 10")
    program = "tc(X, Y) :- e(X, Y). tc(X, Y) :- e(X, Z), tc(Z, Y). from_one(Y) :- tc(1, Y)."
    pairs = {(1, 2), (1, 3), (2, 3), (10, 11), (10, 12), (10, 13), (11, 12), (11, 13), (12, 13)}
    assert set(rows(con, f"{program} ?- tc(X, Y), from_one(_).")) == pairs


def test_recursion_through_two_calls_or_two_predicates_is_left_as_it_is(
    con: duckdb.DuckDBPyConnection,
) -> None:
    for rules in (
        "tc(X, Y) :- e(X, Y). tc(X, Y) :- tc(X, Z), tc(Z, Y).",
        "tc(X, Y) :- e(X, Y). tc(X, Y) :- e(X, Z), up(Z, Y). up(X, Y) :- tc(X, Y).",
    ):
        assert rows(con, f"{rules} ?- tc(1, Y).") == [(2,), (3,)]


def test_a_fault_still_names_the_rule_as_it_was_written(con: duckdb.DuckDBPyConnection) -> None:
    for rules in (LEFT, RIGHT):
        with pytest.raises(EvaluationError, match=r"in: path\(X, Y, C\) :- "):
            rows(con, f"{rules} ?- path(10, Y, C).")


def test_parameters_keep_their_declared_types() -> None:
    query = compile_query(f"{RIGHT} ?- path($from, Y, C).", SCHEMA, parameters={"from": Type.INT})
    assert dict(query.parameters) == {"from": Type.INT}
    assert [c.name for c in query.columns] == ["Y", "C"]
