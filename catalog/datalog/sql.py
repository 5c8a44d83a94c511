"""The few spellings of SQL that hold program text: names, literals, parameters, checked arithmetic.

Program text reaches SQL only through this module: values as escaped, typed literals, predicates
under generated names. The semantics of arithmetic live here too: a result that does not exist
(overflow, division by zero) makes an expression *undefined*, which the rule compiler turns into an
error when, and only when, it matters (docs/datalog.md, "Undefined arithmetic").
"""

from __future__ import annotations

from dataclasses import dataclass

from pagetrail.catalog.datalog.model import Arithmetic, Type, Value

AS_OF = "as_of"
ROUND = "round"
FAULT_PREFIX = "pagetrail datalog fault "
EXPRESSION_SQL_MAX_CHARS = 1 << 16


@dataclass(frozen=True, slots=True)
class Expression:
    """SQL of a term. ``partial``: evaluating it may fail, so it must stand inside TRY."""

    sql: str
    partial: bool = False

    @property
    def safe(self) -> str:
        """The expression, NULL where undefined."""
        return f"TRY({self.sql})" if self.partial else self.sql


def identifier(name: str) -> str:
    """A quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: Value) -> str:
    """A typed SQL literal that reads back as exactly ``value``."""
    if isinstance(value, int):
        return f"({value}::BIGINT)" if value >= 0 else f"(({value})::BIGINT)"
    if isinstance(value, bytes):
        return "'" + "".join(f"\\x{byte:02X}" for byte in value) + "'::BLOB"
    return f"{quoted(value)}::VARCHAR"


def quoted(text: str) -> str:
    """Text between quotes, where SQL takes no typed value: the path of a file."""
    return "'" + text.replace("'", "''") + "'"


def parameter(number: int, type_: Type) -> str:
    """A typed reference to the program's parameter of this number."""
    return f"CAST(${parameter_name(number)} AS {type_.value})"


def parameter_name(number: int) -> str:
    """The name under which the parameter is passed to DuckDB (which ignores case in names)."""
    return f"p{number}"


def fault(rule_number: int) -> str:
    """An SQL expression that fails with a message from which the rule can be found again.

    DuckDB's ``error`` is volatile, so no filter moves through a projection that holds it.
    """
    return f"error('{FAULT_PREFIX}{rule_number}')"


def operation(operator: Arithmetic, left: Expression, right: Expression) -> Expression:
    """Checked 64-bit arithmetic; ``//`` rounds towards minus infinity, ``mod`` has the sign of
    the divisor, so that ``X = Y * (X // Y) + X mod Y`` always."""
    a, b = left.sql, right.sql
    if operator in (Arithmetic.ADD, Arithmetic.SUBTRACT, Arithmetic.MULTIPLY):
        return Expression(f"({a} {operator.value} {b})", True)
    off = f"({a} % {b} <> 0 AND (({a} % {b} < 0) <> ({b} < 0)))"
    if operator is Arithmetic.DIVIDE:
        return Expression(f"({a} // {b} - CAST({off} AS BIGINT))", True)
    return Expression(f"({a} % {b} + CASE WHEN {off} THEN {b} ELSE 0::BIGINT END)", True)
