"""PTX -> C++ that runs under the emulator. Every register becomes a variable, every branch a goto.

One function per family of instructions, in a table by the first word of the opcode. An instruction
or form that is not here raises PtxError: nothing is skipped or guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from .parse import Brace, Entry, Instruction, Label, PtxError, PtxModule, Register, split_operands

_INTEGERS = {"8", "16", "32", "64"}
_COMPARISONS = {
    "eq": "==",
    "ne": "!=",
    "lt": "<",
    "le": "<=",
    "gt": ">",
    "ge": ">=",
    "lo": "<",
    "ls": "<=",
    "hi": ">",
    "hs": ">=",
}
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


def translate(module: PtxModule) -> str:
    """A C++ translation unit with one launch function per entry, as the emulator exports them."""
    parts = ['#include "runtime.h"', "using namespace ptx;"]
    for entry in module.entries:
        parts.append(_entry(entry, frozenset(module.shared_symbols)))
    return "\n".join(parts) + "\n"


def _entry(entry: Entry, shared_symbols: frozenset[str]) -> str:
    context = Context(
        {p.symbol: i for i, p in enumerate(entry.parameters)},
        shared_symbols,
        {r.name: r.kind for r in entry.body if isinstance(r, Register)},
    )
    lines = [f"static void {entry.name}_body(void* argument) {{"]
    lines.append("void* const* parameters = static_cast<void* const*>(argument);")
    lines.append("(void)parameters;")
    for statement in entry.body:
        if isinstance(statement, Register):
            lines.append(f"{_register_type(statement.kind)} {_variable(statement.name)}{{}};")
        elif isinstance(statement, Label):
            lines.append(f"{_label(statement.name)}:;")
        elif isinstance(statement, Brace):
            lines.append("{" if statement.opening else "}")
        else:
            lines.append(_guarded(statement, context))
    lines.append("}")
    lines.append(
        f'extern "C" int {entry.name}_launch(const emulator::LaunchShape* shape, '
        "void* const* arguments, char* message, std::size_t message_bytes) {\n"
        f"return emulator::run_grid(*shape, &{entry.name}_body, const_cast<void**>(arguments), "
        "message, message_bytes);\n}"
    )
    return "\n".join(lines)


def _guarded(what: Instruction, context: Context) -> str:
    handler = _HANDLERS.get(what.opcode[0])
    if handler is None:
        raise PtxError(f"{what}: not translated")
    try:
        code = handler(what, context)
    except (KeyError, IndexError) as error:
        raise PtxError(f"{what}: this form is not translated ({error})") from error
    if what.guard is None:
        return code
    return f"if ({'!' if what.unless else ''}{_variable(what.guard)}) {{ {code} }}"


# ---- operands ----


def _register_type(kind: str) -> str:
    if kind in ("pred", "f32"):
        return _type(kind)
    bits = re.sub(r"\D", "", kind)
    if bits not in _INTEGERS:
        raise PtxError(f"registers of type {kind} are not translated")
    return f"u{bits}"


def _variable(register: str) -> str:
    return "r_" + register.lstrip("%")


def _type(kind: str) -> str:
    """The C++ type that an instruction of type ``kind`` computes with."""
    if kind == "pred":
        return "bool"
    if kind == "f32":
        return "f32"
    if kind[0] not in "bus" or kind[1:] not in _INTEGERS:
        raise KeyError(kind)
    return f"{'s' if kind[0] == 's' else 'u'}{kind[1:]}"


def _label(name: str) -> str:
    return "L" + name.replace("$", "_")


def _value(kind: str, operand: str, context: Context) -> str:
    """The operand read as ``kind``."""
    if operand.startswith("!"):
        return f"(!{_value(kind, operand[1:], context)})"
    if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", operand):
        bits = f"u32{{0x{match[1]}u}}"
        return f"as_float({bits})" if kind == "f32" else bits
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)U?", operand):
        literal = operand.rstrip("U")
        suffix = "ll" if literal.startswith("-") else "ull"
        return f"static_cast<{_type(kind)}>({literal}{suffix})"
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
    name, declared = _variable(register), _declared(register, context)
    if (kind == "f32") != (declared == "f32"):
        return f"{'as_float' if kind == 'f32' else 'as_bits'}({name})"
    return (
        name if _type(kind) == _register_type(declared) else f"static_cast<{_type(kind)}>({name})"
    )


def _set(target: str, kind: str, expression: str, context: Context) -> str:
    """Writes a result of type ``kind``; a wider register takes it extended as its type says."""
    declared = _declared(target, context)
    if (kind == "f32") != (declared == "f32"):
        expression = f"{'as_float' if declared == 'f32' else 'as_bits'}({expression})"
    return f"{_variable(target)} = {expression};"


def _declared(register: str, context: Context) -> str:
    name = register.lstrip("%")
    if name not in context.registers:
        raise PtxError(f"register {register} is not declared")
    return context.registers[name]


def _pieces(operand: str) -> tuple[str, ...]:
    return split_operands(operand.strip("{}"))


def _address(operand: str, space: str, size: int, line: int, context: Context) -> str:
    match = _ADDRESS.fullmatch(operand)
    if match is None:
        raise PtxError(f"line {line}: cannot read the address {operand!r}")
    offset = match[2] or "0"
    if space == "param":
        place = context.parameters[match[1]]
        return f"(static_cast<const unsigned char*>(parameters[{place}]) + {offset})"
    base = f"({_value('u64', match[1], context)} + ({offset}))"
    if space == "shared":
        return f"shared_pointer({base}, {size}, {line})"
    return f"reinterpret_cast<unsigned char*>({base})"


# ---- memory ----


def _load(what: Instruction, context: Context) -> str:
    space, kind, count = _space(what), what.opcode[-1], _vector(what)
    size = int(kind[1:]) // 8
    source = _address(what.operands[1], space, size * count, what.line, context)
    code = [f"const unsigned char* at = {source};"]
    if space != "param":
        code.append(f"require_aligned(at, {size * count}, {what.line});")
    for i, target in enumerate(_pieces(what.operands[0])):
        value = f"*reinterpret_cast<const {_type(kind)}*>(at + {i * size})"
        code.append(_set(target, kind, value, context))
    return "{ " + " ".join(code) + " }"


def _store(what: Instruction, context: Context) -> str:
    space, kind, count = _space(what), what.opcode[-1], _vector(what)
    size = int(kind[1:]) // 8
    target = _address(what.operands[0], space, size * count, what.line, context)
    code = [
        f"unsigned char* at = {target};",
        f"require_aligned(at, {size * count}, {what.line});",
    ]
    for i, source in enumerate(_pieces(what.operands[1])):
        place = f"*reinterpret_cast<{_type(kind)}*>(at + {i * size})"
        code.append(f"{place} = {_value(kind, source, context)};")
    return "{ " + " ".join(code) + " }"


def _space(what: Instruction) -> str:
    return next((s for s in ("param", "shared", "global") if s in what.opcode), "generic")


def _vector(what: Instruction) -> int:
    return next((int(p[1]) for p in what.opcode if re.fullmatch(r"v[24]", p)), 1)


def _convert_address(what: Instruction, context: Context) -> str:
    target, source = what.operands
    value = _value("u64", source, context)
    if what.opcode == ("cvta", "to", "shared", "u64"):
        value = f"{value} - shared_base()"
    elif what.opcode == ("cvta", "shared", "u64"):
        value = f"{value} + shared_base()"
    elif what.opcode not in (("cvta", "to", "global", "u64"), ("cvta", "global", "u64")):
        raise KeyError(".".join(what.opcode))
    return _set(target, "u64", value, context)


def _atomic(what: Instruction, context: Context) -> str:
    operation, kind = what.opcode[-2:]
    function = {"or": "__atomic_fetch_or", "add": "__atomic_fetch_add"}[operation]
    target = _address(what.operands[1], _space(what), 4, what.line, context)
    value = _value(kind, what.operands[2], context)
    pointer = f"reinterpret_cast<{_type(kind)}*>({target})"
    old = f"{function}({pointer}, {value}, __ATOMIC_RELAXED)"
    return _set(what.operands[0], kind, old, context)


def _copy_async(what: Instruction, context: Context) -> str:
    if what.opcode[:3] == ("cp", "async", "commit_group"):
        return "async_copy_commit();"
    if what.opcode[:3] == ("cp", "async", "wait_group"):
        return f"async_copy_wait<{int(what.operands[0])}>();"
    if what.opcode[:5] != ("cp", "async", "cg", "shared", "global") or what.operands[2] != "16":
        raise KeyError(".".join(what.opcode))
    target = _address(what.operands[0], "shared", 16, what.line, context)
    source = _address(what.operands[1], "global", 16, what.line, context)
    valid = f"{_value('u32', what.operands[3], context)} == 16"
    return f"async_copy_16({target}, {source}, {valid}, {what.line});"


# ---- control ----


def _branch(what: Instruction, _: Context) -> str:
    return f"goto {_label(what.operands[0])};"


def _return(_: Instruction, __: Context) -> str:
    return "return;"


def _barrier(what: Instruction, context: Context) -> str:
    if what.opcode[1] == "warp":
        mask = _value("u32", what.operands[0], context)
        return f"__syncwarp({mask}, {what.line});"
    if what.opcode != ("bar", "sync") or what.operands != ("0",):
        raise KeyError("a barrier other than 0")
    return f"__syncthreads({what.line});"


# ---- arithmetic ----


def _move(what: Instruction, context: Context) -> str:
    kind = what.opcode[-1]
    target, source = what.operands
    if target.startswith("{"):
        low, high = _pieces(target)
        value = _value("u32", source, context)
        return _set(low, "u16", f"static_cast<u16>({value})", context) + _set(
            high, "u16", f"static_cast<u16>({value} >> 16)", context
        )
    if source.startswith("{"):
        low, high = (_value("u16", piece, context) for piece in _pieces(source))
        return _set(target, "u32", f"(u32{{{low}}} | u32{{{high}}} << 16)", context)
    return _set(target, kind, _value(kind, source, context), context)


def _convert(what: Instruction, context: Context) -> str:
    target, *sources = what.operands
    to, source_kind = what.opcode[-2:]
    if to in ("f16x2", "bf16x2"):
        high, low = (_value("f32", source, context) for source in sources)
        pair = f"pack_pair<{'true' if to == 'bf16x2' else 'false'}>({high}, {low})"
        return _set(target, "u32", pair, context)
    if to in ("f16", "bf16"):
        if what.opcode[1] != "rn" or source_kind != "f32":
            raise KeyError(".".join(what.opcode))
        value = _value("f32", sources[0], context)
        return _set(target, "u16", f"emulator::narrow_{to}({value})", context)
    if source_kind == "f16":
        value = _value("u16", sources[0], context)
        return _set(target, "f32", f"emulator::widen_f16({value})", context)
    value = _value(source_kind, sources[0], context)
    if "f32" in (to, source_kind):
        to_float = to == "f32" and "rn" in what.opcode
        to_nearest = source_kind == "f32" and "rni" in what.opcode
        if not (to_float or to_nearest):
            raise KeyError(".".join(what.opcode))
        value = f"std::nearbyint({value})" if to_nearest else value
    return _set(target, to, f"static_cast<{_type(to)}>({value})", context)


def _same_bits(kind: str) -> str:
    """Sums and low products do not care for signs; unsigned C++ arithmetic wraps as PTX does."""
    return kind if kind == "f32" else f"u{kind[1:]}"


def _sum(operator: str) -> Callable[[Instruction, Context], str]:
    def handler(what: Instruction, context: Context) -> str:
        kind = _same_bits(what.opcode[-1])
        a, b = (_value(kind, operand, context) for operand in what.operands[1:])
        return _set(
            what.operands[0], kind, f"static_cast<{_type(kind)}>({a} {operator} {b})", context
        )

    return handler


def _extreme(function: str) -> Callable[[Instruction, Context], str]:
    def handler(what: Instruction, context: Context) -> str:
        kind = what.opcode[-1]
        a, b = (_value(kind, operand, context) for operand in what.operands[1:])
        name = f"std::f{function}" if kind == "f32" else f"std::{function}<{_type(kind)}>"
        return _set(what.operands[0], kind, f"{name}({a}, {b})", context)

    return handler


def _division(operator: str) -> Callable[[Instruction, Context], str]:
    def handler(what: Instruction, context: Context) -> str:
        kind = what.opcode[-1]
        a, b = (_value(kind, operand, context) for operand in what.operands[1:])
        if kind == "f32" and "rn" not in what.opcode:
            raise KeyError("an approximate division")
        check = "" if kind == "f32" else f"require_divisor({b} != 0, {what.line}); "
        return check + _set(what.operands[0], kind, f"({a} {operator} {b})", context)

    return handler


def _bitwise(operator: str) -> Callable[[Instruction, Context], str]:
    def handler(what: Instruction, context: Context) -> str:
        kind = what.opcode[-1]
        a, b = (_value(kind, operand, context) for operand in what.operands[1:])
        return _set(what.operands[0], kind, f"({a} {operator} {b})", context)

    return handler


def _unary(operator: str) -> Callable[[Instruction, Context], str]:
    def handler(what: Instruction, context: Context) -> str:
        kind = what.opcode[-1] if operator != "-" else _same_bits(what.opcode[-1])
        value = _value(kind, what.operands[1], context)
        symbol = "!" if operator == "~" and kind == "pred" else operator
        expression = f"static_cast<{_type(kind)}>({symbol}{value})"
        return _set(what.operands[0], kind, expression, context)

    return handler


def _absolute(what: Instruction, context: Context) -> str:
    if what.opcode[-1] != "f32":
        raise KeyError("an integer absolute value")
    value = _value("f32", what.operands[1], context)
    return _set(what.operands[0], "f32", f"std::fabs({value})", context)


def _shift(function: str) -> Callable[[Instruction, Context], str]:
    def handler(what: Instruction, context: Context) -> str:
        kind = what.opcode[-1] if function == "shift_right" else _same_bits(what.opcode[-1])
        value = _value(kind, what.operands[1], context)
        count = _value("u32", what.operands[2], context)
        shifted = f"{function}<{_type(kind)}>({value}, {count})"
        return _set(what.operands[0], kind, shifted, context)

    return handler


def _multiply(what: Instruction, context: Context) -> str:
    kind = what.opcode[-1]
    if "wide" in what.opcode:
        result = f"{kind[0]}{2 * int(kind[1:])}"
        a, b = (_value(kind, operand, context) for operand in what.operands[1:3])
        product = f"static_cast<{_type(result)}>({a}) * static_cast<{_type(result)}>({b})"
    elif "hi" in what.opcode:
        result = kind
        a, b = (_value(kind, operand, context) for operand in what.operands[1:3])
        product = f"multiply_high<{_type(kind)}>({a}, {b})"
    else:
        result = _same_bits(kind)
        a, b = (_value(result, operand, context) for operand in what.operands[1:3])
        product = f"{a} * {b}"
    if what.opcode[0] == "mad":
        product = f"{product} + {_value(result, what.operands[3], context)}"
    expression = f"static_cast<{_type(result)}>({product})"
    return _set(what.operands[0], result, expression, context)


def _fused(what: Instruction, context: Context) -> str:
    if what.opcode != ("fma", "rn", "f32"):
        raise KeyError(".".join(what.opcode))
    values = ", ".join(_value("f32", operand, context) for operand in what.operands[1:])
    return _set(what.operands[0], "f32", f"std::fma({values})", context)


def _compare(what: Instruction, context: Context) -> str:
    kind, name = what.opcode[-1], what.opcode[1]
    a, b = (_value(kind, operand, context) for operand in what.operands[1:3])
    unordered = kind == "f32" and name.endswith("u")
    operator = _COMPARISONS[name[:-1] if unordered else name]
    expression = f"({a} {operator} {b})"
    if kind == "f32" and name == "ne":  # the ordered form is false on NaN, C++ says true
        expression = f"({expression} && {a} == {a} && {b} == {b})"
    if unordered:
        expression = f"({expression} || {a} != {a} || {b} != {b})"
    combine = next((c for c in ("and", "or", "xor") if c in what.opcode[2:-1]), None)
    if combine:
        symbol = {"and": "&", "or": "|", "xor": "^"}[combine]
        expression = f"({expression} {symbol} {_value('pred', what.operands[3], context)})"
    return _set(what.operands[0], "pred", expression, context)


def _select(what: Instruction, context: Context) -> str:
    kind = what.opcode[-1]
    a, b = (_value(kind, operand, context) for operand in what.operands[1:3])
    chosen = f"({_value('pred', what.operands[3], context)} ? {a} : {b})"
    return _set(what.operands[0], kind, chosen, context)


def _math(function: str) -> Callable[[Instruction, Context], str]:
    def handler(what: Instruction, context: Context) -> str:
        if what.opcode[1] != "approx" or what.opcode[-1] != "f32":
            raise KeyError(".".join(what.opcode))
        value = _value("f32", what.operands[1], context)
        return _set(what.operands[0], "f32", f"{function}({value})", context)

    return handler


def _insert(what: Instruction, context: Context) -> str:
    values = ", ".join(_value("u32", operand, context) for operand in what.operands[1:])
    return _set(what.operands[0], "u32", f"insert_bits({values})", context)


# ---- warps and tensor cores ----


def _shuffle(what: Instruction, context: Context) -> str:
    if what.opcode[:3] not in (("shfl", "sync", "bfly"), ("shfl", "sync", "idx")):
        raise KeyError(".".join(what.opcode))
    value, lane, clamp, mask = (_value("u32", operand, context) for operand in what.operands[1:])
    function = "__shfl_xor_sync" if "bfly" in what.opcode else "__shfl_sync"
    target = what.operands[0].split("|")[0]
    received = f"{function}<u32>({mask}, {value}, static_cast<int>({lane}), {what.line})"
    return f"require_whole_warp({clamp}, {what.line}); " + _set(target, "u32", received, context)


def _load_matrix(what: Instruction, context: Context) -> str:
    if what.opcode[:5] != ("ldmatrix", "sync", "aligned", "m8n8", "x4"):
        raise KeyError(".".join(what.opcode))
    transposed = "true" if "trans" in what.opcode else "false"
    row = _address(what.operands[1], "shared", 16, what.line, context)
    code = f"u32 tiles[4]; emulator::load_tiles_of_warp<{transposed}>(tiles, {row}, {what.line});"
    for i, target in enumerate(_pieces(what.operands[0])):
        code += " " + _set(target, "u32", f"tiles[{i}]", context)
    return "{ " + code + " }"


def _matrix_multiply(what: Instruction, context: Context) -> str:
    shape = ("mma", "sync", "aligned", "m16n8k16", "row", "col", "f32")
    element = what.opcode[7]
    if what.opcode != (*shape, element, element, "f32") or element not in ("f16", "bf16"):
        raise KeyError(".".join(what.opcode))
    target, a, b, c = (_pieces(operand) for operand in what.operands)
    sums = ", ".join(_value("f32", piece, context) for piece in c)
    left = ", ".join(_value("u32", piece, context) for piece in a)
    right = ", ".join(_value("u32", piece, context) for piece in b)
    code = (
        f"float c[4] = {{{sums}}}; const u32 a[4] = {{{left}}}; "
        f"multiply_{element}(c, a, {right}, {what.line});"
    )
    for i, piece in enumerate(target):
        code += " " + _set(piece, "f32", f"c[{i}]", context)
    return "{ " + code + " }"


_HANDLERS: dict[str, Callable[[Instruction, Context], str]] = {
    "ld": _load,
    "st": _store,
    "cvta": _convert_address,
    "atom": _atomic,
    "cp": _copy_async,
    "bra": _branch,
    "ret": _return,
    "exit": _return,
    "bar": _barrier,
    "barrier": _barrier,
    "mov": _move,
    "cvt": _convert,
    "add": _sum("+"),
    "sub": _sum("-"),
    "min": _extreme("min"),
    "max": _extreme("max"),
    "div": _division("/"),
    "rem": _division("%"),
    "and": _bitwise("&"),
    "or": _bitwise("|"),
    "xor": _bitwise("^"),
    "not": _unary("~"),
    "neg": _unary("-"),
    "abs": _absolute,
    "shl": _shift("shift_left"),
    "shr": _shift("shift_right"),
    "mul": _multiply,
    "mad": _multiply,
    "fma": _fused,
    "setp": _compare,
    "selp": _select,
    "ex2": _math("exp2_approx"),
    "lg2": _math("log2_approx"),
    "bfi": _insert,
    "shfl": _shuffle,
    "ldmatrix": _load_matrix,
    "mma": _matrix_multiply,
}
