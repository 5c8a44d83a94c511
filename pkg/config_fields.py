"""The settings of the schema as a flat table: what a key is called, holds and expects.

Derived from the structs of `config`; the loader takes its messages from here and docs/config.md
its rows, so that both say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import msgspec
from msgspec import inspect

from pagetrail.config import (
    ENDPOINT_PATTERN,
    EVALUATOR_PATTERN,
    NAME_PATTERN,
    QUOTAS_PATTERN,
    Config,
)

ENVIRONMENT_PREFIX = "PAGETRAIL_"

_PATTERN_MEANINGS = {
    ENDPOINT_PATTERN: "an endpoint such as tcp://127.0.0.1:7301 or ipc:///path",
    EVALUATOR_PATTERN: "an evaluator such as residency/value-density@1",
    QUOTAS_PATTERN: "tenants and pages such as acme=2000, beta=500",
    NAME_PATTERN: "a name of at most 64 lower-case letters, digits, '.', '_' and '-'",
}


@dataclass(frozen=True, slots=True)
class Field:
    """One setting. `default` is the plain value as TOML would hold it, None for absent."""

    section: str
    key: str
    type: Any
    default: str | int | bool | None
    expected: str
    description: str
    takes_text: bool  # an environment variable or flag gives the text itself

    @property
    def name(self) -> str:
        """The name used in messages and by `--set`."""
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"{ENVIRONMENT_PREFIX}{self.section}__{self.key}".upper()


def section_types() -> dict[str, type[msgspec.Struct]]:
    """Section name -> its struct, in the schema's order."""
    return {field.name: field.type for field in msgspec.structs.fields(Config)}


def all_fields() -> tuple[Field, ...]:
    """Every setting, in the schema's order."""
    return tuple(
        _field(section, info)
        for section, struct in section_types().items()
        for info in msgspec.structs.fields(struct)
    )


def plain_value(value: object) -> str | int | bool | None:
    """A field's value as TOML would hold it: an enumeration member becomes its text."""
    plain = value.value if isinstance(value, Enum) else value
    if plain is None or isinstance(plain, str | int):
        return plain
    raise TypeError(f"a setting holds {value!r}; expected text, an integer, a boolean or None")


def _field(section: str, info: msgspec.structs.FieldInfo) -> Field:
    described = inspect.type_info(info.type)
    description = ""
    if isinstance(described, inspect.Metadata):
        description = str((described.extra_json_schema or {})["description"])
        described = described.type
    if isinstance(described, inspect.UnionType):  # `FilePath | None`: absent unless given
        (described,) = (t for t in described.types if not isinstance(t, inspect.NoneType))
    return Field(
        section=section,
        key=info.name,
        type=info.type,
        default=plain_value(info.default),
        expected=_expected(described),
        description=description,
        takes_text=isinstance(described, inspect.StrType | inspect.EnumType),
    )


def _expected(described: inspect.Type) -> str:
    """What a value of this type must be, in words, for messages and documentation."""
    match described:
        case inspect.IntType(ge=low, le=high):
            return f"an integer from {low} to {high}"
        case inspect.BoolType():
            return "true or false"
        case inspect.EnumType(cls=members):
            return "one of " + ", ".join(str(member.value) for member in members)
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(str(value) for value in values)
        case inspect.StrType(pattern=None):
            return "text that is not empty"
        case inspect.StrType(pattern=str(pattern)):
            return _PATTERN_MEANINGS[pattern]
    raise TypeError(f"the schema holds a field of type {described!r}, which has no wording here")
