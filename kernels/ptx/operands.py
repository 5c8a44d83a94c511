"""Operands of PTX as C++: registers, literals, special registers, addresses, and assignments."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .parse import PtxError, split_operands

_INTEGERS = {"8", "16", "32", "64"}
_SPECIAL = {
    "tid": "emulator::thread().index",
    "ctaid": "emulator::block().index()",
    "ntid": "emulator::block().size()",
    "nctaid": "emulator::block().grid()",
}
_ADDRESS = re.compile(r"\[\s*([%$\w]+)\s*(?:\+\s*(-?\d+))?\s*\]")


@dataclass(frozen=True, slots=True)
class Context:
    """What an instruction may refer to beside registers."""

    parameters: dict[str, int]
    shared_symbols: frozenset[str]
    registers: dict[str, str]  # name without % -> declared type


def register_type(kind: str) -> str:
    if kind in ("pred", "f32"):
        return cpp_type(kind)
    bits = re.sub(r"\D", "", kind)
    if bits not in _INTEGERS:
        raise PtxError(f"registers of type {kind} are not translated")
    return f"u{bits}"


def variable(register: str) -> str:
    return "r_" + register.lstrip("%")


def cpp_type(kind: str) -> str:
    """The C++ type that an instruction of type ``kind`` computes with."""
    if kind == "pred":
        return "bool"
    if kind == "f32":
        return "f32"
    if kind[0] not in "bus" or kind[1:] not in _INTEGERS:
        raise KeyError(kind)
    return f"{'s' if kind[0] == 's' else 'u'}{kind[1:]}"


def label_of(name: str) -> str:
    return "L" + name.replace("$", "_")


def value_of(kind: str, operand: str, context: Context) -> str:
    """The operand read as ``kind``."""
    if operand.startswith("!"):
        return f"(!{value_of(kind, operand[1:], context)})"
    if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", operand):
        bits = f"u32{{0x{match[1]}u}}"
        return f"as_float({bits})" if kind == "f32" else bits
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", operand):
        literal = operand.rstrip("U")
        suffix = "ll" if literal.startswith("-") else "ull"
        return f"static_cast<{cpp_type(kind)}>({literal}{suffix})"
    if match := re.fullmatch(r"%(tid|ctaid|ntid|nctaid)\.([xyz])", operand):
        return f"{_SPECIAL[match[1]]}.{match[2]}"
    if operand == "%laneid":
        return "emulator::thread().lane"
    if operand in context.shared_symbols:
        return "u64{0}"
    if re.fullmatch(r"%\w+", operand):
        return _read(kind, operand, context)
    raise PtxError(f"operand {operand!r} is not known")


def _read(kind: str, register: str, context: Context) -> str:
    """The register's bits as ``kind``; narrower kinds take its low bits."""
    name, declared = variable(register), _declared(register, context)
    if (kind == "f32") != (declared == "f32"):
        return f"{'as_float' if kind == 'f32' else 'as_bits'}({name})"
    return (
        name
        if cpp_type(kind) == register_type(declared)
        else f"static_cast<{cpp_type(kind)}>({name})"
    )


def assign(target: str, kind: str, expression: str, context: Context) -> str:
    """Writes a result of type ``kind``; a wider register takes it extended as its type says."""
    declared = _declared(target, context)
    if (kind == "f32") != (declared == "f32"):
        expression = f"{'as_float' if declared == 'f32' else 'as_bits'}({expression})"
    return f"{variable(target)} = {expression};"


def _declared(register: str, context: Context) -> str:
    name = register.lstrip("%")
    if name not in context.registers:
        raise PtxError(f"register {register} is not declared")
    return context.registers[name]


def pieces(operand: str) -> tuple[str, ...]:
    return split_operands(operand.strip("{}"))


def address_of(operand: str, space: str, size: int, line: int, context: Context) -> str:
    match = _ADDRESS.fullmatch(operand)
    if match is None:
        raise PtxError(f"line {line}: cannot read the address {operand!r}")
    offset = match[2] or "0"
    if space == "param":
        place = context.parameters[match[1]]
        return f"(static_cast<const unsigned char*>(parameters[{place}]) + {offset})"
    base = f"({value_of('u64', match[1], context)} + ({offset}))"
    if space == "shared":
        return f"shared_pointer({base}, {size}, {line})"
    return f"reinterpret_cast<unsigned char*>({base})"
