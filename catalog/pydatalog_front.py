"""pyDatalog over a snapshot of the catalog: a notebook front end, and an oracle in tests.

A session holds the rows of some predicates, fetched once at one position, in a process of its own
that is killed when an answer takes too long (pyDatalog loops for ever on right recursion over
cycles and on unstratified programs). Text given to ``ask`` and ``load`` is Python that runs in
that process: never give it text from somebody you would not let run programs as you.

``translate`` turns a compiled query into pyDatalog clauses where pyDatalog is known to give the
same answer, and refuses the rest by name. Its integers have no bound, so it goes on where our
arithmetic reports an overflow.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any

import msgspec
import pyarrow as pa

from .datalog.compiler import Query
from .datalog.model import (
    GOAL,
    Anonymous,
    Arithmetic,
    Compare,
    Comparison,
    Constant,
    Operation,
    Parameter,
    Relation,
    Rule,
    Term,
    Value,
    Variable,
    variables,
)
from .errors import BadInputError, PagetrailError
from .pydatalog_child import Reply, Request, frame
from .replica import Replica
from .replica_schema import SCHEMA

SNAPSHOT_ROWS_MAX = 1_000_000
ANSWER_SECONDS = 10.0


class PyDatalogError(PagetrailError):
    """pyDatalog failed, or did not answer in time."""


class PyDatalogSession:
    """A pyDatalog process. Predicates keep their names; ``ask`` takes pyDatalog's own syntax."""

    def __init__(self, relations: Mapping[str, tuple[Relation, pa.Table]]) -> None:
        """``relations``: each predicate's declaration and rows."""
        self._facts = {n: _rows(table) for n, (_, table) in relations.items()}
        self._arities = {n: relation.arity for n, (relation, _) in relations.items()}
        self._loaded: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        if (count := sum(map(len, self._facts.values()))) > SNAPSHOT_ROWS_MAX:
            raise BadInputError(
                f"{count} rows in a pyDatalog snapshot, at most {SNAPSHOT_ROWS_MAX}; name fewer "
                "predicates, or query the replica"
            )

    def __enter__(self) -> PyDatalogSession:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def load(self, clauses: str, limit_s: float = ANSWER_SECONDS) -> None:
        """Add clauses; they stay for later questions, also when the process is started anew."""
        self._call(Request({}, {}, clauses, ""), limit_s)
        self._loaded.append(clauses)

    def ask(self, goal: str, limit_s: float = ANSWER_SECONDS) -> set[tuple[Value, ...]]:
        """The rows of a goal such as ``copy(E, P, W, T, 1, L, R)``.

        Raises PyDatalogError when pyDatalog fails, or after ``limit_s`` seconds; the process is
        then started anew with the same snapshot and clauses.
        """
        return {tuple(row) for row in self._call(Request({}, {}, "", goal), limit_s)}

    def _call(self, request: Request, limit_s: float) -> list[list[Any]]:
        deadline = time.monotonic() + limit_s
        if self._process is None:
            self._process = self._start()
            clauses = "\n".join(self._loaded)
            self._exchange(Request(self._facts, self._arities, clauses, ""), deadline)
        return self._exchange(request, deadline)

    @staticmethod
    def _start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.pydatalog_child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def _exchange(self, request: Request, deadline: float) -> list[list[Any]]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise PyDatalogError("the pyDatalog process is not running; open a new session")
        try:
            process.stdin.write(frame(msgspec.msgpack.encode(request)))
            process.stdin.flush()
            head = self._receive(process.stdout.fileno(), 4, deadline)
            size = int.from_bytes(head, "big")
            body = self._receive(process.stdout.fileno(), size, deadline)
        except (PyDatalogError, OSError):
            self.close()
            raise
        reply = msgspec.msgpack.decode(body, type=Reply)
        if reply.error:
            raise PyDatalogError(f"pyDatalog: {reply.error}")
        return reply.rows

    @staticmethod
    def _receive(descriptor: int, size: int, deadline: float) -> bytes:
        received = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(descriptor, selectors.EVENT_READ)
            while len(received) < size:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise PyDatalogError(
                        "pyDatalog did not answer in time and was stopped; put the recursive "
                        "literal first in its rule, bind more, or query the replica"
                    )
                piece = os.read(descriptor, size - len(received))
                if not piece:
                    raise PyDatalogError("the pyDatalog process ended without an answer")
                received += piece
        return bytes(received)


def open_session(
    replica: Replica, predicates: Iterable[str], *, as_of: int | None = None
) -> PyDatalogSession:
    """A session over the rows of some predicates of a replica, all at one position."""
    position = replica.position if as_of is None else as_of
    relations: dict[str, tuple[Relation, pa.Table]] = {}
    for name in predicates:
        if name not in SCHEMA or SCHEMA[name].provided:
            raise BadInputError(f"{name} is no stored predicate; see docs/datalog.md")
        variables = ", ".join(f"A{i}" for i in range(SCHEMA[name].arity))
        table = replica.query(f"?- {name}({variables}).", as_of=position)
        relations[name] = (SCHEMA[name], table)
    return PyDatalogSession(relations)


def translate(query: Query, values: Mapping[str, Value] | None = None) -> tuple[str, str]:
    """(clauses, goal) for a session that holds the query's base relations.

    Raises BadInputError naming the first thing pyDatalog cannot be trusted with.
    """
    values = values or {}
    clauses: list[str] = []
    for component in query.components:
        if component.recursive and len(component.predicates) > 1:
            raise _unsound(component.rules[0], "mutual recursion")
        if not component.linear:
            raise _unsound(component.rules[0], "nonlinear recursion")
        for rule in component.rules:
            positive = rule.atoms(negated=False)
            recursive = [a.predicate in component.predicates for a in positive]
            if any(recursive[1:]):
                raise _unsound(rule, "recursion that is not in the first literal")
            clauses += _Clause(rule, values).lines(len(clauses))
    answer = "goal_" if query.program.answer == GOAL else query.program.answer
    columns = ", ".join(f"A{i}" for i in range(len(query.columns)))
    return "\n".join(clauses), f"{answer}({columns})"


def _unsound(rule: Rule, what: str) -> BadInputError:
    return BadInputError(
        f"{what} is not given to pyDatalog, which may loop or answer wrongly ({rule.text}); "
        "query the replica instead"
    )


class _Clause:
    """One rule as pyDatalog clauses: atoms, then equalities as they become bound, then tests,
    then negation over helper predicates that project ``_`` away."""

    def __init__(self, rule: Rule, values: Mapping[str, Value]) -> None:
        if rule.aggregates:
            raise _unsound(rule, "an aggregate")
        self._rule = rule
        self._values = values
        self._fresh = 0

    def lines(self, number: int) -> list[str]:
        rule = self._rule
        helpers: list[str] = []
        parts: list[str] = []
        after: list[str] = []
        for atom in rule.atoms(negated=False):
            arguments = []
            for argument in atom.arguments:
                if isinstance(argument, Operation):
                    name = self._new()
                    after.append(f"({name} == {self._term(argument)})")
                    arguments.append(name)
                else:
                    arguments.append(self._term(argument))
            parts.append(f"{atom.predicate}({', '.join(arguments)})")
        parts += self._comparisons()
        parts += after
        for place, atom in enumerate(rule.atoms(negated=True)):
            kept = [a for a in atom.arguments if not isinstance(a, Anonymous)]
            if not kept:
                raise _unsound(rule, "negation of an atom without any bound argument")
            names = [self._new() for _ in kept]
            bound = iter(names)
            arguments = [
                self._new() if isinstance(a, Anonymous) else next(bound) for a in atom.arguments
            ]
            helper = f"none_{number}_{place}"
            inner = f"{atom.predicate}({', '.join(arguments)})"
            helpers.append(f"{helper}({', '.join(names)}) <= {inner}")
            given = [self._new() for _ in kept]
            parts += [f"({g} == {self._term(k)})" for g, k in zip(given, kept, strict=True)]
            parts.append(f"~{helper}({', '.join(given)})")
        head: list[str] = []
        for term in rule.head:
            if isinstance(term, Variable):
                head.append(self._term(term))
            else:
                name = self._new()
                head.append(name)
                if not isinstance(term, (Anonymous, Constant, Parameter, Operation)):
                    raise _unsound(rule, "an aggregate")
                parts.append(f"({name} == {self._term(term)})")
        predicate = "goal_" if rule.predicate == GOAL else rule.predicate
        return [*helpers, f"{predicate}({', '.join(head)}) <= {' & '.join(parts)}"]

    def _comparisons(self) -> list[str]:
        rule = self._rule
        bound = {
            a.name
            for atom in rule.atoms(negated=False)
            for a in atom.arguments
            if isinstance(a, Variable)
        }
        waiting = [b for b in rule.body if isinstance(b, Comparison)]
        equalities: list[str] = []
        tests: list[str] = []
        while waiting:
            comparison = waiting.pop(0)
            left, right = comparison.left, comparison.right
            if _bound(left, bound) and _bound(right, bound):
                operator = "==" if comparison.operator is Compare.EQ else comparison.operator.value
                tested = self._term(left)
                if not variables(left) and not variables(right):
                    # Python would compare the values and hand pyDatalog a bool.
                    tested = self._new()
                    equalities.append(f"({tested} == {self._term(left)})")
                tests.append(f"({tested} {operator} {self._term(right)})")
            elif comparison.operator is Compare.EQ and _bound(right, bound):
                equalities.append(f"({self._term(left)} == {self._term(right)})")
                bound.update([left.name] if isinstance(left, Variable) else [])
            elif comparison.operator is Compare.EQ and _bound(left, bound):
                equalities.append(f"({self._term(right)} == {self._term(left)})")
                bound.update([right.name] if isinstance(right, Variable) else [])
            else:
                waiting.append(comparison)
        return equalities + tests

    def _term(self, term: Term) -> str:
        if isinstance(term, Variable):
            return f"V_{term.name}"
        if isinstance(term, Anonymous):
            return self._new()
        if isinstance(term, Constant):
            return f"({term.value!r})"
        if isinstance(term, Parameter):
            if term.name not in self._values:
                raise BadInputError(f"no value for parameter ${term.name}; pass one")
            return f"({self._values[term.name]!r})"
        operator = "%" if term.operator is Arithmetic.MODULO else term.operator.value
        return f"({self._term(term.left)} {operator} {self._term(term.right)})"

    def _new(self) -> str:
        self._fresh += 1
        return f"F_{self._fresh}"


def _bound(term: Term, bound: set[str]) -> bool:
    if isinstance(term, Operation):
        return _bound(term.left, bound) and _bound(term.right, bound)
    return not isinstance(term, Variable) or term.name in bound


def _rows(table: pa.Table) -> list[list[Any]]:
    columns: Sequence[Sequence[Any]] = [c.to_pylist() for c in table.columns]
    return [list(row) for row in zip(*columns, strict=True)]
