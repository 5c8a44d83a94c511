"""Checks of names, arities and safety. Every finding is reported, not only the first.

A rule is *safe* when each variable of its head, its negated atoms and its comparisons is bound: by
a positive atom that holds it as a plain argument, or by an equality whose other side is bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from pagetrail.catalog.datalog.errors import Diagnostic, nearest
from pagetrail.catalog.datalog.model import (
    GOAL,
    Aggregate,
    Anonymous,
    Atom,
    Compare,
    Comparison,
    Place,
    Program,
    Rule,
    Schema,
    Term,
    Variable,
    variables,
)


def in_order(program: Program, schema: Schema) -> tuple[Program, list[Diagnostic]]:
    """The program with named arguments put in the order of their relation's columns, ``_`` for
    the columns that are not named; and findings about names."""
    findings: list[Diagnostic] = []
    rules = []
    for rule in program.rules:
        body = tuple(
            _positional(rule, literal, schema, findings)
            if isinstance(literal, Atom) and literal.names is not None
            else literal
            for literal in rule.body
        )
        rules.append(rule if body == rule.body else replace(rule, body=body))
    return Program(tuple(rules)), findings


def _positional(rule: Rule, atom: Atom, schema: Schema, findings: list[Diagnostic]) -> Atom:
    relation = schema.get(atom.predicate)
    names = atom.names or ()
    if relation is None:
        message = f"named arguments of {atom.predicate}, which is no base relation"
        findings.append(_finding(rule, atom.at, message, "give its arguments in order"))
        return replace(atom, names=None)
    columns = [c.name for c in relation.columns]
    given: dict[str, Term] = {}
    for name, term in zip(names, atom.arguments, strict=True):
        if name not in columns:
            close = nearest(name, columns)
            fix = f"did you mean {close}?" if close else f"its columns are {', '.join(columns)}"
            message = f"{atom.predicate} has no column {name}"
            findings.append(_finding(rule, atom.at, message, fix))
        elif name in given:
            message = f"column {name} of {atom.predicate} is given twice"
            findings.append(_finding(rule, atom.at, message, "add an equality instead"))
        given[name] = term
    arguments = tuple(given.get(name, Anonymous(atom.at)) for name in columns)
    return Atom(atom.predicate, arguments, atom.negated, atom.at)


def check(program: Program, schema: Schema, others: Iterable[str] = ()) -> list[Diagnostic]:
    """Findings about predicates, arities and safety, in no particular order.

    ``others``: names that an unknown predicate may have been meant for, besides those in use.
    """
    arities: dict[str, tuple[int, Place]] = {}
    for rule in program.rules:
        arities.setdefault(rule.predicate, (len(rule.head), rule.at))
    findings: list[Diagnostic] = []
    names = [*schema, *others, *(name for name in arities if name != GOAL)]
    for rule in program.rules:
        findings.extend(_counts(rule))
        findings.extend(_names(rule, schema, arities, names))
        findings.extend(_safety(rule))
    return findings


def _names(
    rule: Rule, schema: Schema, arities: dict[str, tuple[int, Place]], names: list[str]
) -> Iterator[Diagnostic]:
    if rule.predicate in schema:
        yield _finding(
            rule,
            rule.at,
            f"{rule.predicate} is a base relation and cannot be the head of a rule",
            "give the derived predicate a name of its own",
        )
        return
    arity, first = arities[rule.predicate]
    if len(rule.head) != arity:
        yield _finding(
            rule,
            rule.at,
            f"{rule.predicate} has {len(rule.head)} arguments, but {arity} at line {first.line}",
            f"give every rule of {rule.predicate} {arity} arguments, or rename one",
        )
    for literal in rule.body:
        if not isinstance(literal, Atom):
            continue
        name, used = literal.predicate, len(literal.arguments)
        if name in schema:
            columns = schema[name].columns
            if used != len(columns):
                arguments = ", ".join(c.name for c in columns)
                yield _finding(
                    rule,
                    literal.at,
                    f"{name} takes {len(columns)} arguments, got {used}",
                    f"write {name}({arguments}), with _ for what is of no interest",
                )
        elif name in arities:
            if used != arities[name][0]:
                yield _finding(
                    rule,
                    literal.at,
                    f"{name} takes {arities[name][0]} arguments, got {used}",
                    f"its rule at line {arities[name][1].line} defines the arguments",
                )
        else:
            close = nearest(name, names)
            yield _finding(
                rule,
                literal.at,
                f"unknown predicate {name}",
                f"did you mean {close}?" if close else "define it by a rule or declare a relation",
            )


def _safety(rule: Rule) -> Iterator[Diagnostic]:
    bound = bound_variables(rule)
    reported: set[str] = set()
    for term, where in _uses(rule):
        for variable in variables(term):
            if variable.name in bound or variable.name in reported:
                continue
            reported.add(variable.name)
            yield _finding(
                rule,
                variable.at,
                f"unsafe variable {variable.name} in {where}",
                f"bind {variable.name} by a positive atom, or by {variable.name} = <bound terms>",
            )


def _counts(rule: Rule) -> Iterator[Diagnostic]:
    for term in rule.head:
        if isinstance(term, Aggregate) and not term.arguments and not bound_variables(rule):
            yield _finding(
                rule,
                term.at,
                "count(*) counts bindings of named variables, and the body names none",
                "name what is to be counted instead of writing _",
            )


def bound_variables(rule: Rule) -> set[str]:
    """The variables that the body binds (see the module's definition of safety)."""
    bound = {
        argument.name
        for atom in rule.atoms(negated=False)
        for argument in atom.arguments
        if isinstance(argument, Variable)
    }
    equalities = [b for b in rule.body if isinstance(b, Comparison) and b.operator is Compare.EQ]
    grew = True
    while grew:
        grew = False
        for equality in equalities:
            for target, source in (
                (equality.left, equality.right),
                (equality.right, equality.left),
            ):
                if (
                    isinstance(target, Variable)
                    and target.name not in bound
                    and all(v.name in bound for v in variables(source))
                ):
                    bound.add(target.name)
                    grew = True
    return bound


def _uses(rule: Rule) -> Iterable[tuple[Term, str]]:
    for literal in rule.body:
        if isinstance(literal, Comparison):
            yield literal.left, "a comparison"
            yield literal.right, "a comparison"
        else:
            kind = "negated atom" if literal.negated else "atom"
            for argument in literal.arguments:
                yield argument, f"{kind} {literal.predicate}"
    for term in rule.head:
        for variable in variables(term):
            yield variable, "the head"


def _finding(rule: Rule, at: Place, message: str, fix: str) -> Diagnostic:
    return Diagnostic(rule.file, at.line, at.column, rule.text, message, fix)
