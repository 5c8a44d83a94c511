"""What the compiler made of the kernels: registers, spills and wide memory instructions.

``budget.json`` in the folder above holds what each kernel may use on each
architecture; ``measure`` reads a cubin with NVIDIA's disassemblers, which need no card. A change
that spills, or that falls back to narrow loads, fails a test before it meets a device.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from .attention import GQA_WIDTHS
from .launch import SourceModule
from .nvrtc import NvrtcError, compile_cubin

ARCHITECTURES = ("sm_80", "sm_90")
MODULES = (
    SourceModule("append.cu"),
    SourceModule("append_quantised.cu"),
    SourceModule("pages.cu"),
    SourceModule("merge.cu"),
    SourceModule("gqa_ref.cu"),
    *(SourceModule("gqa_mma.cu", (("HEAD_DIM", width),)) for width in GQA_WIDTHS),
    *(SourceModule("gqa_mma_coded.cu", (("HEAD_DIM", width),)) for width in GQA_WIDTHS),
    SourceModule("mla_mma.cu", (("LATENT", 512), ("ROTARY", 64))),
    SourceModule("mla_mma_coded.cu", (("LATENT", 512), ("ROTARY", 64))),
)
_USAGE = re.compile(r"Function (\w+):\s+REG:(\d+) STACK:(\d+)")
_TOOL_SECONDS_MAX = 120


@dataclass(frozen=True, slots=True)
class Usage:
    """What one kernel uses: counts are instructions in the code, not executions."""

    registers: int
    stack_bytes: int
    spills: int  # loads and stores of local memory
    wide_async_copies: int  # cp.async of 16 bytes
    wide_loads: int  # 16-byte loads from global memory
    wide_stores: int  # 16-byte stores to global memory
    tensor_products: int


def budget_file() -> Path:
    """Where the budget lies."""
    return Path(__file__).resolve().parent.parent / "budget.json"


def load_budget() -> dict[str, dict[str, Usage]]:
    """Architecture -> kernel -> what it may use."""
    text = json.loads(budget_file().read_text(encoding="utf-8"))
    return {
        architecture: {name: Usage(**usage) for name, usage in kernels.items()}
        for architecture, kernels in text.items()
    }


def dump_budget(measured: dict[str, dict[str, Usage]]) -> str:
    """The text of a budget file that allows exactly what was measured."""
    plain = {
        architecture: {name: asdict(usage) for name, usage in sorted(kernels.items())}
        for architecture, kernels in measured.items()
    }
    return json.dumps(plain, indent=1) + "\n"


TOOLS = ("cuobjdump", "nvdisasm")
"""What measuring needs beside NVRTC."""


def measure(module: SourceModule, architecture: str) -> dict[str, Usage]:
    """Usage of every kernel of a module. Raises NvrtcError when a tool is missing or fails."""
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "module.cubin"
        cubin.write_bytes(compile_cubin(module, architecture))
        usage = _run("cuobjdump", "-res-usage", str(cubin))
        code = _run("nvdisasm", "-c", str(cubin))
    found = {}
    for match in _USAGE.finditer(usage):
        name = match[1]
        body = code.split(f".text.{name}:")[1].split(".section")[0]
        found[name] = Usage(
            registers=int(match[2]),
            stack_bytes=int(match[3]),
            spills=_count(r"\b(LDL|STL)\b", body),
            wide_async_copies=_count(r"\bLDGSTS\.E\.(BYPASS\.)?(LTC128B\.)?128\b", body),
            wide_loads=_count(r"\bLDG\.E\.128\b", body),
            wide_stores=_count(r"\bSTG\.E\.128\b", body),
            tensor_products=_count(r"\bHMMA\b", body),
        )
    return found


def compare(measured: dict[str, Usage], allowed: dict[str, Usage]) -> list[str]:
    """What a module's kernels use beyond their budget, one line each; empty when within it."""
    problems = []
    for name, usage in sorted(measured.items()):
        limit = allowed.get(name)
        if limit is None:
            problems.append(f"{name} has no budget; add it to {budget_file().name}")
            continue
        for field in ("registers", "stack_bytes", "spills"):
            used, most = getattr(usage, field), getattr(limit, field)
            if used > most:
                problems.append(f"{name} uses {used} {field}, its budget is {most}")
        for field in ("wide_async_copies", "wide_loads", "wide_stores", "tensor_products"):
            if getattr(limit, field) > 0 and getattr(usage, field) == 0:
                problems.append(f"{name} has no {field} any more")
    return problems


def _count(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text))


def _run(tool: str, *arguments: str) -> str:
    program = find_tool(tool)
    if program is None:
        raise NvrtcError(f"{tool} is not installed; install nvidia-cuda-{tool}")
    answer = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=_TOOL_SECONDS_MAX,
    )
    if answer.returncode != 0:
        raise NvrtcError(f"{tool} failed: {answer.stderr[-500:]}")
    return answer.stdout


def find_tool(tool: str) -> str | None:
    """The tool of NVIDIA's packages, else one on the path, if there is one."""
    spec = importlib.util.find_spec("nvidia")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        for path in sorted(Path(folder).glob(f"*/bin/{tool}")):
            return str(path)
    return shutil.which(tool)
