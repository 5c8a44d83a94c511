"""One rule to one SELECT, set at a time.

A positive atom is a table in FROM, a repeated variable an equality, a negated atom an ANTI JOIN, a
head aggregate a GROUP BY over the set of bindings. Undefined arithmetic: a literal that is
undefined lets its binding through the WHERE, and a guard above raises for the bindings that are
left, that is for those that no other literal rejects. So the order of literals, and of DuckDB's
evaluation, cannot be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pagetrail.catalog.datalog.errors import DatalogError, Diagnostic
from pagetrail.catalog.datalog.model import (
    Aggregate,
    AggregateKind,
    Anonymous,
    Atom,
    Compare,
    Comparison,
    Constant,
    Operation,
    Parameter,
    Rule,
    Term,
    Type,
    Variable,
    variables,
)
from pagetrail.catalog.datalog.repeats import determined
from pagetrail.catalog.datalog.sql import (
    EXPRESSION_SQL_MAX_CHARS,
    Expression,
    fault,
    literal,
    operation,
    parameter,
)

_SQL_COMPARE = {Compare.NE: "<>"}


@dataclass(frozen=True, slots=True)
class Source:
    """Where the rows of an atom come from.

    ``keys``: sets of argument positions, each of which identifies a row; none when rows may repeat.
    ``conditions``: pairs (column, rest of the condition) that every row must meet, such as
    validity at a position. ``growing``: the rows are those of a recursion under way, which SQL
    reads in FROM only.
    """

    table: str
    columns: tuple[str, ...]
    keys: tuple[tuple[int, ...], ...]
    conditions: tuple[tuple[str, str], ...] = ()
    growing: bool = False


SourceOf = Callable[[Atom, int], Source]
"""The source of an atom; the number counts the positive atoms of the body, -1 if negated."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """Numbers and types of the program's parameters."""

    numbers: Mapping[str, int]
    types: Mapping[str, Type]

    def sql(self, name: str) -> str:
        """The typed SQL reference of ``$name``."""
        return parameter(self.numbers[name], self.types[name])


@dataclass(frozen=True, slots=True)
class _Test:
    """A comparison of terms that may be undefined; ``sql`` is then NULL."""

    sql: str
    equality: bool

    @property
    def lenient(self) -> str:
        """Holds also where undefined: such a binding is left to the guard."""
        return f"coalesce({self.sql}, true)"


@dataclass(slots=True)
class _Body:
    """The body of one rule while it is being translated."""

    environment: dict[str, Expression] = field(default_factory=dict)
    tables: list[str] = field(default_factory=list)
    filters: list[str] = field(default_factory=list)
    where: list[str] = field(default_factory=list)
    tests: list[_Test] = field(default_factory=list)
    partial: dict[str, None] = field(default_factory=dict)
    keyed: list[tuple[Atom, tuple[tuple[int, ...], ...]]] = field(default_factory=list)
    assigned: list[tuple[str, Term]] = field(default_factory=list)

    @property
    def sql_from(self) -> str:
        """The FROM clause: the joined tables, then the joins that only let rows through."""
        if not self.tables:
            return ""
        return f" FROM {' CROSS JOIN '.join(self.tables)}{''.join(self.filters)}"

    def rooted(self) -> set[str]:
        """Variables whose value depends on a row, not on constants and parameters alone."""
        names = {v.name for atom, _ in self.keyed for a in atom.arguments for v in variables(a)}
        for target, source in self.assigned:
            if any(v.name in names for v in variables(source)):
                names.add(target)
        return names

    def unique(self, known: set[str]) -> bool:
        """Whether values of the variables ``known`` determine the whole binding, row by row."""
        return determined(self.keyed, self.assigned, known)

    def test(self, left: Expression, operator: str, right: Expression) -> None:
        """Demand a comparison."""
        if left.partial or right.partial:
            self.tests.append(_Test(f"{left.safe} {operator} {right.safe}", operator == "="))
        else:
            self.where.append(f"{left.sql} {operator} {right.sql}")


class RuleTranslator:
    """Translates rules of one program. Holds what does not change from rule to rule."""

    def __init__(self, parameters: Parameters) -> None:
        self._parameters = parameters

    def select(self, rule: Rule, number: int, source_of: SourceOf, *, distinct: bool = True) -> str:
        """The SELECT of a rule with columns c0, c1, ...; ``number`` names it in faults.

        Rows do not repeat when ``distinct``; an aggregate's never do.
        """
        body = self._body(rule, source_of)
        if rule.aggregates:
            return self._aggregate(rule, number, body)
        outputs = {
            f"c{i}": self._term(term, body, rule)
            for i, term in enumerate(rule.head)
            if not isinstance(term, Aggregate)
        }
        named = {term.name for term in rule.head if isinstance(term, Variable)}
        return self._project(outputs, body, number, distinct and not body.unique(named))

    def _body(self, rule: Rule, source_of: SourceOf) -> _Body:
        body = _Body()
        computed: list[tuple[str, Term]] = []
        positive = rule.atoms(negated=False)
        sources = [source_of(atom, i) for i, atom in enumerate(positive)]
        tested = _existential(positive, sources)
        for i, (atom, source) in enumerate(zip(positive, sources, strict=True)):
            if i in tested:
                continue
            alias = f"t{i}"
            body.tables.append(f"{source.table} {alias}")
            body.keyed.append((atom, source.keys))
            body.where.extend(f"{alias}.{column} {rest}" for column, rest in source.conditions)
            for name, argument in zip(source.columns, atom.arguments, strict=True):
                column = f"{alias}.{name}"
                if isinstance(argument, Variable):
                    known = body.environment.setdefault(argument.name, Expression(column))
                    if known.sql != column:
                        body.where.append(f"{column} = {known.sql}")
                elif not isinstance(argument, Anonymous):
                    computed.append((column, argument))
        for comparison in self._assign(rule, body):
            left = self._term(comparison.left, body, rule)
            right = self._term(comparison.right, body, rule)
            body.test(left, _SQL_COMPARE.get(comparison.operator, comparison.operator.value), right)
        for column, argument in computed:
            body.test(Expression(column), "=", self._term(argument, body, rule))
        for i in tested:
            self._filter(positive[i], sources[i], body, rule)
        for atom in rule.atoms(negated=True):
            self._filter(atom, source_of(atom, -1), body, rule)
        return body

    def _filter(self, atom: Atom, source: Source, body: _Body, rule: Rule) -> None:
        """Let through the bindings for which the atom holds, or does not if it is negated.

        As a join, because DuckDB takes a correlated EXISTS apart into one over the distinct
        bindings, which costs another pass over them, and more to plan than all the rest.
        """
        rooted = body.rooted()
        alias = f"n{len(body.filters)}"
        own = [f"{column} {rest}" for column, rest in source.conditions]
        shared: list[str] = []
        for name, argument in zip(source.columns, atom.arguments, strict=True):
            if isinstance(argument, Anonymous):
                continue
            value = self._term(argument, body, rule).safe
            if any(v.name in rooted for v in variables(argument)):
                shared.append(f"{alias}.{name} = {value}")
            else:
                own.append(f"{name} = {value}")
        if not shared:
            exists = f"EXISTS (SELECT 1 FROM {source.table}{_where(own)})"
            body.where.append(f"NOT {exists}" if atom.negated else exists)
            return
        rows = f"(SELECT * FROM {source.table}{_where(own)})" if own else source.table
        word = "ANTI" if atom.negated else "SEMI"
        body.filters.append(f" {word} JOIN {rows} {alias} ON {' AND '.join(shared)}")

    def _assign(self, rule: Rule, body: _Body) -> list[Comparison]:
        """Bind variables by equalities; returns the comparisons that are left to be tested."""
        waiting = [b for b in rule.body if isinstance(b, Comparison)]
        tests: list[Comparison] = []
        grew = True
        while waiting and grew:
            grew = False
            for comparison in tuple(waiting):
                if all(
                    v.name in body.environment
                    for side in (comparison.left, comparison.right)
                    for v in variables(side)
                ):
                    tests.append(comparison)
                elif (pair := _assignable(comparison, body.environment)) is not None:
                    target, source = pair
                    body.environment[target] = self._term(source, body, rule)
                    body.assigned.append((target, source))
                else:
                    continue
                waiting.remove(comparison)
                grew = True
        return tests

    def _term(self, term: Term, body: _Body, rule: Rule) -> Expression:
        """A term over bound variables; what may fail is noted in ``body.partial``."""
        expression = self._expression(term, body.environment, rule)
        if expression.partial:
            body.partial[expression.sql] = None
        return expression

    def _expression(
        self, term: Term, environment: Mapping[str, Expression], rule: Rule
    ) -> Expression:
        if isinstance(term, Variable):
            return environment[term.name]
        if isinstance(term, Constant):
            return Expression(literal(term.value))
        if isinstance(term, Parameter):
            return Expression(self._parameters.sql(term.name))
        if isinstance(term, Operation):
            left = self._expression(term.left, environment, rule)
            right = self._expression(term.right, environment, rule)
            if len(left.sql) + len(right.sql) > EXPRESSION_SQL_MAX_CHARS:
                raise _too_large(term, rule)
            return operation(term.operator, left, right)
        raise TypeError(f"{term!r} has no value: the checks never let it through")

    def _project(
        self, outputs: Mapping[str, Expression], body: _Body, number: int, distinct: bool
    ) -> str:
        """SELECT the outputs over the body, with the guard against undefined bindings."""
        columns = ", ".join(f"{e.safe} AS {name}" for name, e in outputs.items())
        tables = body.sql_from
        word = "SELECT DISTINCT" if distinct else "SELECT"
        if not body.partial:
            return f"{word} {columns}{tables}{_where(body.where)}"
        undefined = " OR ".join(f"TRY({sql}) IS NULL" for sql in body.partial)
        guard = f"CASE WHEN {undefined} THEN CAST({fault(number)} AS BOOLEAN) ELSE true END"
        names = ", ".join(outputs)
        lenient = [*body.where, *(test.lenient for test in body.tests)]

        def guarded(*more: str) -> str:
            inner = f"SELECT {columns}, {guard} AS defined{tables}{_where([*lenient, *more])}"
            return f"{names} FROM ({inner}) WHERE defined"

        if not any(test.equality for test in body.tests):
            return f"{word} {guarded()}"
        # A lenient equality cannot drive a hash join, and Y = X + 1 must: the defined bindings
        # are joined strictly, and each undefined term is looked for in a branch of its own.
        strict = [*body.where, *(test.sql for test in body.tests)]
        strict += [f"TRY({sql}) IS NOT NULL" for sql in body.partial]
        branches = [f"SELECT {columns}{tables}{_where(strict)}"]
        branches += [f"SELECT {guarded(f'TRY({sql}) IS NULL')}" for sql in body.partial]
        return f"{word} {names} FROM ({' UNION ALL '.join(branches)})"

    def _aggregate(self, rule: Rule, number: int, body: _Body) -> str:
        named = set(body.environment)
        inner: dict[str, Expression] = {}
        groups: list[str] = []
        outer: list[str] = []
        bindings_unique = body.unique(named)
        grouped = {term.name for term in rule.head if isinstance(term, Variable)}
        whole_set = False
        for i, term in enumerate(rule.head):
            if not isinstance(term, Aggregate):
                inner[f"g{i}"] = self._term(term, body, rule)
                groups.append(f"g{i}")
                outer.append(f"g{i} AS c{i}")
                continue
            columns = [f"a{i}_{k}" for k in range(len(term.arguments))]
            for name, argument in zip(columns, term.arguments, strict=True):
                inner[name] = self._term(argument, body, rule)
            if term.kind is AggregateKind.COUNT and columns:
                counted = {a.name for a in term.arguments if isinstance(a, Variable)}
                if body.unique(grouped | counted):
                    outer.append(f"count(*) AS c{i}")
                else:
                    what = columns[0] if len(columns) == 1 else f"({', '.join(columns)})"
                    outer.append(f"count(DISTINCT {what}) AS c{i}")
            elif term.kind is AggregateKind.COUNT:
                whole_set = True
                outer.append(f"count(*) AS c{i}")
            elif term.kind is AggregateKind.SUM:
                whole_set = True
                outer.append(f"sum({columns[0]}) AS c{i}")
            else:
                outer.append(f"{term.kind.value}({columns[0]}) AS c{i}")
        distinct = whole_set and not bindings_unique
        if distinct or not inner:
            for k, name in enumerate(sorted(named)):
                inner[f"v{k}"] = body.environment[name]
        if not inner:
            inner["v0"] = Expression("1")
        # Without groups SQL answers one row also for no binding; an empty group is absent here.
        ending = f" GROUP BY {', '.join(groups)}" if groups else " HAVING count(*) > 0"
        rows = self._project(inner, body, number, distinct)
        select = f"SELECT {', '.join(outer)} FROM ({rows}){ending}"
        sums = {
            i
            for i, term in enumerate(rule.head)
            if isinstance(term, Aggregate) and term.kind is AggregateKind.SUM
        }
        if not sums:
            return select
        return f"SELECT {self._narrow(len(rule.head), sums, number)} FROM ({select})"

    @staticmethod
    def _narrow(arity: int, sums: set[int], number: int) -> str:
        """Columns with each 128-bit sum brought to 64 bits, or a fault."""
        return ", ".join(
            f"coalesce(TRY(CAST(c{i} AS BIGINT)), CAST({fault(number)} AS BIGINT)) AS c{i}"
            if i in sums
            else f"c{i}"
            for i in range(arity)
        )


def _too_large(term: Term, rule: Rule) -> DatalogError:
    at = term.at
    message = "an expression too large to translate"
    fix = "derive a part of it (mostly an inner // or mod) in a helper rule"
    return DatalogError([Diagnostic(rule.file, at.line, at.column, rule.text, message, fix)])


def _existential(atoms: Sequence[Atom], sources: Sequence[Source]) -> list[int]:
    """Places of atoms that only ask whether some row exists: they bind nothing that the others do
    not bind, and joining them would only repeat bindings, to be made distinct again."""
    tested: list[int] = []
    for i, (atom, source) in enumerate(zip(atoms, sources, strict=True)):
        identified = any(
            not any(isinstance(atom.arguments[k], Anonymous) for k in key) for key in source.keys
        )
        if source.growing or identified or any(isinstance(a, Operation) for a in atom.arguments):
            continue
        others = [other for j, other in enumerate(atoms) if j != i and j not in tested]
        elsewhere = {a.name for o in others for a in o.arguments if isinstance(a, Variable)}
        own = {a.name for a in atom.arguments if isinstance(a, Variable)}
        if others and own <= elsewhere:
            tested.append(i)
    return tested


def _assignable(
    comparison: Comparison, environment: Mapping[str, Expression]
) -> tuple[str, Term] | None:
    if comparison.operator is not Compare.EQ:
        return None
    for target, source in (
        (comparison.left, comparison.right),
        (comparison.right, comparison.left),
    ):
        if (
            isinstance(target, Variable)
            and target.name not in environment
            and all(v.name in environment for v in variables(source))
        ):
            return target.name, source
    return None


def _where(conditions: Sequence[str]) -> str:
    return f" WHERE {' AND '.join(conditions)}" if conditions else ""
