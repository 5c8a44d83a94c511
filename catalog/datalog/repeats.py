"""Where rows may repeat, or cannot, so that nothing has to be made distinct.

Making rows distinct takes a hash table over all of them. It is left out where repeats cannot be
seen, and between rules that share no row.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagetrail.catalog.datalog.model import (
    Aggregate,
    AggregateKind,
    Anonymous,
    Atom,
    Constant,
    Parameter,
    Rule,
    Term,
    Variable,
    variables,
)
from pagetrail.catalog.datalog.strata import Component


def repeating(components: Sequence[Component], answer: str) -> frozenset[str]:
    """Predicates that are read once, as all that a minimum or maximum is taken over: their rows
    pass by, and one that comes twice changes nothing."""
    uses: dict[str, list[tuple[Rule, Atom]]] = {}
    for component in components:
        for rule in component.rules:
            for literal in rule.body:
                if isinstance(literal, Atom):
                    uses.setdefault(literal.predicate, []).append((rule, literal))
    return frozenset(
        predicate
        for component in components
        if not component.recursive
        for predicate in component.predicates
        if predicate != answer
        and len(found := uses.get(predicate, [])) == 1
        and _extreme_of(*found[0])
    )


def _extreme_of(rule: Rule, atom: Atom) -> bool:
    aggregates = [term for term in rule.head if isinstance(term, Aggregate)]
    return (
        bool(aggregates)
        and all(a.kind in (AggregateKind.MIN, AggregateKind.MAX) for a in aggregates)
        and rule.atoms(negated=False) == (atom,)
    )


def apart(rules: Sequence[Rule]) -> bool:
    """Whether no two of the rules can give the same row: one demands what the other excludes."""
    return all(
        _excludes(one, two) or _excludes(two, one)
        for i, one in enumerate(rules)
        for two in rules[:i]
    )


def _excludes(excluding: Rule, demanding: Rule) -> bool:
    """Whether a row of ``demanding`` has what a negated atom of ``excluding`` denies that row."""
    return any(
        denied.predicate == demanded.predicate
        and all(
            isinstance(no, Anonymous) or _same_value(no, excluding, yes, demanding)
            for no, yes in zip(denied.arguments, demanded.arguments, strict=True)
        )
        for denied in excluding.atoms(negated=True)
        for demanded in demanding.atoms(negated=False)
    )


def _same_value(one: Term, of: Rule, two: Term, of_two: Rule) -> bool:
    """Whether the terms have one value in any row that both rules give: as terms that stand in
    the same place of the heads, or as the same given value."""
    if isinstance(one, Variable) and isinstance(two, Variable):
        return any(
            isinstance(a, Variable)
            and isinstance(b, Variable)
            and (a.name, b.name) == (one.name, two.name)
            for a, b in zip(of.head, of_two.head, strict=True)
        )
    if isinstance(one, Constant) and isinstance(two, Constant):
        return type(one.value) is type(two.value) and one.value == two.value
    return isinstance(one, Parameter) and isinstance(two, Parameter) and one.name == two.name


def determined(
    keyed: Sequence[tuple[Atom, tuple[tuple[int, ...], ...]]],
    assigned: Sequence[tuple[str, Term]],
    known: set[str],
) -> bool:
    """Whether values of the variables ``known`` determine a row of each atom.

    Follows two kinds of dependency: an equality gives its target, a key gives the whole row.
    ``keyed``: atoms with their keys, sets of places; ``assigned``: variables with their terms.
    """
    found = set(known)
    open_rows = list(range(len(keyed)))
    grew = True
    while grew:
        grew = False
        for target, source in assigned:
            if target not in found and all(v.name in found for v in variables(source)):
                found.add(target)
                grew = True
        for i in tuple(open_rows):
            atom, keys = keyed[i]
            if not any(all(_given(atom.arguments[k], found) for k in key) for key in keys):
                continue
            open_rows.remove(i)
            found.update(v.name for a in atom.arguments for v in variables(a))
            grew = True
    return not open_rows


def _given(argument: Term, found: set[str]) -> bool:
    return not isinstance(argument, Anonymous) and all(v.name in found for v in variables(argument))
