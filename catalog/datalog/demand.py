"""Demand: a predicate is derived only as far as its callers ask, when they ask for given values.

A call such as ``led_to(Before, 17)`` needs no other rows of ``led_to`` than those with 17. Where
all calls of a predicate give constants or parameters in some place,

- and every recursive rule hands that place on unchanged, or nothing recurses, the value stands in
  the place's variable in all rules of the predicate, and so reaches the calls in their bodies;
- else, for recursion (a magic set), the values that recursion asks for next are a predicate of
  their own, derived first from the values given, and each rule is joined with it.

Rewrites checked programs into programs with the same answer. Predicates that recurse mutually or
through more than one call in a rule, and the answer itself, stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pagetrail.catalog.datalog.model import (
    Aggregate,
    Anonymous,
    Atom,
    Constant,
    Literal,
    Operation,
    Parameter,
    Program,
    Rule,
    Term,
    Variable,
)
from pagetrail.catalog.datalog.strata import Component

MAGIC_SUFFIX = "?"
"""The predicate of the values asked for; no program can write its name."""


def on_demand(program: Program, components: Sequence[Component]) -> Program:
    """The program with demand pushed into its rules, callers first; itself when there is none.

    ``components`` are those of the program that the answer needs, callees first.
    """
    rules: dict[str, list[Rule]] = {
        name: [r for r in component.rules if r.predicate == name]
        for component in components
        for name in component.predicates
    }
    magic: list[Rule] = []
    changed = False
    for component in reversed(components):
        name = component.predicates[0]
        if len(component.predicates) > 1 or not component.linear or name == program.answer:
            continue
        calls = [
            atom
            for predicate, group in rules.items()
            if predicate != name
            for rule in group
            for atom in rule.body
            if isinstance(atom, Atom) and atom.predicate == name
        ]
        given = _given(calls)
        if not given:
            continue
        fixed = {
            place: calls[0].arguments[place]
            for place in given
            if _stable(rules[name], name, place) and _agree(calls, place)
        }
        if fixed:
            rules[name] = [_with_values(rule, fixed) for rule in rules[name]]
            changed = True
        rest = [place for place in given if place not in fixed]
        if component.recursive and rest:
            derived = _magic(rules[name], name, calls, rest)
            if derived is not None:
                first, rules[name] = derived
                magic += first
                changed = True
    if not changed:
        return program
    return Program((*magic, *(rule for group in rules.values() for rule in group)))


def _given(calls: Sequence[Atom]) -> list[int]:
    """The places in which every call gives a value."""
    if not calls:
        return []
    return [
        place
        for place in range(len(calls[0].arguments))
        if all(isinstance(call.arguments[place], (Constant, Parameter)) for call in calls)
    ]


def _agree(calls: Sequence[Atom], place: int) -> bool:
    return len({_value(call.arguments[place]) for call in calls}) == 1


def _value(term: Term) -> tuple[str, object]:
    if isinstance(term, Parameter):
        return "parameter", term.name
    if isinstance(term, Constant):
        return type(term.value).__name__, term.value
    raise TypeError(f"{term!r} is no given value")


def _recursive_call(rule: Rule, name: str) -> Atom | None:
    return next((a for a in rule.atoms(negated=False) if a.predicate == name), None)


def _stable(rules: Sequence[Rule], name: str, place: int) -> bool:
    """Whether every recursive rule hands the place's value on, and some rule can take it."""
    takes = False
    for rule in rules:
        head, call = rule.head[place], _recursive_call(rule, name)
        takes |= isinstance(head, Variable)
        if call is not None:
            argument = call.arguments[place]
            if not isinstance(head, Variable) or not isinstance(argument, Variable):
                return False
            if head.name != argument.name:
                return False
    return takes


def _with_values(rule: Rule, fixed: Mapping[int, Term]) -> Rule:
    """The rule for those rows alone that have the values in their places."""
    values = {
        head.name: value
        for place, value in fixed.items()
        if isinstance(head := rule.head[place], Variable)
    }
    if not values:
        return rule
    body: list[Literal] = []
    for literal in rule.body:
        if isinstance(literal, Atom):
            arguments = tuple(_put(argument, values) for argument in literal.arguments)
            body.append(replace(literal, arguments=arguments))
        else:
            left, right = _put(literal.left, values), _put(literal.right, values)
            body.append(replace(literal, left=left, right=right))
    heads = tuple(
        replace(term, arguments=tuple(_put(argument, values) for argument in term.arguments))
        if isinstance(term, Aggregate)
        else _put(term, values)
        for term in rule.head
    )
    return replace(rule, head=heads, body=tuple(body))


def _put(term: Term, values: Mapping[str, Term]) -> Term:
    if isinstance(term, Variable):
        return values.get(term.name, term)
    if isinstance(term, Operation):
        return replace(term, left=_put(term.left, values), right=_put(term.right, values))
    return term


def _magic(
    rules: Sequence[Rule], name: str, calls: Sequence[Atom], given: Sequence[int]
) -> tuple[list[Rule], list[Rule]] | None:
    """(rules of the values asked for, the rules joined with them), or None when the values of no
    place can be followed through the recursion."""
    places = [
        place
        for place in given
        if all(isinstance(rule.head[place], (Variable, Constant, Parameter)) for rule in rules)
    ]
    while places:
        lost = {place for rule in rules for place in _lost(rule, name, places)}
        if not lost:
            break
        places = [place for place in places if place not in lost]
    if not places:
        return None
    asked = name + MAGIC_SUFFIX
    first = [
        Rule(
            asked,
            tuple(call.arguments[place] for place in places),
            (),
            call.at,
            f"{name} is asked for at line {call.at.line}",
            rules[0].file,
        )
        for call in calls
    ]
    joined: list[Rule] = []
    for rule in rules:
        terms = [term for place in places if not isinstance(term := rule.head[place], Aggregate)]
        guard = Atom(asked, tuple(terms), False, rule.at)
        call = _recursive_call(rule, name)
        if call is not None:
            wanted = tuple(call.arguments[place] for place in places)
            if wanted != tuple(terms):
                body = (guard, *_reachable(rule, call, _names(terms)))
                first.append(replace(rule, predicate=asked, head=wanted, body=body))
        joined.append(replace(rule, body=(guard, *rule.body)))
    return first, joined


def _lost(rule: Rule, name: str, places: Sequence[int]) -> list[int]:
    """The places whose next value does not follow from the values asked for."""
    call = _recursive_call(rule, name)
    if call is None:
        return []
    known = _names([term for p in places if not isinstance(term := rule.head[p], Aggregate)])
    for atom in _reachable(rule, call, known):
        known |= _names(atom.arguments)
    return [
        place
        for place in places
        if isinstance(term := call.arguments[place], (Anonymous, Operation))
        or (isinstance(term, Variable) and term.name not in known)
    ]


def _reachable(rule: Rule, call: Atom, known: frozenset[str]) -> tuple[Atom, ...]:
    """The other positive atoms that are joined, in one step or more, with the known variables."""
    waiting = [atom for atom in rule.atoms(negated=False) if atom is not call]
    waiting = [a for a in waiting if not any(isinstance(x, Operation) for x in a.arguments)]
    found: list[Atom] = []
    grew = True
    while grew:
        grew = False
        for atom in tuple(waiting):
            if known & _names(atom.arguments):
                known |= _names(atom.arguments)
                found.append(atom)
                waiting.remove(atom)
                grew = True
    return tuple(found)


def _names(terms: Iterable[Term]) -> frozenset[str]:
    return frozenset(term.name for term in terms if isinstance(term, Variable))
