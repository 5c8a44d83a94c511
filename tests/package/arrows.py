"""Finds the project's modules and what each imports, by reading its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = {
    "pagetrail.kernels": ROOT / "kernels",
    "pagetrail.catalog": ROOT / "catalog",
    "pagetrail.controlplane": ROOT / "controlplane",
    "pagetrail.replay": ROOT / "replay",
    "pagetrail": ROOT / "pkg",
}


class When(Enum):
    """When an import takes place."""

    LOAD = "load"
    CALL = "call"  # inside a function
    TYPES = "types"  # under TYPE_CHECKING: never at run time


@dataclass(frozen=True, slots=True)
class Import:
    """One name imported by a module."""

    target: str
    line: int
    when: When


def modules() -> dict[str, Path]:
    """Dotted name -> file of every module of the project, each once."""
    found: dict[str, Path] = {}
    for room, folder in ROOMS.items():
        for file in sorted(folder.rglob("*.py")):  # rglob does not follow the links of pkg/
            parts = file.relative_to(folder).with_suffix("").parts
            if parts[-1] == "__init__":
                parts = parts[:-1]
            found[".".join((room, *parts))] = file
    return found


def room_of(module: str) -> str:
    """The room a dotted name lies in; `pagetrail` for the serving process."""
    return next(room for room in ROOMS if module == room or module.startswith(room + "."))


def imports_of(module: str, file: Path, known: dict[str, Path]) -> list[Import]:
    """Every import of a module, relative ones resolved, `from a import b` as a.b if a module."""
    tree = ast.parse(file.read_text(encoding="utf-8"), str(file))
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    return list(_walk(tree, package, known, When.LOAD))


def _walk(node: ast.AST, package: str, known: dict[str, Path], when: When) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, when)
        elif isinstance(child, ast.ImportFrom):
            base = child.module or ""
            if child.level:
                parents = package.split(".")
                parents = parents[: len(parents) - child.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            for alias in child.names:
                full = f"{base}.{alias.name}"
                yield Import(full if full in known else base, child.lineno, when)
        elif isinstance(child, ast.If) and _is_type_checking(child.test):
            yield from _walk(child, package, known, When.TYPES)
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and when is When.LOAD:
            yield from _walk(child, package, known, When.CALL)
        else:
            yield from _walk(child, package, known, when)


def _is_type_checking(test: ast.expr) -> bool:
    return (isinstance(test, ast.Name) and test.id == "TYPE_CHECKING") or (
        isinstance(test, ast.Attribute) and test.attr == "TYPE_CHECKING"
    )
