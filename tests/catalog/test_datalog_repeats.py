"""Rows are a set also where nothing makes them distinct, and negation is a join."""

from __future__ import annotations

from collections.abc import Iterator

import duckdb
import pytest

from pagetrail.catalog.datalog import Column, Relation, Schema, Type, compile_query, run
from pagetrail.catalog.errors import BadInputError

INT = Type.INT
SCHEMA = Schema(
    [
        Relation("e", (Column("a", INT), Column("b", INT)), "e"),
        Relation("f", (Column("a", INT), Column("b", INT)), "f"),
        Relation("red", (Column("x", INT),), "things", where=(("colour", "red"), ("size", 1))),
        Relation(
            "told",
            (Column("x", INT),),
            "things",
            temporal=True,
            where=(("colour", "red"),),
            since="told",
            until=None,
        ),
    ]
)
E = [(1, 2), (1, 2), (1, 3), (2, 3), (3, 1)]
F = [(1, 2), (1, 9), (2, 1)]


@pytest.fixture
def con() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        for name, rows in (("e", E), ("f", F)):
            connection.execute(f"CREATE TABLE {name} (a BIGINT, b BIGINT)")
            connection.executemany(f"INSERT INTO {name} VALUES (?, ?)", rows)
        connection.execute(
            "CREATE TABLE things (x BIGINT, colour VARCHAR, size BIGINT, told BIGINT)"
        )
        connection.execute(
            "INSERT INTO things VALUES (1, 'red', 1, 0), (2, 'red', 2, 5), (3, 'blue', 1, 7)"
        )
        yield connection


def ask(con: duckdb.DuckDBPyConnection, text: str) -> list[tuple[object, ...]]:
    table = run(con, compile_query(text, SCHEMA))
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.parametrize(
    ("rules", "unions", "rows"),
    [
        # With and without an edge in f from the same node: no row in common.
        ("p(X) :- e(X, _), f(X, _). p(X) :- e(X, _), not f(X, _).", "UNION ALL", [1, 2, 3]),
        ("p(X) :- e(X, _), not f(X, 2). p(X) :- e(X, _), f(X, 2).", "UNION ALL", [1, 2, 3]),
        # Excluded is another edge than the one demanded: 1 comes from both rules.
        ("p(X) :- e(X, _), f(X, 9). p(X) :- e(X, _), not f(X, 1).", "UNION ", [1, 3]),
        ("p(X) :- e(X, _), f(X, 2). p(X) :- e(X, Y), not f(Y, _).", "UNION ", [1, 2]),
        ("p(X) :- e(X, Y), f(X, Y). p(X) :- e(X, Y), not f(X, Y).", "UNION ", [1, 2, 3]),
        # The first place of the head is another variable in each rule.
        ("p(X) :- e(X, Y), f(Y, _). p(Y) :- e(X, Y), not f(Y, _).", "UNION ", [1, 3]),
        # A third rule that shares rows with the others.
        (
            "p(X) :- e(X, _), f(X, _). p(X) :- e(X, _), not f(X, _). p(X) :- e(_, X).",
            "UNION ",
            [1, 2, 3],
        ),
    ],
)
def test_rules_that_exclude_each_other_need_no_distinct_union(
    con: duckdb.DuckDBPyConnection, rules: str, unions: str, rows: list[int]
) -> None:
    text = f"{rules} ?- p(X)."
    assert unions in compile_query(text, SCHEMA).sql
    assert ("UNION ALL" in compile_query(text, SCHEMA).sql) == (unions == "UNION ALL")
    assert ask(con, text) == [(row,) for row in rows]


def test_only_what_a_minimum_or_maximum_alone_is_taken_over_may_repeat(
    con: duckdb.DuckDBPyConnection,
) -> None:
    both = "p(X, Y) :- e(X, Y). p(X, Y) :- f(X, Y)."
    extreme = f"{both} least(X, min(Y), max(Y)) :- p(X, Y). ?- least(X, A, B)."
    assert "UNION ALL" in compile_query(extreme, SCHEMA).sql
    assert ask(con, extreme) == [(1, 2, 9), (2, 1, 3), (3, 1, 1)]
    for head, rows in (
        ("sum(Y)", [(1, 14), (2, 4), (3, 1)]),
        ("count(*)", [(1, 3), (2, 2), (3, 1)]),
        ("count(Y)", [(1, 3), (2, 2), (3, 1)]),
    ):
        text = f"{both} total(X, {head}) :- p(X, Y). ?- total(X, N)."
        assert "UNION ALL" not in compile_query(text, SCHEMA).sql
        assert ask(con, text) == rows
    twice = f"{both} least(X, min(Y)) :- p(X, Y). ?- least(X, A), p(X, A)."
    assert "UNION ALL" not in compile_query(twice, SCHEMA).sql
    assert ask(con, twice) == [(1, 2), (2, 1), (3, 1)]


@pytest.mark.parametrize(
    ("goal", "rows"),
    [
        ("e(X, Y), not f(X, Y)", [(1, 3), (2, 3), (3, 1)]),
        ("e(X, Y), not f(X, _), not f(Y, 1)", [(3, 1)]),
        ("e(X, Y), Z = Y - 1, not f(Z, 2)", [(1, 3, 2), (2, 3, 2), (3, 1, 0)]),
        ("e(X, Y), not f(Y - 1, 2)", [(1, 3), (2, 3), (3, 1)]),
        ("e(X, Y), f(Y, _)", [(1, 2), (3, 1)]),
        ("e(X, _), not f(7, _)", [(1,), (2,), (3,)]),
        ("e(X, _), Z = 2, not f(Z, 1)", []),
        ("e(X, _), Z = 2, not f(Z, X)", [(2, 2), (3, 2)]),
        ("not f(7, _)", [(1,)]),
    ],
)
def test_negated_and_existential_atoms_let_bindings_through(
    con: duckdb.DuckDBPyConnection, goal: str, rows: list[tuple[int, ...]]
) -> None:
    assert ask(con, f"?- {goal}.") == rows


def test_a_relation_can_be_some_of_a_tables_rows_and_begin_at_a_column_of_its_own(
    con: duckdb.DuckDBPyConnection,
) -> None:
    assert ask(con, "?- red(X).") == [(1,)]
    assert ask(con, "?- told(X), not red(X).") == [(2,)]
    query = compile_query("?- told(X).", SCHEMA, as_of=True)
    for position, count in ((0, 0), (1, 1), (5, 1), (6, 2)):
        assert run(con, query, as_of=position).num_rows == count
    with pytest.raises(BadInputError, match="no value of the language"):
        Relation("r", (Column("x", INT),), "t", where=(("x", 1.5),))  # type: ignore[arg-type]
