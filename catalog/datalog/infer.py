"""Types of every predicate column, variable and parameter, by unification over the whole program.

The three types never mix: there is no coercion and no untyped value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagetrail.catalog.datalog.errors import Diagnostic
from pagetrail.catalog.datalog.model import (
    GOAL,
    Aggregate,
    AggregateKind,
    Anonymous,
    Atom,
    Constant,
    Operation,
    Parameter,
    Place,
    Program,
    Rule,
    Schema,
    Term,
    Type,
    Variable,
    type_of,
)

_Slot = tuple[str, str | int, str | int]
"""A thing that has a type: ("column", predicate, i), ("variable", rule, name), ("$", name, 0)."""


@dataclass(frozen=True, slots=True)
class Types:
    """The result: column types of derived predicates, and the type of each parameter."""

    columns: Mapping[str, tuple[Type, ...]]
    parameters: Mapping[str, Type]


def infer(
    program: Program, schema: Schema, parameters: Mapping[str, Type]
) -> tuple[Types, list[Diagnostic]]:
    """Infer all types. ``parameters`` are declared ones; others follow from their use.

    Expects a program that passed ``check``.
    """
    unifier = _Unifier(schema)
    for name, declared in parameters.items():
        unifier.types[unifier.find(("$", name, 0))] = declared
    for number, rule in enumerate(program.rules):
        unifier.rule(number, rule)
    columns: dict[str, tuple[Type, ...]] = {}
    for rule in program.rules:
        if rule.predicate in columns:
            continue
        types = [unifier.known(("column", rule.predicate, i)) for i in range(len(rule.head))]
        for i, type_ in enumerate(types):
            if type_ is None:
                unifier.report(
                    rule,
                    rule.at,
                    f"the type of argument {i + 1} of {rule.predicate} cannot be told",
                    "no rule gives it a value; add a base case, or declare the parameter's type",
                )
        columns[rule.predicate] = tuple(t for t in types if t is not None)
    found: dict[str, Type] = {}
    for name, (rule, at) in unifier.parameters.items():
        inferred = unifier.known(("$", name, 0))
        if inferred is None:
            unifier.report(
                rule,
                at,
                f"the type of ${name} cannot be told",
                "declare it: parameters={...: Type.INT | Type.TEXT | Type.BYTES}",
            )
        else:
            found[name] = inferred
    return Types(columns, found), unifier.findings


class _Unifier:
    """Union-find over slots, with the findings gathered on the way."""

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._parent: dict[_Slot, _Slot] = {}
        self.types: dict[_Slot, Type] = {}
        self.parameters: dict[str, tuple[Rule, Place]] = {}
        self.findings: list[Diagnostic] = []

    def find(self, slot: _Slot) -> _Slot:
        root = slot
        while (above := self._parent.get(root, root)) != root:
            root = above
        while slot != root:
            self._parent[slot], slot = root, self._parent.get(slot, root)
        return root

    def known(self, slot: _Slot) -> Type | None:
        return self.types.get(self.find(slot))

    def rule(self, number: int, rule: Rule) -> None:
        for literal in rule.body:
            if isinstance(literal, Atom):
                for i, argument in enumerate(literal.arguments):
                    if isinstance(argument, Anonymous):
                        continue
                    what = f"argument {i + 1} of {literal.predicate}"
                    got = self._term(number, rule, argument)
                    if literal.predicate in self._schema:
                        column = self._schema[literal.predicate].columns[i]
                        what += f" ({column.name})"
                        self._join(rule, argument.at, got, column.type, what)
                    else:
                        slot = ("column", literal.predicate, i)
                        self._join(rule, argument.at, got, slot, what)
            else:
                left = self._term(number, rule, literal.left)
                right = self._term(number, rule, literal.right)
                self._join(rule, literal.at, left, right, "the other side of the comparison")
        for i, term in enumerate(rule.head):
            slot = ("column", rule.predicate, i)
            got = self._head(number, rule, term)
            name = "the goal" if rule.predicate == GOAL else rule.predicate
            self._join(rule, term.at, got, slot, f"argument {i + 1} of {name}")

    def _head(self, number: int, rule: Rule, term: Term | Aggregate) -> _Slot | Type:
        if not isinstance(term, Aggregate):
            return self._term(number, rule, term)
        inner = [self._term(number, rule, argument) for argument in term.arguments]
        if term.kind is AggregateKind.COUNT:
            return Type.INT
        if term.kind is AggregateKind.SUM:
            self._join(rule, term.at, inner[0], Type.INT, "sum")
            return Type.INT
        return inner[0]

    def _term(self, number: int, rule: Rule, term: Term) -> _Slot | Type:
        if isinstance(term, Variable):
            return ("variable", number, term.name)
        if isinstance(term, Parameter):
            self.parameters.setdefault(term.name, (rule, term.at))
            return ("$", term.name, 0)
        if isinstance(term, Constant):
            type_ = type_of(term.value)
            if type_ is not None:
                return type_
        if isinstance(term, Operation):
            for side in (term.left, term.right):
                inner = self._term(number, rule, side)
                self._join(rule, side.at, inner, Type.INT, f"'{term.operator.value}'")
            return Type.INT
        raise TypeError(f"no type for {term!r}: the parser never puts it here")

    def _join(
        self, rule: Rule, at: Place, one: _Slot | Type, two: _Slot | Type, where: str
    ) -> None:
        first = one if isinstance(one, Type) else self.known(one)
        second = two if isinstance(two, Type) else self.known(two)
        if first is not None and second is not None and first is not second:
            self.report(
                rule,
                at,
                f"wrong type: {first.name}, but {where} is {second.name}",
                "types do not mix and are not converted: use values of one type",
            )
            return
        type_ = first or second
        slots = [self.find(s) for s in (one, two) if not isinstance(s, Type)]
        if len(slots) == 2 and slots[0] != slots[1]:
            self._parent[slots[0]] = slots[1]
        if type_ is not None and slots:
            self.types[slots[-1]] = type_

    def report(self, rule: Rule, at: Place, message: str, fix: str) -> None:
        self.findings.append(Diagnostic(rule.file, at.line, at.column, rule.text, message, fix))
