"""Every refusal names the place, the rule and a fix."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetrail.catalog.datalog import Column, DatalogError, Relation, Schema, Type, compile_query
from pagetrail.catalog.datalog.parser import parse
from pagetrail.catalog.errors import BadInputError

SCHEMA = Schema(
    [
        Relation("edge", (Column("a", Type.INT), Column("b", Type.INT)), "edge"),
        Relation("name", (Column("id", Type.INT), Column("text", Type.TEXT)), "name"),
        Relation("blob", (Column("bytes", Type.BYTES),), "blob"),
    ]
)

REFUSED = [
    # text, line, column, part of the message, part of the fix
    ("p(X, Y) :- edge(X, _).", 1, 6, "unsafe variable Y in the head", "bind Y"),
    ("p(X) :-\n  edge(X, _),\n  not edge(X, Z).", 3, 15, "unsafe variable Z in negated atom", "Z"),
    ("p(X) :- edge(X, _), X < Z.", 1, 25, "unsafe variable Z in a comparison", "bind Z"),
    ("p(X) :- edge(X + Z, X).", 1, 18, "unsafe variable Z in atom edge", "bind Z"),
    ("p(X) :- X = Y + 1, Y = X - 1, edge(_, _).", 1, 9, "unsafe variable X", "bind X"),
    ("p(X).", 1, 3, "unsafe variable X in the head", "bind X"),
    ("p(X) :- egde(X, _).", 1, 9, "unknown predicate egde", "did you mean edge?"),
    ("p(X) :- zzz(X, _).", 1, 9, "unknown predicate zzz", "define it by a rule"),
    ("p(X) :- edge(X).", 1, 9, "edge takes 2 arguments, got 1", "write edge(a, b)"),
    ("p(1). q(X) :- p(X, _).", 1, 15, "p takes 1 arguments, got 2", "line 1"),
    ("p(1).\np(1, 2).", 2, 1, "p has 2 arguments, but 1 at line 1", "rename one"),
    ("edge(1, 2).", 1, 1, "edge is a base relation", "a name of its own"),
    ("p(X) :- edge(X, _), not p(X).", 1, 21, "depends on itself through not (p -> p)", "break"),
    (
        "p(X) :- edge(X, _), not q(X).\nq(X) :- r(X).\nr(X) :- edge(X, _), p(X).",
        1,
        21,
        "through not (p -> q -> r -> p)",
        "q must be complete before p",
    ),
    (
        "p(1, 2). p(X, count(Y)) :- p(X, Y).",
        1,
        28,
        "through an aggregate (p -> p)",
        "break the cycle",
    ),
    ("p(X) :- edge(X, T), name(_, T).", 1, 29, "wrong type", "use values of one type"),
    ('p(X) :- edge(X, "a").', 1, 17, "wrong type: TEXT, but argument 2 of edge (b) is INT", "one"),
    ("p(X) :- name(X, T), T < 3.", 1, 21, "wrong type", "types do not mix"),
    ("p(T + 1) :- name(_, T).", 1, 3, "wrong type: TEXT, but '+' is INT", "types do not mix"),
    ("p(sum(T)) :- name(_, T).", 1, 3, "wrong type: TEXT, but sum is INT", "types do not mix"),
    ('p(1). p("a").', 1, 9, "wrong type: TEXT, but argument 1 of p is INT", "types do not mix"),
    ("p(0x00) :- edge(_, _). q(X) :- p(X), edge(X, _).", 1, 43, "wrong type: BYTES", "types"),
    ("p(X) :- p(X).", 1, 1, "the type of argument 1 of p cannot be told", "add a base case"),
    ("p(1) :- $x = $y, edge(_, _).", 1, 9, "the type of $x cannot be told", "declare it"),
    ("n(count(*)) :- edge(_, _).", 1, 3, "the body names none", "name what is to be counted"),
    ("p(X) :- edge(X, 1.5).", 1, 17, "1.5 is a float", "scale to an integer unit"),
    ("p(X) :- edge(X, 1e5).", 1, 17, "1e5 is a float", "scale to an integer unit"),
    ("p(X) :- edge(X, 9223372036854775808).", 1, 17, "does not fit 64 bits", "2^63"),
    ("p(X) :- edge(X, 12ab).", 1, 17, "'12ab' is not an integer", "decimal digits"),
    ("p(X) :- blob(X), X = 0xabc.", 1, 22, "'0xabc' is not a byte string", "even number"),
    ("p(X) :- name(X, 'a').", 1, 17, "single quotes", 'write "..."'),
    ('p(X) :- name(X, "a).', 1, 17, "text that does not end on its line", "close it"),
    ('p(X) :- name(X, "\\q").', 1, 17, "unknown escape '\\q'", "\\n"),
    ('p(X) :- name(X, "\0").', 1, 17, "text may not hold U+0000", "0x"),
    ("p(X) :- edge(X, _); edge(_, X).", 1, 19, "disjunction", "one rule for each"),
    ("p(X) | q(X) :- edge(X, _).", 1, 6, "disjunction", "one rule for each"),
    ("{p(X)} :- edge(X, _).", 1, 1, "choice", "plain rules"),
    ("p(X) :- edge(X, _), !edge(_, X).", 1, 21, "'!' is not negation", "write not"),
    ("p(X) :- edge(X, _), \\+ edge(_, X).", 1, 21, "is not negation", "write not"),
    ("p(X) :- edge(X, Y), X == Y.", 1, 23, "'==' is not an operator", "write ="),
    ("p(X) :- edge(X, Y), X <> Y.", 1, 23, "'<>' is not an operator", "write !="),
    ("p(X / 2) :- edge(X, _).", 1, 5, "'/' is not an operator", "write //"),
    ("p(f(X)) :- edge(X, _).", 1, 3, "compound term f(...)", "one column for each part"),
    ("p(a) :- edge(_, _).", 1, 3, "a is not a term", 'write "a" for text'),
    ("p([X]) :- edge(X, _).", 1, 3, "lists are not part", "one row for each element"),
    ("p :- edge(_, _).", 1, 3, "predicate p without arguments", "write p(1)"),
    ("p() :- edge(_, _).", 1, 3, "empty argument list", "write p(1)"),
    ("p(_) :- edge(_, _).", 1, 3, "'_' outside the arguments", "name the variable"),
    ("p(X) :- edge(X, _Y).", 1, 17, "_Y is neither a variable", "only '_' alone"),
    ("p(X) :- not X < 1, edge(X, _).", 1, 13, "'not' applies to an atom only", "not X < Y is"),
    ("p(X) :- edge(X, _), count(Y) > 1.", 1, 21, "aggregate count in a body", "helper rule"),
    ("p(1 + sum(X)) :- edge(X, _).", 1, 7, "aggregate sum inside an expression", "whole argument"),
    ("p(sum(X, Y)) :- edge(X, Y).", 1, 3, "sum takes 1 argument, got 2", "only count"),
    ("#show p/1.", 1, 1, "directives such as '#show'", "aggregates are written in the head"),
    (":- edge(X, X).", 1, 1, "expected a predicate, found ':-'", "starts with a-z"),
    ("p(X) :- edge(X, _)", 1, 19, "expected '.' after a literal, found the end", "end the rule"),
    ("p(X) :- edge(X, _) edge(X, _).", 1, 20, "expected '.' after a literal", "with ','"),
    ("p(X) :- X, edge(X, _).", 1, 10, "expected a comparison", "a body literal is"),
    ("?- edge(X, _). p(1).", 1, 16, "a statement after the goal", "put the goal last"),
    ("", 1, 1, "the program is empty", "at least one rule"),
    ("% nothing\n", 2, 1, "the program is empty", "at least one rule"),
    ("p(X) :- edge(A: X).", 1, 15, "expected ')' in the arguments of edge", "with ','"),
    ("p(X) :- edge(a: X, 1).", 1, 21, "with and without names", "name every argument"),
    ("p(X) :- edge(zz: X).", 1, 9, "edge has no column zz", "its columns are a, b"),
    ("p(X) :- name(txt: X).", 1, 9, "name has no column txt", "did you mean text?"),
    ("p(X) :- edge(a: X, a: X).", 1, 9, "column a of edge is given twice", "an equality"),
    ("q(1). p(X) :- q(a: X).", 1, 15, "named arguments of q, which is no base", "in order"),
    ("p(X) :- edge(X, $1).", 1, 17, "'$1' is not a parameter", "write $name"),
    ("p(X) :- edge(X, é).", 1, 17, "unexpected character 'é'", "grammar"),
]


@pytest.mark.parametrize(("text", "line", "column", "message", "fix"), REFUSED)
def test_refusals_name_place_message_and_fix(
    text: str, line: int, column: int, message: str, fix: str
) -> None:
    with pytest.raises(DatalogError) as caught:
        compile_query(text, SCHEMA, file="some.dl")
    first = caught.value.diagnostics[0]
    assert (first.file, first.line, first.column) == ("some.dl", line, column)
    assert message in first.message
    assert fix in first.fix
    assert str(first) in str(caught.value)


def test_all_findings_of_a_phase_are_reported_in_source_order() -> None:
    with pytest.raises(DatalogError) as caught:
        compile_query("p(Z) :- edge(X).\nq(X) :- nope(X), edge(X, _, _).", SCHEMA)
    assert [(d.line, d.message) for d in caught.value.diagnostics] == [
        (1, "unsafe variable Z in the head"),
        (1, "edge takes 2 arguments, got 1"),
        (2, "unknown predicate nope"),
        (2, "edge takes 2 arguments, got 3"),
    ]


def test_the_rule_is_quoted_on_one_line_and_cut() -> None:
    body = ",\n   ".join(["edge(X, _)"] * 40)
    with pytest.raises(DatalogError) as caught:
        compile_query(f"ok(1).\np(Y) :- {body}.", SCHEMA)
    rule = caught.value.diagnostics[0].rule
    assert rule.startswith("p(Y) :- edge(X, _), edge(X, _)")
    assert len(rule) == 160
    assert rule.endswith("...")


@pytest.mark.parametrize(
    "text",
    [
        "p(" + "(" * 40 + "1" + ")" * 40 + ").",
        "p(" + " + ".join(["1"] * 40) + ").",
        "p(" + "-" * 40 + "1).",
    ],
)
def test_expressions_nested_too_deep_are_refused(text: str) -> None:
    with pytest.raises(DatalogError, match="nested more than 12 deep"):
        parse(text)


def test_an_expression_that_grows_too_large_in_sql_is_refused() -> None:
    nested = "X"
    for _ in range(11):
        nested = f"({nested} // X)"
    with pytest.raises(DatalogError, match="too large to translate"):
        compile_query(f"p({nested}) :- edge(X, _).", SCHEMA)


def test_a_standing_rule_cannot_be_defined_again() -> None:
    library = parse("far(X, Y) :- edge(X, Z), edge(Z, Y).", "rules/far.dl").rules
    with pytest.raises(DatalogError, match=r"far is a standing rule \(rules/far\.dl\)"):
        compile_query("far(1, 2).", SCHEMA, library=library)
    query = compile_query("?- far(X, _).", SCHEMA, library=library)
    assert [r.file for r in query.program.rules] == ["rules/far.dl", "<query>"]
    with pytest.raises(DatalogError, match="did you mean far"):
        compile_query("?- farr(X, _).", SCHEMA, library=library)


VOCABULARY = (
    'p q edge name X Y _ $a 1 - 0x00 "a" ( ) , . :- ?- not = < + // mod count sum * a: % \n'
)
PIECES = st.sampled_from(VOCABULARY.split(" "))


@given(st.lists(PIECES, max_size=40).map(" ".join) | st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_text_compiles_or_is_refused_with_a_place_inside_it(text: str) -> None:
    try:
        compile_query(text, SCHEMA)
    except DatalogError as error:
        lines = text.split("\n")
        for finding in error.diagnostics:
            assert 1 <= finding.line <= len(lines)
            assert 1 <= finding.column <= len(lines[finding.line - 1]) + 1
            assert finding.message
            assert finding.fix


def test_a_program_of_many_facts_compiles_in_one_pass() -> None:
    text = " ".join(f"p({i}, {i + 1})." for i in range(20_000))
    query = compile_query(text + " ?- p(X, Y), edge(X, Y).", SCHEMA)
    assert query.sql.count("VALUES") == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Relation("Edge", (Column("a", Type.INT),), "t"), "rename it"),
        (lambda: Relation("e", (Column("a b", Type.INT),), "t"), "plain SQL identifier"),
        (lambda: Relation("e", (Column("a", Type.INT),), 't"; DROP'), "plain SQL identifier"),
        (lambda: Relation("e", (), "t"), "1 to 64 different columns"),
        (lambda: Relation("e", (Column("a", Type.INT),) * 2, "t"), "1 to 64 different columns"),
        (lambda: Relation("e", (Column("a", Type.INT),), "t", (("b",),)), "must name one or more"),
        (lambda: Schema([SCHEMA["edge"], SCHEMA["edge"]]), "declared twice"),
    ],
)
def test_a_schema_that_cannot_be_bound_is_refused(make: object, message: str) -> None:
    with pytest.raises(BadInputError, match=message):
        make()  # type: ignore[operator]
