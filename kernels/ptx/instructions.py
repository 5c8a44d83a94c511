"""Instructions of PTX as C++ statements: one function per family, in a table by the first word.

A form that is not here raises KeyError or PtxError: nothing is skipped or guessed.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from .operands import Context, address_of, assign, cpp_type, label_of, pieces, value_of
from .parse import Instruction

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

# ---- memory ----


def _load(what: Instruction, context: Context) -> str:
    space, kind, count = _space(what), what.opcode[-1], _vector(what)
    size = int(kind[1:]) // 8
    source = address_of(what.operands[1], space, size * count, what.line, context)
    code = [f"const unsigned char* at = {source};"]
    if space != "param":
        code.append(f"require_aligned(at, {size * count}, {what.line});")
    for i, target in enumerate(pieces(what.operands[0])):
        value = f"*reinterpret_cast<const {cpp_type(kind)}*>(at + {i * size})"
        code.append(assign(target, kind, value, context))
    return "{ " + " ".join(code) + " }"


def _store(what: Instruction, context: Context) -> str:
    space, kind, count = _space(what), what.opcode[-1], _vector(what)
    size = int(kind[1:]) // 8
    target = address_of(what.operands[0], space, size * count, what.line, context)
    code = [
        f"unsigned char* at = {target};",
        f"require_aligned(at, {size * count}, {what.line});",
    ]
    for i, source in enumerate(pieces(what.operands[1])):
        place = f"*reinterpret_cast<{cpp_type(kind)}*>(at + {i * size})"
        code.append(f"{place} = {value_of(kind, source, context)};")
    return "{ " + " ".join(code) + " }"


def _space(what: Instruction) -> str:
    return next((s for s in ("param", "shared", "global") if s in what.opcode), "generic")


def _vector(what: Instruction) -> int:
    return next((int(p[1]) for p in what.opcode if re.fullmatch(r"v[24]", p)), 1)


def _convert_address(what: Instruction, context: Context) -> str:
    target, source = what.operands
    value = value_of("u64", source, context)
    if what.opcode == ("cvta", "to", "shared", "u64"):
        value = f"{value} - shared_base()"
    elif what.opcode == ("cvta", "shared", "u64"):
        value = f"{value} + shared_base()"
    elif what.opcode not in (("cvta", "to", "global", "u64"), ("cvta", "global", "u64")):
        raise KeyError(".".join(what.opcode))
    return assign(target, "u64", value, context)


def _atomic(what: Instruction, context: Context) -> str:
    operation, kind = what.opcode[-2:]
    function = {"or": "__atomic_fetch_or", "add": "__atomic_fetch_add"}[operation]
    target = address_of(what.operands[1], _space(what), 4, what.line, context)
    value = value_of(kind, what.operands[2], context)
    pointer = f"reinterpret_cast<{cpp_type(kind)}*>({target})"
    old = f"{function}({pointer}, {value}, __ATOMIC_RELAXED)"
    return assign(what.operands[0], kind, old, context)


def _copy_async(what: Instruction, context: Context) -> str:
    if what.opcode[:3] == ("cp", "async", "commit_group"):
        return "async_copy_commit();"
    if what.opcode[:3] == ("cp", "async", "wait_group"):
        return f"async_copy_wait<{int(what.operands[0])}>();"
    size = what.operands[2]
    if what.opcode[2:5] != ({"16": "cg", "4": "ca"}.get(size), "shared", "global"):
        raise KeyError(".".join(what.opcode))
    target = address_of(what.operands[0], "shared", int(size), what.line, context)
    source = address_of(what.operands[1], "global", int(size), what.line, context)
    valid = f"{value_of('u32', what.operands[3], context)} == {size}"
    return f"async_copy<{size}>({target}, {source}, {valid}, {what.line});"


# ---- control ----


def _branch(what: Instruction, _: Context) -> str:
    return f"goto {label_of(what.operands[0])};"


def _return(_: Instruction, __: Context) -> str:
    return "return;"


def _barrier(what: Instruction, context: Context) -> str:
    if what.opcode[1] == "warp":
        mask = value_of("u32", what.operands[0], context)
        return f"__syncwarp({mask}, {what.line});"
    if what.opcode != ("bar", "sync") or what.operands != ("0",):
        raise KeyError("a barrier other than 0")
    return f"__syncthreads({what.line});"


# ---- arithmetic ----


def _move(what: Instruction, context: Context) -> str:
    kind = what.opcode[-1]
    target, source = what.operands
    if target.startswith("{"):
        low, high = pieces(target)
        value = value_of("u32", source, context)
        return assign(low, "u16", f"static_cast<u16>({value})", context) + assign(
            high, "u16", f"static_cast<u16>({value} >> 16)", context
        )
    if source.startswith("{"):
        low, high = (value_of("u16", piece, context) for piece in pieces(source))
        return assign(target, "u32", f"(u32{{{low}}} | u32{{{high}}} << 16)", context)
    return assign(target, kind, value_of(kind, source, context), context)


def _convert(what: Instruction, context: Context) -> str:
    target, *sources = what.operands
    to, source_kind = what.opcode[-2:]
    if to in ("f16x2", "bf16x2") and source_kind == "f32":
        high, low = (value_of("f32", source, context) for source in sources)
        pair = f"pack_pair<{'true' if to == 'bf16x2' else 'false'}>({high}, {low})"
        return assign(target, "u32", pair, context)
    if source_kind == "e4m3x2":
        if what.opcode[1:] != ("rn", "f16x2", "e4m3x2"):
            raise KeyError(".".join(what.opcode))
        return assign(target, "u32", f"widen_pair({value_of('u16', sources[0], context)})", context)
    if to in ("f16", "bf16"):
        if what.opcode[1] != "rn" or source_kind != "f32":
            raise KeyError(".".join(what.opcode))
        value = value_of("f32", sources[0], context)
        return assign(target, "u16", f"emulator::narrow_{to}({value})", context)
    if source_kind == "f16":
        value = value_of("u16", sources[0], context)
        return assign(target, "f32", f"emulator::widen_f16({value})", context)
    value = value_of(source_kind, sources[0], context)
    if "f32" in (to, source_kind):
        to_float = to == "f32" and "rn" in what.opcode
        to_nearest = source_kind == "f32" and "rni" in what.opcode
        if not (to_float or to_nearest):
            raise KeyError(".".join(what.opcode))
        value = f"std::nearbyint({value})" if to_nearest else value
    return assign(target, to, f"static_cast<{cpp_type(to)}>({value})", context)


def _same_bits(kind: str) -> str:
    """Sums and low products do not care for signs; unsigned C++ arithmetic wraps as PTX does."""
    return kind if kind == "f32" else f"u{kind[1:]}"


def _sum(operator: str) -> Callable[[Instruction, Context], str]:
    def handler(what: Instruction, context: Context) -> str:
        kind = _same_bits(what.opcode[-1])
        a, b = (value_of(kind, operand, context) for operand in what.operands[1:])
        return assign(
            what.operands[0], kind, f"static_cast<{cpp_type(kind)}>({a} {operator} {b})", context
        )

    return handler


def _extreme(function: str) -> Callable[[Instruction, Context], str]:
    def handler(what: Instruction, context: Context) -> str:
        kind = what.opcode[-1]
        a, b = (value_of(kind, operand, context) for operand in what.operands[1:])
        name = f"std::f{function}" if kind == "f32" else f"std::{function}<{cpp_type(kind)}>"
        return assign(what.operands[0], kind, f"{name}({a}, {b})", context)

    return handler


def _division(operator: str) -> Callable[[Instruction, Context], str]:
    def handler(what: Instruction, context: Context) -> str:
        kind = what.opcode[-1]
        a, b = (value_of(kind, operand, context) for operand in what.operands[1:])
        if kind == "f32" and "rn" not in what.opcode:
            raise KeyError("an approximate division")
        check = "" if kind == "f32" else f"require_divisor({b} != 0, {what.line}); "
        return check + assign(what.operands[0], kind, f"({a} {operator} {b})", context)

    return handler


def _bitwise(operator: str) -> Callable[[Instruction, Context], str]:
    def handler(what: Instruction, context: Context) -> str:
        kind = what.opcode[-1]
        a, b = (value_of(kind, operand, context) for operand in what.operands[1:])
        return assign(what.operands[0], kind, f"({a} {operator} {b})", context)

    return handler


def _unary(operator: str) -> Callable[[Instruction, Context], str]:
    def handler(what: Instruction, context: Context) -> str:
        kind = what.opcode[-1] if operator != "-" else _same_bits(what.opcode[-1])
        value = value_of(kind, what.operands[1], context)
        symbol = "!" if operator == "~" and kind == "pred" else operator
        expression = f"static_cast<{cpp_type(kind)}>({symbol}{value})"
        return assign(what.operands[0], kind, expression, context)

    return handler


def _absolute(what: Instruction, context: Context) -> str:
    if what.opcode[-1] != "f32":
        raise KeyError("an integer absolute value")
    value = value_of("f32", what.operands[1], context)
    return assign(what.operands[0], "f32", f"std::fabs({value})", context)


def _shift(function: str) -> Callable[[Instruction, Context], str]:
    def handler(what: Instruction, context: Context) -> str:
        kind = what.opcode[-1] if function == "shift_right" else _same_bits(what.opcode[-1])
        value = value_of(kind, what.operands[1], context)
        count = value_of("u32", what.operands[2], context)
        shifted = f"{function}<{cpp_type(kind)}>({value}, {count})"
        return assign(what.operands[0], kind, shifted, context)

    return handler


def _multiply(what: Instruction, context: Context) -> str:
    kind = what.opcode[-1]
    if "wide" in what.opcode:
        result = f"{kind[0]}{2 * int(kind[1:])}"
        a, b = (value_of(kind, operand, context) for operand in what.operands[1:3])
        product = f"static_cast<{cpp_type(result)}>({a}) * static_cast<{cpp_type(result)}>({b})"
    elif "hi" in what.opcode:
        result = kind
        a, b = (value_of(kind, operand, context) for operand in what.operands[1:3])
        product = f"multiply_high<{cpp_type(kind)}>({a}, {b})"
    else:
        result = _same_bits(kind)
        a, b = (value_of(result, operand, context) for operand in what.operands[1:3])
        product = f"{a} * {b}"
    if what.opcode[0] == "mad":
        product = f"{product} + {value_of(result, what.operands[3], context)}"
    expression = f"static_cast<{cpp_type(result)}>({product})"
    return assign(what.operands[0], result, expression, context)


def _fused(what: Instruction, context: Context) -> str:
    if what.opcode != ("fma", "rn", "f32"):
        raise KeyError(".".join(what.opcode))
    values = ", ".join(value_of("f32", operand, context) for operand in what.operands[1:])
    return assign(what.operands[0], "f32", f"std::fma({values})", context)


def _compare(what: Instruction, context: Context) -> str:
    kind, name = what.opcode[-1], what.opcode[1]
    a, b = (value_of(kind, operand, context) for operand in what.operands[1:3])
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
        expression = f"({expression} {symbol} {value_of('pred', what.operands[3], context)})"
    return assign(what.operands[0], "pred", expression, context)


def _select(what: Instruction, context: Context) -> str:
    kind = what.opcode[-1]
    a, b = (value_of(kind, operand, context) for operand in what.operands[1:3])
    chosen = f"({value_of('pred', what.operands[3], context)} ? {a} : {b})"
    return assign(what.operands[0], kind, chosen, context)


def _math(function: str) -> Callable[[Instruction, Context], str]:
    def handler(what: Instruction, context: Context) -> str:
        if what.opcode[1] != "approx" or what.opcode[-1] != "f32":
            raise KeyError(".".join(what.opcode))
        value = value_of("f32", what.operands[1], context)
        return assign(what.operands[0], "f32", f"{function}({value})", context)

    return handler


def _insert(what: Instruction, context: Context) -> str:
    values = ", ".join(value_of("u32", operand, context) for operand in what.operands[1:])
    return assign(what.operands[0], "u32", f"insert_bits({values})", context)


def _permute(what: Instruction, context: Context) -> str:
    if what.opcode != ("prmt", "b32"):
        raise KeyError(".".join(what.opcode))
    values = ", ".join(value_of("u32", operand, context) for operand in what.operands[1:])
    return assign(what.operands[0], "u32", f"permute_bytes({values})", context)


# ---- warps and tensor cores ----


def _shuffle(what: Instruction, context: Context) -> str:
    if what.opcode[:3] not in (("shfl", "sync", "bfly"), ("shfl", "sync", "idx")):
        raise KeyError(".".join(what.opcode))
    value, lane, clamp, mask = (value_of("u32", operand, context) for operand in what.operands[1:])
    function = "__shfl_xor_sync" if "bfly" in what.opcode else "__shfl_sync"
    target = what.operands[0].split("|")[0]
    received = f"{function}<u32>({mask}, {value}, static_cast<int>({lane}), {what.line})"
    return f"require_whole_warp({clamp}, {what.line}); " + assign(target, "u32", received, context)


def _load_matrix(what: Instruction, context: Context) -> str:
    if what.opcode[:5] != ("ldmatrix", "sync", "aligned", "m8n8", "x4"):
        raise KeyError(".".join(what.opcode))
    transposed = "true" if "trans" in what.opcode else "false"
    row = address_of(what.operands[1], "shared", 16, what.line, context)
    code = f"u32 tiles[4]; emulator::load_tiles_of_warp<{transposed}>(tiles, {row}, {what.line});"
    for i, target in enumerate(pieces(what.operands[0])):
        code += " " + assign(target, "u32", f"tiles[{i}]", context)
    return "{ " + code + " }"


def _matrix_multiply(what: Instruction, context: Context) -> str:
    shape = ("mma", "sync", "aligned", "m16n8k16", "row", "col", "f32")
    element = what.opcode[7]
    if what.opcode != (*shape, element, element, "f32") or element not in ("f16", "bf16"):
        raise KeyError(".".join(what.opcode))
    target, a, b, c = (pieces(operand) for operand in what.operands)
    sums = ", ".join(value_of("f32", piece, context) for piece in c)
    left = ", ".join(value_of("u32", piece, context) for piece in a)
    right = ", ".join(value_of("u32", piece, context) for piece in b)
    code = (
        f"float c[4] = {{{sums}}}; const u32 a[4] = {{{left}}}; "
        f"multiply_{element}(c, a, {right}, {what.line});"
    )
    for i, piece in enumerate(target):
        code += " " + assign(piece, "f32", f"c[{i}]", context)
    return "{ " + code + " }"


HANDLERS: dict[str, Callable[[Instruction, Context], str]] = {
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
    "prmt": _permute,
    "shfl": _shuffle,
    "ldmatrix": _load_matrix,
    "mma": _matrix_multiply,
}
