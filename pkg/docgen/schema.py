"""Structs and enumerations in words: the tables of fields that several documents hold."""

from __future__ import annotations

import ast
import inspect as inspect_source
import sys
from collections.abc import Iterable
from enum import IntEnum
from functools import cache
from types import ModuleType
from typing import Any

import msgspec
from msgspec import inspect

from pagetrail.docgen.markdown import cell, code, table


def summary(documented: type) -> str:
    """A class's docstring as Markdown: literals marked once, as Markdown does."""
    text = " ".join((documented.__doc__ or "").split())
    return text.replace("``", "`")


def field_table(struct: type[msgspec.Struct]) -> str:
    """The fields of a struct in the order of its array on the wire.

    A field's meaning is its `Meta` description, or the comment at the end of its line.
    """
    rows = []
    comments = _field_comments(struct)
    for place, info in enumerate(msgspec.structs.fields(struct)):
        described = inspect.type_info(info.type)
        rows.append(
            (
                str(place),
                code(info.name),
                cell(type_in_words(described)),
                cell(description(described) or comments.get(info.name, "")).replace("``", "`"),
            )
        )
    return table(("place", "field", "type", "meaning"), rows)


def nested_structs(structs: Iterable[type[msgspec.Struct]]) -> list[type[msgspec.Struct]]:
    """The structs that appear inside fields of these, each once, in order of appearance."""
    found: dict[type[msgspec.Struct], None] = {}
    for struct in structs:
        for info in msgspec.structs.fields(struct):
            for inner in _structs_inside(inspect.type_info(info.type)):
                found.setdefault(inner)
    return list(found)


def enumerations_of(modules: Iterable[ModuleType]) -> list[type[IntEnum]]:
    """The integer enumerations that these modules define, by module and then by place."""
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, IntEnum)
        and value.__module__ == module.__name__
    ]


def enumeration_table(enumeration: type[IntEnum]) -> str:
    """Numbers on the wire and their names."""
    rows = [(str(int(member)), code(member.name)) for member in enumeration]
    return table(("number", "name"), rows)


def type_in_words(described: inspect.Type) -> str:
    """A field's type as a reader of the bytes meets it. Raises TypeError for one without words."""
    match described:
        case inspect.Metadata(type=inner):
            return type_in_words(inner)
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType(ge=None, le=None):
            return "integer"
        case inspect.IntType(ge=low, le=high):
            bounds = [f"{w} {b}" for w, b in (("from", low), ("to", high)) if b is not None]
            return " ".join(["integer", *bounds])
        case inspect.StrType():
            return "text"
        case inspect.BytesType(min_length=int(least), max_length=most) if least == most:
            return f"{least} bytes"
        case inspect.BytesType():
            return "bytes"
        case inspect.NoneType():
            return "nil"
        case inspect.RawType():
            return "any value"
        case inspect.EnumType(cls=cls) | inspect.StructType(cls=cls):
            return cls.__name__
        case inspect.UnionType(types=types):
            return " or ".join(type_in_words(inner) for inner in types)
        case inspect.TupleType(item_types=items):
            return "(" + ", ".join(type_in_words(inner) for inner in items) + ")"
        case inspect.VarTupleType(item_type=inner) | inspect.ListType(item_type=inner):
            return f"list of {type_in_words(inner)}"
        case inspect.DictType(key_type=key, value_type=value):
            return f"map of {type_in_words(key)} to {type_in_words(value)}"
    raise TypeError(f"no words for fields of type {described!r}")


def description(described: inspect.Type) -> str:
    """A field's `Meta` description, empty when it has none."""
    if isinstance(described, inspect.Metadata):
        return str((described.extra_json_schema or {}).get("description", ""))
    return ""


def _field_comments(struct: type[msgspec.Struct]) -> dict[str, str]:
    """Field name -> the comment that ends its line in the struct's source."""
    return _comments_of_classes(sys.modules[struct.__module__])[struct.__qualname__]


@cache  # a module's source is read and parsed once for all its structs
def _comments_of_classes(module: ModuleType) -> dict[str, dict[str, str]]:
    source = inspect_source.getsource(module)
    lines = source.splitlines()
    classes: dict[str, dict[str, str]] = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef):
            comments = classes[node.name] = {}
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    end_line, end = field.end_lineno or 0, field.end_col_offset or 0
                    _, mark, comment = lines[end_line - 1][end:].partition("# ")
                    if mark:
                        comments[field.target.id] = comment.strip()
    return classes


def _structs_inside(described: Any) -> Iterable[type[msgspec.Struct]]:
    match described:
        case inspect.Metadata(type=inner) | inspect.VarTupleType(item_type=inner):
            yield from _structs_inside(inner)
        case inspect.UnionType(types=inner) | inspect.TupleType(item_types=inner):
            for each in inner:
                yield from _structs_inside(each)
        case inspect.StructType(cls=cls):
            yield cls
