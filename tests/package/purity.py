"""Finds in a module's syntax what an evaluator may not use: clocks, chance, floats, addresses."""

from __future__ import annotations

import ast

FORBIDDEN_MODULES = {
    "time",
    "datetime",
    "random",
    "secrets",
    "uuid",
    "os",
    "locale",
    "socket",
    "threading",
    "asyncio",
    "math",
    "statistics",
    "numpy",
}
FORBIDDEN_NAMES = {
    "float": "floats",
    "complex": "floats",
    "hash": "hashes that differ by process",
    "id": "addresses of objects",
    "open": "files",
    "input": "the terminal",
    "globals": "globals",
    "eval": "evaluated text",
    "exec": "evaluated text",
}


def offences(source: str) -> list[str]:
    """`line N: what` for everything in the source that an evaluator may not use."""
    found = []
    for node in ast.walk(ast.parse(source)):
        what = _offence(node)
        if what:
            found.append((getattr(node, "lineno", 0), what))
    return [f"line {line}: {what}" for line, what in sorted(found)]


def _offence(node: ast.AST) -> str | None:
    match node:
        case ast.Import(names=names):
            bad = [n.name for n in names if n.name.partition(".")[0] in FORBIDDEN_MODULES]
            return f"imports {', '.join(bad)}" if bad else None
        case ast.ImportFrom(module=str(module), level=0):
            top = module.partition(".")[0]
            return f"imports {module}" if top in FORBIDDEN_MODULES else None
        case ast.Constant(value=float() | complex()):
            return f"the float {node.value!r}"
        case ast.BinOp(op=ast.Div()) | ast.AugAssign(op=ast.Div()):
            return "true division, which makes floats; use //"
        case ast.Name(id=name, ctx=ast.Load()) if name in FORBIDDEN_NAMES:
            return f"{name}: {FORBIDDEN_NAMES[name]}"
        case ast.Global() | ast.Nonlocal():
            return "state outside the function"
    return None
