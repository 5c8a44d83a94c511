"""What the language means and what it refuses, each case against an answer worked out by hand."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetrail.catalog.datalog import (
    OPEN_SEQ,
    Column,
    EvaluationError,
    EvaluationLimitError,
    Limits,
    Relation,
    Schema,
    Type,
    answer,
    compile_query,
    explain,
    run,
    verify_schema,
)
from pagetrail.catalog.errors import BadInputError, InvariantError

INT, TEXT, BYTES = Type.INT, Type.TEXT, Type.BYTES
SCHEMA = Schema(
    [
        Relation("e", (Column("a", INT), Column("b", INT)), "e"),
        Relation("name", (Column("id", INT), Column("text", TEXT)), "name"),
        Relation("blob", (Column("bytes", BYTES), Column("size", INT)), "blob"),
        Relation("held", (Column("x", INT),), "held", temporal=True),
        Relation("given", (Column("i", INT), Column("t", TEXT)), "given_rows", provided=True),
    ]
)
MIN, MAX = -(2**63), 2**63 - 1


@pytest.fixture
def con() -> duckdb.DuckDBPyConnection:
    con = duckdb.connect()
    con.execute("CREATE TABLE e (a BIGINT, b BIGINT)")
    con.execute("CREATE TABLE name (id BIGINT, text VARCHAR)")
    con.execute("CREATE TABLE blob (bytes BLOB, size BIGINT)")
    con.execute("CREATE TABLE held (x BIGINT, from_seq BIGINT, to_seq BIGINT)")
    return con


def rows(con: duckdb.DuckDBPyConnection, text: str, **values: object) -> list[tuple]:
    table = answer(con, SCHEMA, text, values)
    return list(zip(*(c.to_pylist() for c in table.columns), strict=True))


def edges(con: duckdb.DuckDBPyConnection, *pairs: tuple[int, int]) -> None:
    con.executemany("INSERT INTO e VALUES (?, ?)", [list(p) for p in pairs])


@pytest.mark.parametrize(
    "rules",
    [
        "tc(X,Y) :- e(X,Y). tc(X,Y) :- tc(X,Z), e(Z,Y).",
        "tc(X,Y) :- e(X,Y). tc(X,Y) :- e(X,Z), tc(Z,Y).",
        "tc(X,Y) :- e(X,Y). tc(X,Y) :- tc(X,Z), tc(Z,Y).",
        "tc(X,Y) :- odd(X,Y). tc(X,Y) :- even(X,Y). odd(X,Y) :- e(X,Y). "
        "odd(X,Y) :- even(X,Z), e(Z,Y). even(X,Y) :- odd(X,Z), e(Z,Y).",
    ],
    ids=["left-linear", "right-linear", "nonlinear", "mutual"],
)
def test_closure_over_a_cycle_is_every_pair_in_each_form_of_recursion(
    con: duckdb.DuckDBPyConnection, rules: str
) -> None:
    edges(con, (1, 2), (2, 3), (3, 1), (4, 4))
    expected = sorted([(x, y) for x in (1, 2, 3) for y in (1, 2, 3)] + [(4, 4)])
    assert rows(con, rules + " ?- tc(X, Y).") == expected


def test_recursion_over_an_empty_relation_is_empty(con: duckdb.DuckDBPyConnection) -> None:
    assert rows(con, "p(X) :- e(X, _). p(Y) :- p(X), e(X, Y).") == []
    assert rows(con, "p(X, Y) :- e(X, Y). p(X, Y) :- p(X, Z), p(Z, Y).") == []


def test_a_predicate_with_no_base_case_is_empty(con: duckdb.DuckDBPyConnection) -> None:
    edges(con, (1, 1))
    assert rows(con, "p(X) :- p(X), e(X, _).") == []
    assert rows(con, "p(X) :- q(X), e(X, _). q(X) :- p(X).") == []


def test_a_pattern_that_repeats_a_variable_selects_equal_columns(
    con: duckdb.DuckDBPyConnection,
) -> None:
    edges(con, (1, 1), (1, 2), (3, 3))
    assert rows(con, "?- e(X, X).") == [(1,), (3,)]


def test_named_arguments_stand_for_columns_in_any_order(con: duckdb.DuckDBPyConnection) -> None:
    edges(con, (1, 2), (2, 9))
    assert rows(con, "?- e(b: X, a: 1).") == [(2,)]
    assert rows(con, "p(X) :- e(b: X), not e(a: X).") == [(9,)]


def test_every_underscore_is_another_variable(con: duckdb.DuckDBPyConnection) -> None:
    edges(con, (1, 2))
    assert rows(con, "p(1) :- e(_, _).") == [(1,)]


def test_negation_with_underscore_means_no_such_row(con: duckdb.DuckDBPyConnection) -> None:
    edges(con, (1, 2), (2, 3))
    assert rows(con, "?- e(_, X), not e(X, _).") == [(3,)]


def test_text_and_bytes_come_back_as_written(con: duckdb.DuckDBPyConnection) -> None:
    nasty = "it's \"q\" \\ \n\t -- ; $p0 'x' ä"
    written = nasty.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    assert rows(con, f'p("{written}").') == [(nasty,)]
    assert rows(con, "p(0x). p(0x00ff27). ?- p(X).") == [(b"",), (b"\x00\xff'",)]


@given(text=st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0\n")))
@settings(max_examples=25, deadline=None)
def test_no_text_leaves_its_literal(text: str) -> None:
    con = duckdb.connect()
    con.execute("CREATE TABLE name (id BIGINT, text VARCHAR)")
    con.execute("INSERT INTO name VALUES (1, ?), (2, 'other')", [text])
    written = text.replace("\\", "\\\\").replace('"', '\\"')
    assert (1,) in rows(con, f'?- name(X, "{written}").')
    assert (1,) in rows(con, "?- name(X, $t).", t=text)


def test_text_is_ordered_by_its_bytes(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("INSERT INTO name VALUES (1, 'b'), (2, 'B'), (3, 'ä'), (4, '')")
    assert rows(con, '?- name(X, T), T < "b".') == [(2, "B"), (4, "")]
    assert rows(con, "m(min(T), max(T)) :- name(_, T).") == [("", "ä")]


INTEGERS = st.integers(MIN, MAX) | st.integers(-10, 10) | st.sampled_from((MIN, MAX, -1, 0, 1))
CHECKED = duckdb.connect()


@given(a=INTEGERS, b=INTEGERS, operator=st.sampled_from(("+", "-", "*", "//", "mod")))
@settings(max_examples=150, deadline=None)
def test_arithmetic_is_exact_and_floors_or_is_an_error(a: int, b: int, operator: str) -> None:
    def python() -> int | None:
        if operator in ("//", "mod"):
            return None if b == 0 else a // b if operator == "//" else a % b
        return {"+": a + b, "-": a - b, "*": a * b}[operator]

    expected = python()
    text = f"p($a {operator} $b)."
    if expected is None or not MIN <= expected <= MAX:
        with pytest.raises(EvaluationError, match="outside 64 bits, or a division by zero"):
            rows(CHECKED, text, a=a, b=b)
    else:
        assert rows(CHECKED, text, a=a, b=b) == [(expected,)]
        constants = text.replace("$a", f"({a})").replace("$b", f"({b})")
        assert rows(CHECKED, constants) == [(expected,)]


def test_division_floors_and_modulo_has_the_sign_of_the_divisor(
    con: duckdb.DuckDBPyConnection,
) -> None:
    edges(con, (7, 2), (-7, 2), (7, -2), (-7, -2))
    assert rows(con, "d(X, Y, X // Y, X mod Y) :- e(X, Y).") == [
        (-7, -2, 3, -1),
        (-7, 2, -4, 1),
        (7, -2, -4, -1),
        (7, 2, 3, 1),
    ]


@pytest.mark.parametrize(
    "rule",
    [
        "p(Z) :- e(X, Y), Y != 0, Z = X // Y.",
        "p(Z) :- e(X, Y), Z = X // Y, Y != 0.",
        "p(Z) :- Z = X // Y, e(X, Y), e(Y, _).",
        "p(X // Y) :- e(X, Y), not zero(Y). zero(0).",
    ],
)
def test_an_undefined_binding_that_another_literal_rejects_is_no_error(
    con: duckdb.DuckDBPyConnection, rule: str
) -> None:
    edges(con, (6, 3), (1, 0), (3, 9))
    assert (2,) in rows(con, rule + " ?- p(Z).")


@pytest.mark.parametrize(
    "rule",
    [
        "p(X) :- e(X, Y), X // Y > 0.",
        "p(X) :- e(X, Y), X // Y < 0.",
        "p(X) :- e(X, Y), not e(X // Y, _).",
        "p(1) :- e(X, Y), Z = X // Y.",
        "p(X) :- e(X, Y), e(X // Y, _).",
        "p(sum(X // Y)) :- e(X, Y).",
        "p(count(X // Y)) :- e(X, Y).",
        "q(X, Y) :- e(X, Y), X // Y != 5. p(X) :- q(X, _).",
    ],
)
def test_an_undefined_binding_that_nothing_rejects_is_an_error_that_names_the_rule(
    con: duckdb.DuckDBPyConnection, rule: str
) -> None:
    edges(con, (6, 3), (1, 0))
    with pytest.raises(EvaluationError) as caught:
        rows(con, rule + " ?- p(Z).")
    assert caught.value.diagnostic is not None
    assert caught.value.diagnostic.rule in rule


def test_a_join_on_an_arithmetic_term_is_exact_with_undefined_rows_beside_it(
    con: duckdb.DuckDBPyConnection,
) -> None:
    edges(con, (1, 1), (2, 0), (3, 1), (MAX, 0))
    joined = "p(X, Y) :- e(X, _), e(Y, _), Y = X + 1"
    with pytest.raises(EvaluationError):
        rows(con, joined + ".")
    assert rows(con, joined + ", X < 9.") == [(1, 2), (2, 3)]
    assert rows(con, "p(X) :- e(X, B), e(X + B, _), B = 1.") == [(1,)]
    assert rows(con, "p(X) :- e(X, _), not e(X + 1, _), X < 9.") == [(3,)]
    assert rows(con, "r(1). r(Y) :- r(X), e(Y, _), Y = X + 1.") == [(1,), (2,), (3,)]


def test_a_later_filter_never_reaches_below_the_rule_that_computes(
    con: duckdb.DuckDBPyConnection,
) -> None:
    edges(con, (2**62, 1), (3, 2), (2, 5))
    assert rows(con, "p(X * X) :- e(X, Y), e(Y, _). q(1) :- p(9).  ?- q(X).") == [(1,)]


def test_aggregates_range_over_the_set_of_bindings(con: duckdb.DuckDBPyConnection) -> None:
    edges(con, (1, 5), (2, 5), (2, 7), (2, 7))
    assert rows(con, "s(sum(Y)) :- e(X, Y).") == [(17,)]
    assert rows(con, "s(sum(Y)) :- e(_, Y).") == [(12,)]
    assert rows(con, "s(count(*), count(Y), count(X, Y)) :- e(X, Y).") == [(3, 2, 3)]
    assert rows(con, "s(X, sum(Y), min(Y), max(Y + 1)) :- e(X, Y).") == [
        (1, 5, 5, 6),
        (2, 12, 5, 8),
    ]


def test_an_empty_group_is_absent_also_without_grouping(con: duckdb.DuckDBPyConnection) -> None:
    for head in ("count(X)", "count(*)", "sum(X)", "min(X)", '"all", count(X)'):
        assert rows(con, f"s({head}) :- e(X, _).") == []


def test_a_sum_outside_64_bits_is_an_error(con: duckdb.DuckDBPyConnection) -> None:
    edges(con, (MAX, 0), (1, 0))
    with pytest.raises(EvaluationError, match=r"s\(sum\(X\)\)"):
        rows(con, "s(sum(X)) :- e(X, _).")
    edges(con, (-1, 0))
    assert rows(con, "s(sum(X)) :- e(X, _).") == [(MAX,)]


def test_an_aggregate_over_a_recursive_predicate_is_stratified(
    con: duckdb.DuckDBPyConnection,
) -> None:
    edges(con, (1, 2), (2, 3), (3, 1))
    text = "tc(X,Y) :- e(X,Y). tc(X,Y) :- tc(X,Z), e(Z,Y). n(X, count(Y)) :- tc(X, Y)."
    assert rows(con, text) == [(1, 3), (2, 3), (3, 3)]


def test_a_goal_without_variables_answers_whether_it_holds(con: duckdb.DuckDBPyConnection) -> None:
    edges(con, (1, 2))
    assert rows(con, "?- e(1, 2).") == [(1,)]
    assert rows(con, "?- e(2, 1).") == []


def test_columns_are_named_after_the_head(con: duckdb.DuckDBPyConnection) -> None:
    def names(text: str) -> list[str]:
        return answer(con, SCHEMA, text).column_names

    assert names("p(Y, X, X) :- e(X, Y).") == ["Y", "X", "X_2"]
    assert names("p(X, count(Y), count(*), 1) :- e(X, Y).") == ["X", "count_Y", "count", "c3"]
    assert names("?- e(X, _), e(X, Z).") == ["X", "Z"]


def test_types_of_an_answer_are_those_of_the_language_even_when_empty(
    con: duckdb.DuckDBPyConnection,
) -> None:
    table = answer(con, SCHEMA, "p(X, T, B) :- name(X, T), blob(B, X).")
    assert table.schema.types == [pa.int64(), pa.string(), pa.binary()]


def test_as_of_a_position_sees_the_facts_before_it(con: duckdb.DuckDBPyConnection) -> None:
    con.execute(f"INSERT INTO held VALUES (1, 0, 3), (2, 2, {OPEN_SEQ}), (1, 5, {OPEN_SEQ})")
    at = [answer(con, SCHEMA, "?- held(X).", as_of=n).column("X").to_pylist() for n in range(7)]
    assert at == [[], [1], [1], [1, 2], [2], [2], [1, 2]]
    assert rows(con, "?- held(X).") == [(1,), (2,)]


def test_a_provided_relation_is_an_arrow_table_of_its_types(
    con: duckdb.DuckDBPyConnection,
) -> None:
    query = compile_query("p(T) :- given(I, T), e(I, _).", SCHEMA)
    edges(con, (1, 1))
    table = pa.table({"x": pa.array([1, 2]), "y": pa.array(["one", "two"])})
    assert run(con, query, inputs={"given": table}).to_pylist() == [{"T": "one"}]
    with pytest.raises(BadInputError, match="cast them"):
        run(con, query, inputs={"given": pa.table({"x": [1.5], "y": ["a"]})})
    with pytest.raises(BadInputError, match=r"takes the relations \['given'\], got \[\]"):
        run(con, query)
    with pytest.raises(BadInputError, match="NULL"):
        run(con, query, inputs={"given": pa.table({"x": [1, None], "y": ["a", "b"]})})


def test_parameters_are_typed_present_and_known(con: duckdb.DuckDBPyConnection) -> None:
    query = compile_query("?- name(X, $wanted), X > $least.", SCHEMA)
    assert query.parameters == {"wanted": TEXT, "least": INT}
    con.execute("INSERT INTO name VALUES (7, 'a')")
    assert run(con, query, {"wanted": "a", "least": 6}).to_pylist() == [{"X": 7}]
    for values, message in (
        ({"wanted": "a"}, r"no value for parameter \$least \(INT\)"),
        ({"wanted": "a", "least": "6"}, r"parameter \$least is INT, got str"),
        ({"wanted": "a", "least": True}, "bool is not a type of the language"),
        ({"wanted": "a", "least": 1.0}, "float is not a type of the language"),
        ({"wanted": "a", "least": 2**63}, "does not fit 64 bits"),
        ({"wanted": "a", "least": 1, "lest": 2}, r"no parameter \$lest; did you mean least"),
    ):
        with pytest.raises(BadInputError, match=message):
            run(con, query, values)


def test_parameters_that_differ_only_in_case_are_two(con: duckdb.DuckDBPyConnection) -> None:
    assert rows(con, "p($N, $n).", N=1, n=2) == [(1, 2)]


def test_endless_recursion_ends_at_a_limit(con: duckdb.DuckDBPyConnection) -> None:
    counting = compile_query("n(0). n(X + 1) :- n(X).", SCHEMA)
    with pytest.raises(EvaluationLimitError, match=r"stopped after 0\.2 s"):
        run(con, counting, limits=Limits(seconds=0.2))
    mutual = compile_query("a(0). a(X + 1) :- b(X). b(X + 1) :- a(X).", SCHEMA)
    with pytest.raises(EvaluationLimitError, match="a, b still grew after 20 rounds"):
        run(con, mutual, limits=Limits(rounds=20))


def test_a_run_leaves_nothing_behind(con: duckdb.DuckDBPyConnection) -> None:
    edges(con, (1, 2), (2, 1))
    query = compile_query("p(X, Y) :- e(X, Y). p(X, Y) :- p(X, Z), p(Z, Y).", SCHEMA)
    first = run(con, query)
    assert run(con, query) == first
    assert con.execute("SELECT count(*) FROM duckdb_tables() WHERE temporary").fetchone() == (0,)


def test_null_in_a_bound_table_is_refused_not_answered(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("INSERT INTO e VALUES (1, NULL)")
    with pytest.raises(InvariantError, match="NULL"):
        rows(con, "?- e(1, X).")


def test_a_table_of_other_types_is_refused_when_bound(con: duckdb.DuckDBPyConnection) -> None:
    con.execute("CREATE TABLE given_rows (i INTEGER, t VARCHAR)")
    verify_schema(con, SCHEMA)
    narrow = Schema([Relation("n", (Column("i", INT),), "given_rows")])
    with pytest.raises(BadInputError, match="is INTEGER, expected BIGINT"):
        verify_schema(con, narrow)


def test_explain_shows_strata_sql_and_plan_and_runs_nothing(
    con: duckdb.DuckDBPyConnection,
) -> None:
    edges(con, (1, 0))
    text = (
        "a(X, Y) :- e(X, Y), Z = X // Y. b(X, Y) :- a(X, Y). b(X, Y) :- b(X, Z), b(Z, Y). "
        "?- e(X, $p), not b(X, _)."
    )
    shown = str(explain(con, compile_query(text, SCHEMA)))
    assert "0. stratum 0: a (not recursive)" in shown
    assert "1. stratum 0: b (recursive, semi-naive in temporary tables)" in shown
    assert "2. stratum 1: the goal (not recursive)" in shown
    for part in ("-- fill b", "-- grow b", "-- answer", "CREATE TEMP TABLE", "Projection"):
        assert part in shown
