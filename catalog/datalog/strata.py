"""Order of evaluation: strongly connected components of the derived predicates, callees first.

A cycle through ``not`` or through an aggregate has no stratified meaning and is refused with the
cycle spelled out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pagetrail.catalog.datalog.errors import Diagnostic
from pagetrail.catalog.datalog.model import Atom, Program, Rule


@dataclass(frozen=True, slots=True)
class Component:
    """Predicates that depend on each other, with their rules.

    ``recursive``: some rule of the component uses a predicate of it. ``linear``: no rule uses more
    than one. ``level`` is the stratum: 0 where nothing below is negated or aggregated.
    """

    predicates: tuple[str, ...]
    rules: tuple[Rule, ...]
    recursive: bool
    linear: bool
    level: int


def stratify(program: Program) -> tuple[tuple[Component, ...], list[Diagnostic]]:
    """Components that the answer needs, in evaluation order, and the unstratified cycles found.

    Cycles are looked for in the whole program, needed or not.
    """
    rules: dict[str, list[Rule]] = {}
    for rule in program.rules:
        rules.setdefault(rule.predicate, []).append(rule)
    uses = {
        head: {
            literal.predicate: None
            for rule in group
            for literal in rule.body
            if isinstance(literal, Atom) and literal.predicate in rules
        }
        for head, group in rules.items()
    }
    order = _components(uses)
    member = {predicate: i for i, names in enumerate(order) for predicate in names}
    findings = [
        _cycle(rule, literal, uses)
        for rule in program.rules
        for literal in rule.body
        if isinstance(literal, Atom)
        and (literal.negated or rule.aggregates)
        and member.get(literal.predicate) == member[rule.predicate]
    ]
    if findings:
        return (), findings
    needed = _reachable(program.answer, uses)
    level: dict[str, int] = {}
    components: list[Component] = []
    for names in order:
        group = tuple(r for name in names for r in rules[name])
        inside = frozenset(names)
        occurrences = [
            sum(atom.predicate in inside for atom in rule.atoms(negated=False)) for rule in group
        ]
        here = max(
            (
                level[literal.predicate] + int(literal.negated or rule.aggregates)
                for rule in group
                for literal in rule.body
                if isinstance(literal, Atom) and literal.predicate in level
            ),
            default=0,
        )
        level.update(dict.fromkeys(names, here))
        if inside & needed:
            components.append(
                Component(names, group, any(occurrences), max(occurrences) <= 1, here)
            )
    return tuple(components), []


def _components(uses: Mapping[str, Mapping[str, None]]) -> list[tuple[str, ...]]:
    """Tarjan's algorithm without recursion; components in callee-first order, names as written."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    out: list[tuple[str, ...]] = []
    position = {name: i for i, name in enumerate(uses)}
    for root in uses:
        if root in index:
            continue
        work = [(root, iter(uses[root]))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            name, callees = work[-1]
            callee = next(callees, None)
            if callee is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == index[name]:
                    cut = stack.index(name)
                    members = stack[cut:]
                    del stack[cut:]
                    on_stack.difference_update(members)
                    out.append(tuple(sorted(members, key=position.__getitem__)))
            elif callee not in index:
                index[callee] = low[callee] = len(index)
                stack.append(callee)
                on_stack.add(callee)
                work.append((callee, iter(uses[callee])))
            elif callee in on_stack:
                low[name] = min(low[name], index[callee])
    return out


def _reachable(answer: str, uses: Mapping[str, Mapping[str, None]]) -> frozenset[str]:
    seen = {answer}
    todo = [answer]
    while todo:
        for callee in uses[todo.pop()]:
            if callee not in seen:
                seen.add(callee)
                todo.append(callee)
    return frozenset(seen)


def _cycle(rule: Rule, literal: Atom, uses: Mapping[str, Mapping[str, None]]) -> Diagnostic:
    """The finding for one forbidden edge, with a shortest way back from callee to head."""
    came: dict[str, str] = {literal.predicate: ""}
    queue = [literal.predicate]
    for name in queue:
        if name == rule.predicate:
            break
        for callee in uses.get(name, ()):
            if callee not in came:
                came[callee] = name
                queue.append(callee)
    path = [rule.predicate]
    while came.get(path[-1]):
        path.append(came[path[-1]])
    cycle = " -> ".join([rule.predicate, *reversed(path)])
    through = "not" if literal.negated else "an aggregate"

    return Diagnostic(
        rule.file,
        literal.at.line,
        literal.at.column,
        rule.text,
        f"unstratified: {rule.predicate} depends on itself through {through} ({cycle})",
        f"break the cycle: {literal.predicate} must be complete before {rule.predicate} is derived",
    )
