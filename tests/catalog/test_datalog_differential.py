"""Generated programs mean the same to DuckDB through the compiler as to clingo."""

from __future__ import annotations

import random

import duckdb
import pytest
from datalog_programs import BASE, Generated, generate, solve_with_clingo

from pagetrail.catalog.datalog import Column, Limits, Relation, Schema, Type, compile_query, run

PATIENT = Limits(seconds=1e6)
"""The limit is wall-clock time, which a pause of the process uses up."""

SCHEMA = Schema(
    Relation(name, tuple(Column(f"k{i}", Type[t]) for i, t in enumerate(types)), f"base_{name}")
    for name, types in BASE.items()
)
KEYED = Schema(
    Relation(r.name, r.columns, r.table, keys=(tuple(c.name for c in r.columns),))
    for r in SCHEMA.values()
)


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute("SET threads = 1")
    for relation in SCHEMA.values():
        columns = ", ".join(f"{c.name} {c.type.value}" for c in relation.columns)
        con.execute(f"CREATE TABLE {relation.table} ({columns})")
    return con


def load(con: duckdb.DuckDBPyConnection, program: Generated) -> None:
    con.begin()
    con.execute(";".join(f"DELETE FROM base_{name}" for name in program.database))
    for name, rows in program.database.items():
        if rows:
            marks = ", ".join(["(" + ", ".join("?" * len(BASE[name])) + ")"] * len(rows))
            con.execute(f"INSERT INTO base_{name} VALUES {marks}", [v for r in rows for v in r])
    con.commit()


def check(con: duckdb.DuckDBPyConnection, seed: int, schema: Schema, predicates_max: int) -> None:
    """Compare the last derived predicates, which use those before them, with clingo."""
    program = generate(seed)
    load(con, program)
    expected = solve_with_clingo(program)
    for name in program.derived[-predicates_max:]:
        arity = len(program.signatures[name])
        goal = f"\n?- {name}({', '.join(f'G{i}' for i in range(arity))})."
        table = run(
            con, compile_query(program.text() + goal, schema), ordered=False, limits=PATIENT
        )
        rows = list(zip(*(c.to_pylist() for c in table.columns), strict=True))
        assert len(rows) == len(set(rows)), f"seed {seed}: {name} repeats rows\n{program.text()}"
        assert set(rows) == expected[name], f"seed {seed}: {name} differs\n{program.text()}"


def check_bound(con: duckdb.DuckDBPyConnection, seed: int, schema: Schema) -> bool:
    """Ask for rows with given values in some places: the demand is pushed into the rules, and the
    answer must be what clingo has with those values. False when the program derives nothing."""
    program = generate(seed)
    expected = {name: rows for name, rows in solve_with_clingo(program).items() if rows}
    names = [name for name in program.derived if name in expected]
    if not names:
        return False
    load(con, program)
    rnd = random.Random(seed)
    name = rnd.choice(names)
    row = rnd.choice(sorted(expected[name], key=repr))
    places = rnd.sample(range(len(row)), rnd.randint(1, len(row)))
    given = {place: f"P{place}" for place in places}
    open_ = [place for place in range(len(row)) if place not in given]
    arguments = [f"${given[p].lower()}" if p in given else f"G{p}" for p in range(len(row))]
    text = f"{program.text()}\n?- {name}({', '.join(arguments)})."
    values = {given[place].lower(): row[place] for place in places}
    types = {
        k: {int: Type.INT, str: Type.TEXT, bytes: Type.BYTES}[type(v)] for k, v in values.items()
    }
    query = compile_query(text, schema, parameters=types)
    table = run(con, query, values, ordered=False, limits=PATIENT)
    found = set(zip(*(c.to_pylist() for c in table.columns), strict=True))
    wanted = {
        tuple(r[p] for p in open_) or (1,)
        for r in expected[name]
        if all(r[p] == row[p] for p in places)
    }
    assert found == wanted, f"seed {seed}: {name} of {values} differs\n{text}"
    return True


def test_150_programs_asked_for_given_values_equal_clingo(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    asked = [check_bound(connection, seed, KEYED if seed % 2 else SCHEMA) for seed in range(200)]
    assert sum(asked) >= 150


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("block", range(20))
def test_2000_programs_asked_for_given_values_equal_clingo(
    connection: duckdb.DuckDBPyConnection, block: int
) -> None:
    for seed in range(200 + block * 100, 300 + block * 100):
        check_bound(connection, seed, KEYED if seed % 2 else SCHEMA)


@pytest.mark.parametrize("block", range(5))
def test_500_generated_programs_equal_clingo(
    connection: duckdb.DuckDBPyConnection, block: int
) -> None:
    for seed in range(block * 100, block * 100 + 100):
        check(connection, seed, KEYED if seed % 2 else SCHEMA, predicates_max=1)


@pytest.mark.slow
@pytest.mark.soak
@pytest.mark.timeout(0)
@pytest.mark.parametrize("block", range(45))
def test_5000_generated_programs_equal_clingo(
    connection: duckdb.DuckDBPyConnection, block: int
) -> None:
    for seed in range(500 + block * 100, 600 + block * 100):
        check(connection, seed, KEYED if seed % 2 else SCHEMA, predicates_max=99)
