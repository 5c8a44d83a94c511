"""PTX -> C++ that runs under the emulator. Every register becomes a variable, every branch a goto.

An instruction or form that is not known raises PtxError with its line.
"""

from __future__ import annotations

from .instructions import HANDLERS
from .operands import Context, label_of, register_type, variable
from .parse import Brace, Entry, Instruction, Label, PtxError, PtxModule, Register


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
            lines.append(f"{register_type(statement.kind)} {variable(statement.name)}{{}};")
        elif isinstance(statement, Label):
            lines.append(f"{label_of(statement.name)}:;")
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
    handler = HANDLERS.get(what.opcode[0])
    if handler is None:
        raise PtxError(f"{what}: not translated")
    try:
        code = handler(what, context)
    except (KeyError, IndexError) as error:
        raise PtxError(f"{what}: this form is not translated ({error})") from error
    if what.guard is None:
        return code
    return f"if ({'!' if what.unless else ''}{variable(what.guard)}) {{ {code} }}"
