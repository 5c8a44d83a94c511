"""Compiles kernel modules with NVRTC, to PTX text or to a cubin; no card is needed.

NVRTC is imported when it is first asked for; its absence is a clear error. Cubins are kept in a
cache directory, named by a digest of sources, options and NVRTC's version.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
from pathlib import Path
from typing import Any

from ..cache import cache_directory
from .launch import SourceModule, source_digest, source_folder

OPTIONS = ("--std=c++17", "--fmad=true", "--ftz=false")


class NvrtcError(RuntimeError):
    """NVRTC is missing or refused a source. The message holds its log."""


def compile_ptx(module: SourceModule, architecture: str, kernels: Path | None = None) -> str:
    """PTX of a module for ``architecture``, for example ``compute_80``."""
    data = _compile(module, architecture, kernels or source_folder())
    return data.rstrip(b"\0 ").decode("ascii", errors="replace")


def compile_cubin(module: SourceModule, architecture: str) -> bytes:
    """Machine code of a module for ``architecture``, for example ``sm_90``."""
    return _compile(module, architecture, source_folder())


def cubin_file(module: SourceModule, architecture: str) -> Path:
    """A cached file with the module's cubin, made if there is none."""
    nvrtc = _nvrtc()
    version = _check(nvrtc, nvrtc.nvrtcVersion())
    made_of = (module, architecture, OPTIONS, version, source_digest())
    digest = hashlib.sha256(repr(made_of).encode())
    folder = cache_directory() / "cubin"
    target = folder / f"{module.name}-{architecture}-{digest.hexdigest()[:32]}.cubin"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / target.name
            made.write_bytes(compile_cubin(module, architecture))
            os.replace(made, target)
    return target


def _compile(module: SourceModule, architecture: str, kernels: Path) -> bytes:
    nvrtc = _nvrtc()
    headers = sorted(kernels.glob("*.cuh"))
    program = _check(
        nvrtc,
        nvrtc.nvrtcCreateProgram(
            (kernels / module.file).read_bytes(),
            module.file.encode(),
            len(headers),
            [path.read_bytes() for path in headers],
            [path.name.encode() for path in headers],
        ),
    )
    try:
        options = [
            option.encode()
            for option in (
                f"--gpu-architecture={architecture}",
                *OPTIONS,
                *(f"-D{key}={value}" for key, value in module.defines),
            )
        ]
        result = nvrtc.nvrtcCompileProgram(program, len(options), options)
        if int(result[0]):
            raise NvrtcError(f"{module.name} for {architecture}:\n{_log(nvrtc, program)}")
        binary = architecture.startswith("sm_")
        size_of = nvrtc.nvrtcGetCUBINSize if binary else nvrtc.nvrtcGetPTXSize
        fill = nvrtc.nvrtcGetCUBIN if binary else nvrtc.nvrtcGetPTX
        size: int = _check(nvrtc, size_of(program))
        data = bytearray(size)
        _check(nvrtc, fill(program, data))
        return bytes(data)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _log(nvrtc: Any, program: Any) -> str:
    log = bytearray(_check(nvrtc, nvrtc.nvrtcGetProgramLogSize(program)))
    _check(nvrtc, nvrtc.nvrtcGetProgramLog(program, log))
    return log.rstrip(b"\0").decode(errors="replace")


def _check(nvrtc: Any, result: tuple[Any, ...]) -> Any:
    if int(result[0]):
        raise NvrtcError(f"NVRTC answered {result[0]}")
    return result[1] if len(result) == 2 else result[1:]


def _nvrtc() -> Any:
    try:
        return importlib.import_module("cuda.bindings.nvrtc")
    except ImportError as error:
        raise NvrtcError(
            "compiling CUDA kernels needs NVRTC: install the gpu or gpu13 extra"
        ) from error
