"""A program to SQL: text in, :class:`Query` out. Reads no database.

Every recursive component that is a single predicate with linear rules becomes one recursive CTE,
and then the whole query is one statement. Other recursion (mutual, nonlinear) is evaluated
semi-naively in temporary tables; ``Query.tables`` lists them in order, and the statement reads
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pagetrail.catalog.datalog.check import check, in_order
from pagetrail.catalog.datalog.demand import on_demand
from pagetrail.catalog.datalog.errors import DatalogError, Diagnostic
from pagetrail.catalog.datalog.infer import Types, infer
from pagetrail.catalog.datalog.model import (
    OPEN_SEQ,
    Aggregate,
    Atom,
    Column,
    Constant,
    Program,
    Relation,
    Rule,
    Schema,
    Type,
    Variable,
)
from pagetrail.catalog.datalog.parser import parse
from pagetrail.catalog.datalog.repeats import apart, repeating
from pagetrail.catalog.datalog.rule_sql import Parameters, RuleTranslator, Source
from pagetrail.catalog.datalog.sql import AS_OF, ROUND, identifier, literal
from pagetrail.catalog.datalog.strata import Component, stratify

ROUND_COLUMN = "round"


@dataclass(frozen=True, slots=True)
class Table:
    """A temporary table of the semi-naive evaluation.

    ``create`` makes and fills it with what the rules give at once (round 0). ``grow``, when not
    None, adds the rows of round ``$round + 1`` that follow from those of ``$round``.
    """

    name: str
    predicate: str
    columns: tuple[Type, ...]
    create: str
    grow: str | None


@dataclass(frozen=True, slots=True)
class Query:
    """A compiled program: immutable, and good for any number of runs on any connection.

    ``columns`` name and type the answer. ``inputs`` are the provided relations that each run must
    hand in. ``tables`` are groups of temporary tables, filled group
    by group; the tables of one group grow together until none does. ``as_of``: whether the
    position of the log is given at run time (else the newest state is read).
    """

    program: Program
    components: tuple[Component, ...]
    columns: tuple[Column, ...]
    parameters: Mapping[str, Type]
    inputs: tuple[Relation, ...]
    tables: tuple[tuple[Table, ...], ...]
    sql: str
    as_of: bool


def compile_query(
    text: str,
    schema: Schema,
    *,
    file: str = "<query>",
    library: Sequence[Rule] = (),
    parameters: Mapping[str, Type] | None = None,
    as_of: bool = False,
) -> Query:
    """Parse, check and translate a program.

    ``library``: rules whose predicates the text may use and must not define; only those it needs
    take part. ``parameters`` declares types of ``$name``s; what is not declared follows from its
    use. ``as_of``: the position of the log is given with each run. Raises DatalogError with every
    finding of the first phase that has any.
    """
    program, findings = in_order(_link(parse(text, file), library), schema)
    if findings:
        raise DatalogError(findings)
    findings = check(program, schema, (rule.predicate for rule in library))
    if findings:
        raise DatalogError(findings)
    types, findings = infer(program, schema, parameters or {})
    components, unstratified = stratify(program)
    if findings or unstratified:
        raise DatalogError([*findings, *unstratified])
    asked = on_demand(program, components)
    if asked is not program:
        program = asked
        types, _ = infer(program, schema, types.parameters)
        components, _ = stratify(program)
    return _Compiler(program, schema, types, as_of).query(components)


def _link(program: Program, library: Sequence[Rule]) -> Program:
    """The program with the library's rules that it needs in front."""
    provided: dict[str, list[Rule]] = {}
    for rule in library:
        provided.setdefault(rule.predicate, []).append(rule)
    clashes = [
        Diagnostic(
            rule.file,
            rule.at.line,
            rule.at.column,
            rule.text,
            f"{rule.predicate} is a standing rule ({provided[rule.predicate][0].file})",
            "give the predicate another name, or use the standing rule as it is",
        )
        for rule in program.rules
        if rule.predicate in provided
    ]
    if clashes:
        raise DatalogError(clashes)
    needed: dict[str, None] = {}
    todo = list(program.rules)
    while todo:
        for used in todo.pop().body:
            if isinstance(used, Atom) and used.predicate in provided:
                if used.predicate not in needed:
                    todo += provided[used.predicate]
                needed[used.predicate] = None
    linked = tuple(rule for rule in library if rule.predicate in needed)
    return Program(linked + program.rules)


class _Compiler:
    """State of one compilation: the names given to predicates and what is already complete."""

    def __init__(self, program: Program, schema: Schema, types: Types, as_of: bool) -> None:
        self._program = program
        self._schema = schema
        self._types = types
        self._as_of = as_of
        self._numbers = {id(rule): i for i, rule in enumerate(program.rules)}
        numbers = {name: i for i, name in enumerate(types.parameters)}
        self._translator = RuleTranslator(Parameters(numbers, types.parameters))
        self._sources: dict[str, Source] = {}
        self._repeating: frozenset[str] = frozenset()

    def query(self, components: tuple[Component, ...]) -> Query:
        self._repeating = repeating(components, self._program.answer)
        stored = 1 + max(
            (i for i, c in enumerate(components) if c.recursive and not _one_cte(c)), default=-1
        )
        tables = tuple(self._tables(c, number) for number, c in enumerate(components[:stored]))
        statement = self._statement(components, stored)
        return Query(
            program=self._program,
            components=components,
            columns=_answer_columns(self._program, self._types),
            parameters=self._types.parameters,
            inputs=tuple(
                self._schema[name]
                for name in self._sources
                if name in self._schema and self._schema[name].provided
            ),
            tables=tables,
            sql=statement,
            as_of=self._as_of,
        )

    def _statement(self, components: tuple[Component, ...], stored: int) -> str:
        """The one statement that reads the ``stored`` first components from their tables and
        computes the rest; the last is the answer."""
        rest = list(enumerate(components))[stored:]
        # Every layer of a statement is bound and planned in each run of it, so the answer is none,
        # nor is one made for a goal that only names the columns of a predicate.
        if len(rest) > 1 and not rest[-2][1].recursive and _names_only(rest[-1][1].rules):
            rest.pop()
        plain = bool(rest) and not rest[-1][1].recursive
        inner = rest[:-1] if plain else rest
        ctes = [self._cte(component, number) for number, component in inner]
        if plain:
            number, component = rest[-1]
            self._define(component, number)
            answer = self._union(component.predicates[0], list(component.rules))
        else:
            source = self._sources[self._program.answer]
            answer = f"SELECT {', '.join(source.columns)} FROM {source.table}"
        if not ctes:
            return answer
        word = "RECURSIVE " if any(component.recursive for _, component in inner) else ""
        return f"WITH {word}{(',' + chr(10)).join(ctes)}\n{answer}"

    def _source(self, atom: Atom, _number: int) -> Source:
        relation = self._schema.get(atom.predicate)
        if relation is None:
            return self._sources[atom.predicate]
        known = self._sources.get(atom.predicate)
        if known is None:
            names = [c.name for c in relation.columns]
            keys = tuple(tuple(names.index(k) for k in key) for key in relation.keys)
            columns = tuple(identifier(name) for name in names)
            conditions = _conditions(relation, self._as_of)
            known = Source(identifier(relation.table), columns, keys, conditions)
            self._sources[atom.predicate] = known
        return known

    def _define(self, component: Component, number: int) -> None:
        """Name the component's predicates; from here on their rules may refer to them."""
        for predicate in component.predicates:
            arity = len(self._types.columns[predicate])
            key = _key(component, predicate, arity)
            self._sources[predicate] = Source(
                identifier(f"{number}:{predicate}"),
                tuple(f"c{i}" for i in range(arity)),
                () if predicate in self._repeating else (key,),
                growing=component.recursive,
            )

    def _complete(self, component: Component) -> None:
        """The component's predicates are whole for the rules that follow."""
        for predicate in component.predicates:
            self._sources[predicate] = replace(self._sources[predicate], growing=False)

    def _cte(self, component: Component, number: int) -> str:
        self._define(component, number)
        predicate = component.predicates[0]
        source = self._sources[predicate]
        inside = set(component.predicates)
        base = [r for r in component.rules if not _calls(r, inside)]
        steps = [r for r in component.rules if _calls(r, inside)]
        body = self._union(predicate, base)
        if steps:
            selects = [self._select(r, distinct=False) for r in steps]
            step = selects[0] if len(selects) == 1 else _all(selects)
            body = f"({body}) UNION ({step})"
        self._complete(component)
        return f"{source.table}({', '.join(source.columns)}) AS ({body})"

    def _tables(self, component: Component, number: int) -> tuple[Table, ...]:
        if not component.recursive or _one_cte(component):
            cte = self._cte(component, number)
            predicate = component.predicates[0]
            source = self._sources[predicate]
            create = (
                f"CREATE TEMP TABLE {source.table} AS "
                f"WITH RECURSIVE {cte} SELECT * FROM {source.table}"
            )
            types = self._types.columns[predicate]
            return (Table(source.table, predicate, types, create, None),)
        self._define(component, number)
        tables = tuple(self._growing(component, predicate) for predicate in component.predicates)
        self._complete(component)
        return tables

    def _growing(self, component: Component, predicate: str) -> Table:
        inside = set(component.predicates)
        source = self._sources[predicate]
        rules = [r for r in component.rules if r.predicate == predicate]
        base = self._union(predicate, [r for r in rules if not _calls(r, inside)])
        create = (
            f"CREATE TEMP TABLE {source.table} AS "
            f"SELECT *, 0::BIGINT AS {ROUND_COLUMN} FROM ({base})"
        )
        selects = [
            self._delta(rule, turn, inside)
            for rule in rules
            if _calls(rule, inside)
            for turn in range(sum(a.predicate in inside for a in rule.atoms(negated=False)))
        ]
        types = self._types.columns[predicate]
        if not selects:
            return Table(source.table, predicate, types, create, None)
        same = " AND ".join(f"o.{c} = f.{c}" for c in source.columns)
        grow = (
            f"INSERT INTO {source.table} "
            f"SELECT DISTINCT {', '.join(source.columns)}, CAST(${ROUND} AS BIGINT) + 1 "
            f"FROM ({_all(selects)}) f "
            f"WHERE NOT EXISTS (SELECT 1 FROM {source.table} o WHERE {same})"
        )
        return Table(source.table, predicate, types, create, grow)

    def _delta(self, rule: Rule, turn: int, inside: set[str]) -> str:
        """The rule with its recursive atom number ``turn`` over the newest rows, those before it
        over older rows and those after it over all: each pair of rows is joined exactly once."""
        places = [i for i, a in enumerate(rule.atoms(negated=False)) if a.predicate in inside]
        newest = f"CAST(${ROUND} AS BIGINT)"

        def source_of(atom: Atom, number: int) -> Source:
            source = self._source(atom, number)
            if number not in places:
                return source
            place = places.index(number)
            rest = f"= {newest}" if place == turn else f"{'<' if place < turn else '<='} {newest}"
            return replace(source, conditions=((ROUND_COLUMN, rest),))

        return self._translator.select(rule, self._numbers[id(rule)], source_of, distinct=False)

    def _select(self, rule: Rule, *, distinct: bool = True) -> str:
        return self._translator.select(
            rule, self._numbers[id(rule)], self._source, distinct=distinct
        )

    def _union(self, predicate: str, rules: list[Rule]) -> str:
        """The set of rows that some of the rules give (with repeats where these cannot be seen);
        plain facts share one VALUES."""
        types = self._types.columns[predicate]
        facts: list[Rule] = []
        others: list[Rule] = []
        for rule in rules:
            plain = not rule.body and all(isinstance(t, Constant) for t in rule.head)
            (facts if plain else others).append(rule)
        every = predicate in self._repeating
        separate = every or (not facts and apart(others))
        alone = not every and (separate or len(rules) == 1)
        parts = [self._select(rule, distinct=alone) for rule in others]
        if facts:
            rows = ", ".join(
                "(" + ", ".join(literal(t.value) for t in r.head if isinstance(t, Constant)) + ")"
                for r in facts
            )
            names = ", ".join(f"c{i}" for i in range(len(types)))
            parts.append(f"SELECT DISTINCT * FROM (VALUES {rows}) v({names})")
        if not parts:
            nothing = ", ".join(f"CAST(NULL AS {t.value}) AS c{i}" for i, t in enumerate(types))
            return f"SELECT {nothing} WHERE false"
        if len(parts) == 1:
            return parts[0]
        return _all(parts) if separate else " UNION ".join(f"({p})" for p in parts)


def _conditions(relation: Relation, as_of: bool) -> tuple[tuple[str, str], ...]:
    """What makes a row of the table one of the relation: pairs (column, rest of the condition)."""
    conditions = [(identifier(column), f"= {literal(value)}") for column, value in relation.where]
    if relation.temporal:
        position = f"CAST(${AS_OF} AS BIGINT)"
        if as_of:
            conditions.append((identifier(relation.since), f"< {position}"))
        if relation.until is not None:
            rest = f">= {position}" if as_of else f"= {literal(OPEN_SEQ)}"
            conditions.append((identifier(relation.until), rest))
    return tuple(conditions)


def _names_only(rules: Sequence[Rule]) -> bool:
    """Whether a predicate is another one, column by column."""
    rule = rules[0]
    head = [term.name for term in rule.head if isinstance(term, Variable)]
    return (
        len(rules) == len(rule.body) == 1
        and isinstance(atom := rule.body[0], Atom)
        and not atom.negated
        and len(set(head)) == len(rule.head)
        and head == [term.name for term in atom.arguments if isinstance(term, Variable)]
        and len(head) == len(atom.arguments)
    )


def _all(selects: list[str]) -> str:
    return " UNION ALL ".join(f"({s})" for s in selects)


def _one_cte(component: Component) -> bool:
    return component.linear and len(component.predicates) == 1


def _calls(rule: Rule, predicates: set[str]) -> bool:
    return any(atom.predicate in predicates for atom in rule.atoms(negated=False))


def _key(component: Component, predicate: str, arity: int) -> tuple[int, ...]:
    """What identifies a derived row: all of it, or the groups of a sole aggregate rule."""
    rules = [r for r in component.rules if r.predicate == predicate]
    if len(rules) == 1 and rules[0].aggregates:
        return tuple(i for i, t in enumerate(rules[0].head) if not isinstance(t, Aggregate))
    return tuple(range(arity))


def _answer_columns(program: Program, types: Types) -> tuple[Column, ...]:
    rule = program.rules[-1]
    names: list[str] = []
    for i, term in enumerate(rule.head):
        if isinstance(term, Variable):
            name = term.name
        elif isinstance(term, Aggregate):
            inner = [a.name for a in term.arguments if isinstance(a, Variable)]
            name = "_".join([term.kind.value, *inner])
        else:
            name = "holds" if program.answer == "?" else f"c{i}"
        names.append(name if name not in names else f"{name}_{i}")
    return tuple(
        Column(name, type_)
        for name, type_ in zip(names, types.columns[program.answer], strict=True)
    )
