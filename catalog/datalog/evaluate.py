"""Runs a compiled query on a DuckDB connection and hands back a pyarrow Table.

Each run uses a cursor of its own, and, when it takes several statements, one transaction that is
rolled back at the end: it sees one state of the database and leaves nothing behind.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from pagetrail.catalog.datalog.compiler import Query, Table, compile_query
from pagetrail.catalog.datalog.errors import (
    Diagnostic,
    EvaluationError,
    EvaluationLimitError,
    nearest,
)
from pagetrail.catalog.datalog.model import OPEN_SEQ, Rule, Schema, Type, Value, type_of
from pagetrail.catalog.datalog.sql import AS_OF, FAULT_PREFIX, ROUND, parameter_name
from pagetrail.catalog.datalog.watchdog import interrupted_after
from pagetrail.catalog.errors import BadInputError, InvariantError

_SORTED_IN_PYTHON_MAX = 128
ARROW_TYPES = {Type.INT: pa.int64(), Type.TEXT: pa.string(), Type.BYTES: pa.binary()}


@dataclass(frozen=True, slots=True)
class Limits:
    """Where an evaluation is stopped: wall-clock seconds, and rounds of semi-naive evaluation.

    The database's own ``memory_limit`` bounds memory.
    """

    seconds: float = 60.0
    rounds: int = 1_000_000


def run(
    connection: duckdb.DuckDBPyConnection,
    query: Query,
    values: Mapping[str, Value] | None = None,
    *,
    inputs: Mapping[str, pa.Table] | None = None,
    as_of: int | None = None,
    ordered: bool = True,
    limits: Limits | None = None,
) -> pa.Table:
    """Evaluate ``query``; ``values`` gives every parameter of it, ``inputs`` the rows of every
    provided relation, columns in the relation's order.

    ``as_of`` is a position of the log: the facts with a smaller ``seq`` are seen. The rows are a
    set; ``ordered`` sorts them by all columns, left to right (bytes and text by
    their bytes), else their order is unspecified. Raises BadInputError for wrong parameters,
    EvaluationError for undefined arithmetic that matters, EvaluationLimitError at a limit.
    """
    arguments = _arguments(query, values or {}, as_of)
    rows = _inputs(query, inputs or {})
    limits = limits or Limits()
    cursor = connection.cursor()
    try:
        with interrupted_after(cursor, limits.seconds):
            if query.tables:  # else one statement sees one state by itself
                cursor.begin()
            for view, given in rows.items():
                cursor.register(view, given)
            for group in query.tables:
                _fill(cursor, group, arguments, limits.rounds)
            statement = _parsed(query.sql)
            found = cursor.execute(statement, _used(query.sql, arguments)).fetchnumpy()
    except duckdb.InterruptException as error:
        raise EvaluationLimitError(
            f"the query was stopped after {limits.seconds} s; "
            "bind more arguments, bound the recursion, or raise the limit"
        ) from error
    except duckdb.Error as error:
        raise _translate(query, error) from error
    finally:
        cursor.close()
    return _table(query, found, ordered)


def answer(
    connection: duckdb.DuckDBPyConnection,
    schema: Schema,
    text: str,
    values: Mapping[str, Value] | None = None,
    *,
    file: str = "<query>",
    library: Sequence[Rule] = (),
    inputs: Mapping[str, pa.Table] | None = None,
    as_of: int | None = None,
    limits: Limits | None = None,
) -> pa.Table:
    """Compile and run in one go; parameters take the types of their values."""
    values = values or {}
    types = {name: _type(name, value) for name, value in values.items()}
    query = compile_query(
        text, schema, file=file, library=library, parameters=types, as_of=as_of is not None
    )
    return run(connection, query, values, inputs=inputs, as_of=as_of, limits=limits)


def verify_schema(connection: duckdb.DuckDBPyConnection, schema: Schema) -> None:
    """Raise BadInputError unless each relation's table has its columns with exactly its types."""
    for relation in schema.values():
        if relation.provided:
            continue
        try:
            rows = connection.execute(f'DESCRIBE "{relation.table}"').fetchall()
        except duckdb.Error as error:
            raise BadInputError(
                f"relation {relation.name}: table {relation.table} cannot be read ({error}); "
                "create it before binding"
            ) from error
        found = {str(row[0]): str(row[1]) for row in rows}
        for name, type_ in relation.stored.items():
            if found.get(name) != type_.value:
                raise BadInputError(
                    f"relation {relation.name}: column {relation.table}.{name} is "
                    f"{found.get(name, 'absent')}, expected {type_.value}; bind a view that casts "
                    "it"
                )


def _fill(
    cursor: duckdb.DuckDBPyConnection,
    group: tuple[Table, ...],
    arguments: Mapping[str, Value],
    rounds_max: int,
) -> None:
    for table in group:
        cursor.execute(table.create, _used(table.create, arguments))
    growing = [table.grow for table in group if table.grow is not None]
    round_ = 0
    grew = bool(growing)
    while grew:
        if round_ >= rounds_max:
            names = ", ".join(table.predicate for table in group)
            raise EvaluationLimitError(
                f"{names} still grew after {rounds_max} rounds; bound the recursion (it makes new "
                "values without end), or raise the limit"
            )
        grew = False
        for statement in growing:
            here = {**arguments, ROUND: round_}
            row = cursor.execute(statement, _used(statement, here)).fetchone()
            grew |= row is not None and row[0] > 0
        round_ += 1


def _arguments(query: Query, values: Mapping[str, Value], as_of: int | None) -> dict[str, Value]:
    """Values under the names that SQL uses, after checks of presence, type and range."""
    for name in values:
        if name not in query.parameters:
            close = nearest(name, query.parameters)
            hint = f"did you mean {close}?" if close else "remove it"
            raise BadInputError(f"the query has no parameter ${name}; {hint}")
    arguments: dict[str, Value] = {}
    for number, (name, type_) in enumerate(query.parameters.items()):
        if name not in values:
            raise BadInputError(f"no value for parameter ${name} ({type_.name}); pass one")
        value = values[name]
        if _type(name, value) is not type_:
            raise BadInputError(
                f"parameter ${name} is {type_.name}, got {type(value).__name__}; convert it"
            )
        arguments[parameter_name(number)] = value
    if query.as_of != (as_of is not None):
        raise BadInputError(
            "a query compiled with as_of=True needs a position, one without it takes none; "
            "compile it the other way"
        )
    if as_of is not None:
        if not 0 <= as_of <= OPEN_SEQ:
            raise BadInputError(f"as_of {as_of} is no position of a log; expected 0 to 2^63 - 1")
        arguments[AS_OF] = as_of
    return arguments


def _inputs(query: Query, inputs: Mapping[str, pa.Table]) -> dict[str, pa.Table]:
    """The provided relations' rows under the names that SQL uses, with exactly their types."""
    wanted = {relation.name: relation for relation in query.inputs}
    if inputs.keys() != wanted.keys():
        raise BadInputError(
            f"the query takes the relations {sorted(wanted)}, got {sorted(inputs)}; hand in those"
        )
    rows: dict[str, pa.Table] = {}
    for name, relation in wanted.items():
        fields = [pa.field(c.name, ARROW_TYPES[c.type]) for c in relation.columns]
        table = inputs[name]
        if [f.type for f in table.schema] != [f.type for f in fields]:
            raise BadInputError(
                f"relation {name} has the columns {[f'{f.name}: {f.type}' for f in fields]}, "
                f"got {[f'{f.name}: {f.type}' for f in table.schema]}; cast them"
            )
        if any(column.null_count for column in table.columns):
            raise BadInputError(f"relation {name} holds NULL, which no relation may; drop it")
        rows[relation.table] = table.rename_columns([f.name for f in fields])
    return rows


def _type(name: str, value: object) -> Type:
    type_ = type_of(value)
    if type_ is None:
        raise BadInputError(
            f"parameter ${name}: {type(value).__name__} is not a type of the language; "
            "pass int, str or bytes"
        )
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise BadInputError(f"parameter ${name}: {value} does not fit 64 bits; scale it")
    return type_


@lru_cache(maxsize=256)
def _parsed(sql: str) -> duckdb.Statement:
    """A statement that DuckDB has parsed: good for any number of runs on any connection."""
    return duckdb.extract_statements(sql)[0]


_REFERENCE = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"|\$([a-z_0-9]+)")


@lru_cache(maxsize=256)
def referenced(sql: str) -> tuple[str, ...]:
    """Names of the parameters that generated SQL refers to."""
    return tuple(m[1] for m in _REFERENCE.finditer(sql) if m[1])


def _used(sql: str, arguments: Mapping[str, Value]) -> dict[str, Any]:
    """The arguments that a statement refers to: DuckDB refuses any other."""
    return {name: arguments[name] for name in referenced(sql)}


def _translate(query: Query, error: duckdb.Error) -> EvaluationError:
    """The rule behind a fault of the guard, or DuckDB's own message (memory, disk)."""
    found = re.search(re.escape(FAULT_PREFIX) + r"(\d+)", str(error))
    if found is None:
        return EvaluationError(f"DuckDB could not answer: {error}")
    rule = query.program.rules[int(found[1])]
    diagnostic = Diagnostic(
        rule.file,
        rule.at.line,
        rule.at.column,
        rule.text,
        "an integer result outside 64 bits, or a division by zero",
        "exclude such bindings by a comparison (X != 0, X < ...), or scale the unit",
    )
    return EvaluationError(str(diagnostic), diagnostic)


def _table(query: Query, found: Mapping[str, Any], ordered: bool) -> pa.Table:
    """DuckDB's columns as Arrow. Through numpy, because the way that gives Arrow at once binds
    the statement twice, and binding is most of a small query; so is sorting in DuckDB or Arrow."""
    columns = []
    for number in range(len(query.columns)):
        values = found[f"c{number}"]
        if np.ma.is_masked(values):
            raise InvariantError(
                "an answer holds NULL: a bound table has NULLs, which no relation may; fix the "
                "view that is bound (COALESCE or filter)"
            )
        columns.append(np.asarray(values))
    rows = len(columns[0])
    few = rows <= _SORTED_IN_PYTHON_MAX
    if ordered and few and rows > 1:
        keys = list(zip(*(values.tolist() for values in columns), strict=True))
        order = sorted(range(rows), key=keys.__getitem__)
        columns = [values[order] for values in columns]
    arrays = [pa.array(v, ARROW_TYPES[c.type]) for v, c in zip(columns, query.columns, strict=True)]
    table = pa.table(arrays, [column.name for column in query.columns])
    if few or not ordered:
        return table
    return table.sort_by([(name, "ascending") for name in table.column_names])
