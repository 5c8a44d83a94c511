"""How a query is evaluated: strata, SQL, and DuckDB's plan of each statement. Runs nothing."""

from __future__ import annotations

from dataclasses import dataclass

import duckdb

from pagetrail.catalog.datalog.compiler import ROUND_COLUMN, Query
from pagetrail.catalog.datalog.evaluate import referenced
from pagetrail.catalog.datalog.model import GOAL
from pagetrail.catalog.datalog.sql import AS_OF, ROUND, identifier, parameter_name
from pagetrail.catalog.datalog.strata import Component


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement of a query with DuckDB's plan for it."""

    purpose: str
    sql: str
    plan: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """What ``explain`` found; ``str()`` is the readable form."""

    components: tuple[Component, ...]
    statements: tuple[Statement, ...]

    def __str__(self) -> str:
        lines: list[str] = []
        for number, component in enumerate(self.components):
            names = ", ".join("the goal" if p == GOAL else p for p in component.predicates)
            lines.append(f"{number}. stratum {component.level}: {names} ({_manner(component)})")
            lines.extend(f"     {rule.text}" for rule in component.rules)
        for statement in self.statements:
            lines += ["", f"-- {statement.purpose}", statement.sql, statement.plan.rstrip()]
        return "\n".join(lines)


def explain(connection: duckdb.DuckDBPyConnection, query: Query) -> Explanation:
    """Explain ``query`` on this database. Temporary tables and provided relations are
    planned as if they were empty."""
    cursor = connection.cursor()
    try:
        cursor.begin()
        arguments = {parameter_name(i): None for i in range(len(query.parameters))}
        names = {**arguments, AS_OF: None, ROUND: None}
        statements: list[Statement] = []
        for relation in query.inputs:
            columns = [f"{identifier(c.name)} {c.type.value}" for c in relation.columns]
            cursor.execute(f"CREATE TEMP TABLE {relation.table} ({', '.join(columns)})")
        for group in query.tables:
            for table in group:
                plan = _plan(cursor, table.create, names)
                statements.append(Statement(f"fill {table.predicate}", table.create, plan))
            for table in group:
                columns = [f"c{i} {type_.value}" for i, type_ in enumerate(table.columns)]
                columns += [f"{ROUND_COLUMN} BIGINT"] if len(group) > 1 or table.grow else []
                cursor.execute(f"CREATE TEMP TABLE {table.name} ({', '.join(columns)})")
            for table in group:
                if table.grow is not None:
                    plan = _plan(cursor, table.grow, names)
                    statements.append(Statement(f"grow {table.predicate}", table.grow, plan))
        statements.append(Statement("answer", query.sql, _plan(cursor, query.sql, names)))
    finally:
        cursor.close()
    return Explanation(query.components, tuple(statements))


def _plan(cursor: duckdb.DuckDBPyConnection, sql: str, names: dict[str, None]) -> str:
    wanted = {name: None for name in referenced(sql) if name in names}
    row = cursor.execute(f"EXPLAIN {sql}", wanted).fetchone()
    return "" if row is None else str(row[1])


def _manner(component: Component) -> str:
    if not component.recursive:
        return "not recursive"
    if component.linear and len(component.predicates) == 1:
        return "linear recursion, one recursive CTE"
    return "recursive, semi-naive in temporary tables"
