"""The values the Datalog compiler works on: types, the schema of base relations, the syntax tree.

Everything here is frozen. The schema is declared in Python, never in program text: it says which
DuckDB table answers a predicate, and under which names, types and key.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from pagetrail.catalog.errors import BadInputError

ARITY_MAX = 64
OPEN_SEQ = 2**63 - 1
"""``to_seq`` of a row that still holds; there is no NULL in the catalog."""

_PREDICATE = re.compile(r"[a-z][A-Za-z0-9_]*\Z")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class Type(Enum):
    """The three types of the language; the value is DuckDB's name for it."""

    INT = "BIGINT"
    TEXT = "VARCHAR"
    BYTES = "BLOB"


Value = int | str | bytes


def type_of(value: object) -> Type | None:
    """The type of a Python value, or None when the language has no such value (bool, float...)."""
    if isinstance(value, bool):
        return None
    for kind, type_ in ((int, Type.INT), (str, Type.TEXT), (bytes, Type.BYTES)):
        if isinstance(value, kind):
            return type_
    return None


@dataclass(frozen=True, slots=True)
class Column:
    """A named, typed column of a relation or of an answer."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class Relation:
    """A base relation: predicate ``name`` is answered by ``table`` (or view) of the database.

    ``columns`` are the predicate's arguments in order. Each of ``keys`` names columns that
    identify a row (at one position of the log when ``temporal``): the compiler then leaves out
    work that only removes duplicates, so a key that does not hold gives wrong answers. Without
    keys, rows may repeat. ``where`` gives (column of the table, value): only rows that have the
    values are the relation's. ``provided``: the rows are an Arrow table handed in with each run,
    under the name ``table``. ``temporal``: the table has the columns ``since`` and, unless it is
    None, ``until`` (BIGINT, never NULL, ``OPEN_SEQ`` while the row holds), and a row counts at
    position n, that is after the facts with ``seq < n``, iff ``since < n <= until``; rows of a
    table without ``until`` never end.
    """

    name: str
    columns: tuple[Column, ...]
    table: str
    keys: tuple[tuple[str, ...], ...] = ()
    temporal: bool = False
    provided: bool = False
    where: tuple[tuple[str, Value], ...] = ()
    since: str = "from_seq"
    until: str | None = "to_seq"

    def __post_init__(self) -> None:
        if not _PREDICATE.match(self.name):
            raise BadInputError(
                f"relation {self.name!r}: a predicate's name is [a-z][A-Za-z0-9_]*; rename it"
            )
        until = () if self.until is None else (self.until,)
        filters = (*(column for column, _ in self.where), self.since, *until)
        for identifier in (self.table, *(c.name for c in self.columns), *filters):
            if not _IDENTIFIER.match(identifier):
                raise BadInputError(
                    f"relation {self.name}: {identifier!r} is not a plain SQL identifier "
                    "([A-Za-z_][A-Za-z0-9_]*); bind a view with a plain name instead"
                )
        names = [c.name for c in self.columns]
        if not 1 <= len(names) <= ARITY_MAX or len(set(names)) != len(names):
            raise BadInputError(
                f"relation {self.name}: expected 1 to {ARITY_MAX} different columns, got {names}"
            )
        for column, value in self.where:
            if type_of(value) is None:
                raise BadInputError(
                    f"relation {self.name}: {column} = {value!r} is no value of the language; "
                    "use int, str or bytes"
                )
        for key in self.keys:
            if not key or not set(key) <= set(names):
                raise BadInputError(
                    f"relation {self.name}: key {key} must name one or more of {names}"
                )

    @property
    def stored(self) -> dict[str, Type]:
        """The columns that the table must have, with their types."""
        wanted = {c.name: c.type for c in self.columns}
        wanted |= {column: type_ for column, value in self.where if (type_ := type_of(value))}
        if self.temporal:
            wanted[self.since] = Type.INT
            if self.until is not None:
                wanted[self.until] = Type.INT
        return wanted

    @property
    def arity(self) -> int:
        """How many arguments the predicate takes."""
        return len(self.columns)


class Schema(Mapping[str, Relation]):
    """The base relations by predicate name; a read-only mapping."""

    __slots__ = ("_relations",)

    def __init__(self, relations: Iterable[Relation]) -> None:
        self._relations: dict[str, Relation] = {}
        for relation in relations:
            if relation.name in self._relations:
                raise BadInputError(f"relation {relation.name} is declared twice; drop one")
            self._relations[relation.name] = relation

    def __getitem__(self, name: str) -> Relation:
        return self._relations[name]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._relations)

    def __len__(self) -> int:
        return len(self._relations)


@dataclass(frozen=True, slots=True)
class Place:
    """Line and column of a token, from 1."""

    line: int
    column: int


class Arithmetic(Enum):
    """Integer operators; all are checked, ``DIVIDE`` and ``MODULO`` floor."""

    ADD = "+"
    SUBTRACT = "-"
    MULTIPLY = "*"
    DIVIDE = "//"
    MODULO = "mod"


class Compare(Enum):
    """Comparison operators; the value is both the source and the SQL spelling except for NE."""

    EQ = "="
    NE = "!="
    LT = "<"
    LE = "<="
    GT = ">"
    GE = ">="


class AggregateKind(Enum):
    """Head aggregates."""

    COUNT = "count"
    SUM = "sum"
    MIN = "min"
    MAX = "max"


@dataclass(frozen=True, slots=True)
class Variable:
    """A named variable (``X``)."""

    name: str
    at: Place


@dataclass(frozen=True, slots=True)
class Anonymous:
    """``_``: some value, of no interest; every occurrence is a different one."""

    at: Place


@dataclass(frozen=True, slots=True)
class Constant:
    """A literal value."""

    value: Value
    at: Place


@dataclass(frozen=True, slots=True)
class Parameter:
    """``$name``: a value bound when the query runs."""

    name: str
    at: Place


@dataclass(frozen=True, slots=True)
class Operation:
    """An arithmetic expression."""

    operator: Arithmetic
    left: Term
    right: Term
    at: Place


Term = Variable | Anonymous | Constant | Parameter | Operation


@dataclass(frozen=True, slots=True)
class Aggregate:
    """``count(*)`` (no arguments), ``count(T, ...)``, ``sum(T)``, ``min(T)``, ``max(T)``."""

    kind: AggregateKind
    arguments: tuple[Term, ...]
    at: Place


@dataclass(frozen=True, slots=True)
class Atom:
    """``p(T, ...)`` or ``not p(T, ...)`` in a body.

    ``names``: the columns of a base relation that the arguments stand for, as in
    ``p(size: S, id: X)``; None when they stand for all columns in order.
    """

    predicate: str
    arguments: tuple[Term, ...]
    negated: bool
    at: Place
    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """``T op T`` in a body."""

    operator: Compare
    left: Term
    right: Term
    at: Place


Literal = Atom | Comparison


@dataclass(frozen=True, slots=True)
class Rule:
    """``head(T, ...) :- literal, ... .``; no body makes it a fact. ``text`` is its source, cut."""

    predicate: str
    head: tuple[Term | Aggregate, ...]
    body: tuple[Literal, ...]
    at: Place
    text: str
    file: str

    @property
    def aggregates(self) -> bool:
        """Whether the head holds an aggregate."""
        return any(isinstance(term, Aggregate) for term in self.head)

    def atoms(self, *, negated: bool) -> tuple[Atom, ...]:
        """The body's atoms of one sign, in order."""
        return tuple(b for b in self.body if isinstance(b, Atom) and b.negated is negated)


GOAL = "?"
"""The predicate of the goal's rule; no program can write it."""


@dataclass(frozen=True, slots=True)
class Program:
    """Rules in order; the last one's head is the predicate asked for, GOAL for a goal."""

    rules: tuple[Rule, ...]

    @property
    def answer(self) -> str:
        """The predicate asked for."""
        return self.rules[-1].predicate


def variables(term: Term | Aggregate) -> tuple[Variable, ...]:
    """The named variables of a term, left to right, repeated as written."""
    if isinstance(term, Variable):
        return (term,)
    if isinstance(term, Operation):
        return variables(term.left) + variables(term.right)
    if isinstance(term, Aggregate):
        return tuple(v for argument in term.arguments for v in variables(argument))
    return ()
