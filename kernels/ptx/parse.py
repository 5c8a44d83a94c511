"""PTX text -> entries, registers, labels and instructions. Knows the grammar, no meaning.

Reads the subset that NVRTC writes for kernels without calls: one body per entry, registers
declared in blocks, labels, guarded instructions. Anything else raises PtxError with its line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_REGISTERS = re.compile(r"\.reg\s+\.(\w+)\s+(.+)", re.DOTALL)
_COUNTED = re.compile(r"%(\w+)<(\d+)>")
_LABEL = re.compile(r"(\$?\w+):")
_INSTRUCTION = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)", re.DOTALL)
_ENTRY = re.compile(r"\.visible\s+\.entry\s+(\w+)\s*\(([^)]*)\)([^{;]*)\{", re.DOTALL)
_PARAMETER = re.compile(r"\.param\s+\.(\w+)\s+(\w+)")
_SHARED = re.compile(r"\.extern\s+\.shared\b[^;]*?(\w+)\[\]\s*;")
_IGNORED = (".loc", ".pragma", ".file")


class PtxError(ValueError):
    """PTX that cannot be read or translated. The message names the line."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """A kernel parameter: its type (``u64``) and the symbol that names it."""

    kind: str
    symbol: str


@dataclass(frozen=True, slots=True)
class Register:
    """A declared register: its type (``pred``, ``b32``, ``f32``, ...) and name without ``%``."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class Label:
    """A place to branch to."""

    name: str


@dataclass(frozen=True, slots=True)
class Brace:
    """Begin or end of a nested scope."""

    opening: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """``@guard opcode operands``; ``guard`` is a register, negated when ``unless``."""

    guard: str | None
    unless: bool
    opcode: tuple[str, ...]
    operands: tuple[str, ...]
    line: int

    def __str__(self) -> str:
        return f"line {self.line}: {'.'.join(self.opcode)} {', '.join(self.operands)}"


Statement = Register | Label | Brace | Instruction


@dataclass(frozen=True, slots=True)
class Entry:
    """One kernel."""

    name: str
    parameters: tuple[Parameter, ...]
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class PtxModule:
    """The kernels of a PTX text and the symbol of dynamic shared memory, if there is one."""

    entries: tuple[Entry, ...]
    shared_symbols: tuple[str, ...]


def parse(text: str) -> PtxModule:
    """Read a module. Raises PtxError on what it does not know."""
    text = re.sub(r"//[^\n]*", "", text)
    entries = []
    position = 0
    while match := _ENTRY.search(text, position):
        body, position = _body(text, match.end())
        parameters = tuple(Parameter(*found) for found in _PARAMETER.findall(match[2]))
        entries.append(Entry(match[1], parameters, body))
    return PtxModule(tuple(entries), tuple(_SHARED.findall(text)))


def split_operands(text: str) -> tuple[str, ...]:
    """Operands at the top level: commas inside braces or brackets do not part them."""
    parts, depth, start = [], 0, 0
    for i, character in enumerate(text):
        if character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
        elif character == "," and depth == 0:
            parts.append(text[start:i].strip())
            start = i + 1
    last = text[start:].strip()
    return (*parts, last) if last else tuple(parts)


def _body(text: str, start: int) -> tuple[tuple[Statement, ...], int]:
    """Statements from after the opening brace to its match, and the place after that."""
    statements: list[Statement] = []
    depth, begin, i = 1, start, start
    while depth:
        if i >= len(text):
            raise PtxError(f"line {text.count(chr(10), 0, start) + 1}: the body has no end")
        character = text[i]
        pending = text[begin:i].strip()
        if character == "\n" and pending.startswith(_IGNORED):
            begin = i + 1
        elif character in "{}" and not pending:
            depth += 1 if character == "{" else -1
            if depth:
                statements.append(Brace(character == "{"))
            begin = i + 1
        elif character == ":" and _LABEL.fullmatch(pending + ":"):
            statements.append(Label(pending))
            begin = i + 1
        elif character == ";":
            statements.extend(_statement(pending, text.count("\n", 0, i) + 1))
            begin = i + 1
        i += 1
    return tuple(statements), i


def _statement(text: str, line: int) -> list[Statement]:
    if not text or text.startswith(_IGNORED):
        return []
    if declared := _REGISTERS.fullmatch(text):
        return list(_registers(declared[1], declared[2]))
    match = _INSTRUCTION.fullmatch(text)
    if match is None:
        raise PtxError(f"line {line}: cannot read {text!r}")
    opcode = tuple(part for part in re.split(r"\.|::", match[3]) if part)
    return [Instruction(match[2], bool(match[1]), opcode, split_operands(match[4]), line)]


def _registers(kind: str, text: str) -> list[Register]:
    registers = []
    for name in text.split(","):
        name = name.strip()
        if counted := _COUNTED.fullmatch(name):
            registers += [Register(kind, f"{counted[1]}{i}") for i in range(int(counted[2]))]
        else:
            registers.append(Register(kind, name.lstrip("%")))
    return registers
