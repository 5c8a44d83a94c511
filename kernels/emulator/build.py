"""Builds kernel modules for the host with the machine's own C++ compiler, into the cache."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from .. import compiler
from ..cache import cache_directory
from ..cuda.launch import SourceModule, source_folder
from ..native_build import detect_target

FLAGS = (
    "-std=c++17",
    "-O1",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-fwrapv",  # integers of a device wrap
    "-Wall",
    "-Wextra",
    "-Wno-unknown-pragmas",
    "-Werror",
)


class Sanitizer(Enum):
    """What watches a run: memory errors or data races."""

    ADDRESS = "address"
    THREAD = "thread"


def emulator_folder() -> Path:
    """Where the emulator's headers lie."""
    return Path(__file__).resolve().parent


def build_module(
    module: SourceModule, *, kernels: Path | None = None, sanitizer: Sanitizer | None = None
) -> Path:
    """The shared library of a kernel module. ``kernels`` is a folder of other sources.

    A sanitized library loads only where the sanitizer's own library was loaded first (see
    ``sanitizer_library``). Raises CompilerError when there is no compiler or it fails.
    """
    folder = kernels or source_folder()
    name = module.name
    flags = tuple(f"-D{key}={value}" for key, value in module.defines)
    flags = ("-DPAGETRAIL_EMULATOR", *flags)
    if sanitizer is not None:
        name = f"{name}-{sanitizer.value}"
        flags = (*flags, f"-fsanitize={sanitizer.value}", "-g1", "-fno-omit-frame-pointer")
    return build(name, folder / module.file, flags, (emulator_folder(), folder))


def sanitizer_library(sanitizer: Sanitizer) -> Path:
    """The library to preload into a process that loads sanitized modules."""
    short = {Sanitizer.ADDRESS: "libasan.so", Sanitizer.THREAD: "libtsan.so"}[sanitizer]
    asked = [compiler.find_compiler(), f"-print-file-name={short}"]
    found = Path(compiler.run(asked).strip())
    if not found.is_absolute():
        raise compiler.CompilerError(
            f"the compiler has no {short}; install its sanitizer libraries"
        )
    return found


def build(name: str, source: Path, flags: tuple[str, ...], includes: tuple[Path, ...]) -> Path:
    """The library of one source, which may include the headers of some folders."""
    headers = (path for folder in includes for path in sorted(folder.iterdir()))
    product = compiler.Product(
        name=name,
        sources=(source,),
        headers=tuple(path for path in headers if path.suffix in (".h", ".cuh")),
        flags=(
            *(f"-I{folder}" for folder in includes),
            *FLAGS,
            *detect_target().flags,
            *flags,
        ),
    )
    return compiler.build(product, cache_directory() / "emulator")
