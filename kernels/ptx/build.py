"""From a kernel module to a host library that runs the compiler's PTX of it."""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from ..cache import cache_directory
from ..cuda.launch import SourceModule
from ..cuda.nvrtc import compile_ptx
from ..emulator.build import build, emulator_folder
from .parse import parse
from .translate import translate

ARCHITECTURES = ("compute_80", "compute_90")


def build_ptx_module(
    module: SourceModule, *, kernels: Path | None = None, architecture: str = ARCHITECTURES[0]
) -> Path:
    """The shared library of a module's PTX. Its kernels take the launches of the sources.

    Raises NvrtcError, PtxError or CompilerError.
    """
    text = translate(parse(compile_ptx(module, architecture, kernels)))
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    folder = cache_directory() / "ptx"
    source = folder / f"{module.name}-{digest}.cpp"
    if not source.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / source.name
            made.write_text(text, encoding="ascii")
            os.replace(made, source)
    here = Path(__file__).resolve().parent
    return build(f"ptx-{module.name}", source, ("-O0", "-w"), (here, emulator_folder()))
