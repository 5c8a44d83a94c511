"""Builds kernel modules for the host with the machine's own C++ compiler, into a cache directory.

The name of a file is a digest of every source, the flags and the compiler, so a changed header
builds anew and two processes that build at once end with the same file.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ..cuda.launch import SourceModule, source_folder
from ..native_build import (
    BUILD_SECONDS_MAX,
    COMPILERS,
    NativeBuildError,
    cache_directory,
    detect_target,
)

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


@dataclass(frozen=True, slots=True)
class Product:
    """A library to make, and of which text."""

    name: str
    sources: tuple[Path, ...]
    flags: tuple[str, ...]
    includes: tuple[Path, ...]
    suffix: str


def emulator_folder() -> Path:
    """Where the emulator's headers lie."""
    return Path(__file__).resolve().parent


def build_module(
    module: SourceModule, *, kernels: Path | None = None, sanitizer: Sanitizer | None = None
) -> Path:
    """The shared library of a kernel module. ``kernels`` is a folder of other sources.

    A sanitized library loads only where the sanitizer's own library was loaded first (see
    ``sanitizer_library``). Raises NativeBuildError when there is no compiler or it fails.
    """
    folder = kernels or source_folder()
    name = module.name
    defines = (f"-D{key}={value}" for key, value in module.defines)
    flags = ("-shared", "-DPAGETRAIL_EMULATOR", *defines)
    if sanitizer is not None:
        name = f"{name}-{sanitizer.value}"
        flags = (*flags, f"-fsanitize={sanitizer.value}", "-g1", "-fno-omit-frame-pointer")
    sources = (folder / module.file,)
    return build(Product(name, sources, flags, (emulator_folder(), folder), ".so"))


def sanitizer_library(sanitizer: Sanitizer) -> Path:
    """The library to preload into a process that loads sanitized modules."""
    short = {Sanitizer.ADDRESS: "libasan.so", Sanitizer.THREAD: "libtsan.so"}[sanitizer]
    found = Path(_run([_compiler(), f"-print-file-name={short}"]).strip())
    if not found.is_absolute():
        raise NativeBuildError(f"the compiler has no {short}; install its sanitizer libraries")
    return found


def build(product: Product) -> Path:
    """The product's file, made if the cache has none of its digest."""
    compiler = _compiler()
    flags = (*FLAGS, *detect_target().flags, *product.flags)
    target = (
        cache_directory()
        / "emulator"
        / (f"{product.name}-{_digest(compiler, flags, product)}{product.suffix}")
    )
    if target.exists():
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            made = Path(scratch) / target.name
            sources = [part for source in product.sources for part in ("-x", "c++", str(source))]
            includes = [f"-I{folder}" for folder in product.includes]
            _run([compiler, *includes, *sources, *flags, "-o", str(made)])
            made.replace(target)
    except OSError as error:
        raise NativeBuildError(
            f"cannot write {target.name} to {target.parent}: {error.strerror}; set XDG_CACHE_HOME "
            "to a directory that can be written"
        ) from error
    return target


def _digest(compiler: str, flags: tuple[str, ...], product: Product) -> str:
    version = _run([compiler, "--version"]).splitlines()[0]
    digest = hashlib.sha256("\0".join((version, *flags)).encode())
    headers = [
        path
        for folder in product.includes
        for path in sorted(folder.iterdir())
        if path.suffix in (".h", ".cuh")
    ]
    for path in (*product.sources, *headers):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def _compiler() -> str:
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        raise NativeBuildError(
            f"no C++ compiler found (looked for {', '.join(COMPILERS)}); the emulator needs one"
        )
    return compiler


def _run(command: list[str]) -> str:
    environment = os.environ | {"LC_ALL": "C"}
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_SECONDS_MAX,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeBuildError(f"{command[0]} could not be run: {error}") from error
    if answer.returncode != 0:
        raise NativeBuildError(f"{command[0]} failed:\n{answer.stderr[-3000:]}")
    return answer.stdout
