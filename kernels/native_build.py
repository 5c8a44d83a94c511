"""Builds the native core with the machine's own compiler, once, into a cache directory.

The name of the file is a digest of the sources, the flags and the compiler, so a changed source
or compiler builds anew and two processes that build at once end with the same file. Never writes
into the installed package.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

SOURCES = ("linear.cpp", "rows.cpp", "attention.cpp", "pages.cpp", "program.cpp")
HEADERS = (
    *("vec.h", "storage.h", "wide.h", "pool.h", "product.h", "pairs.h"),
    *("ahead.h", "steps.h", "lines.h", "lines_16.h", "tile_16.h", "calls.h"),
)
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-pthread", "-ffp-contract=off", "-Wno-psabi")
COMPILERS = ("g++", "c++", "clang++")
BUILD_SECONDS_MAX = 600


class NativeBuildError(RuntimeError):
    """There is no native core: no compiler, or it failed. The message holds its last words."""


@dataclass(frozen=True, slots=True)
class Target:
    """An instruction set, the flags that build for it, and what a processor must have to run it."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]  # in the kernel's names


PORTABLE = Target("portable", (), frozenset())
V3 = Target("x86-64-v3", ("-march=x86-64-v3",), frozenset(("avx2", "fma", "f16c", "bmi2", "movbe")))
V4 = Target(
    "x86-64-v4",
    ("-march=x86-64-v4",),
    V3.needs | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"},
)
V4_BF16 = Target("x86-64-v4-bf16", (*V4.flags, "-mavx512bf16"), V4.needs | {"avx512_bf16"})
TARGETS = (V4_BF16, V4, V3, PORTABLE)  # the widest first


def detect_target() -> Target:
    """The widest target that this machine runs."""
    present = cpu_flags()
    return next(target for target in TARGETS if present >= target.needs)


def cpu_flags() -> frozenset[str]:
    """What an x86 processor says it can do, in the kernel's names; empty elsewhere."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return frozenset()
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:
        return frozenset()
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "")
    return frozenset(flags.split())


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/pagetrail`` or ``~/.cache/pagetrail``."""
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "pagetrail"


def source_digest() -> str:
    """A digest of the core's own text: part of what a result's bits depend on."""
    digest = hashlib.sha256()
    for name in (*SOURCES, *HEADERS):
        digest.update(name.encode() + b"\0" + (_source_directory() / name).read_bytes() + b"\0")
    return digest.hexdigest()


def build(target: Target, directory: Path | None = None) -> Path:
    """The shared library for ``target``, built if the cache has none.

    Raises NativeBuildError when no compiler is found or the build fails.
    """
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        raise NativeBuildError(
            f"no C++ compiler found (looked for {', '.join(COMPILERS)}); install one, for example "
            "g++, or go on with the slower torch path"
        )
    version = _run([compiler, "--version"]).splitlines()[0]
    flags = (*FLAGS, *target.flags)
    key = hashlib.sha256("\0".join((source_digest(), version, *flags)).encode()).hexdigest()
    directory = directory or cache_directory() / "native"
    library = directory / f"core-{target.name}-{key[:32]}.so"
    if library.exists():
        return library
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / "build.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # processes that start together build once
            if not library.exists():
                _compile(compiler, flags, library)
    except OSError as error:
        raise NativeBuildError(
            f"cannot write the native core to {directory}: {error.strerror}; set XDG_CACHE_HOME to "
            "a directory that can be written"
        ) from error
    return library


def _compile(compiler: str, flags: tuple[str, ...], library: Path) -> None:
    """Sources side by side, then one link, renamed into place."""
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        objects = {name: Path(scratch) / f"{name}.o" for name in SOURCES}
        with ThreadPoolExecutor(max_workers=len(SOURCES)) as pool:
            commands = [
                [compiler, *flags, "-c", str(_source_directory() / name), "-o", str(made)]
                for name, made in objects.items()
            ]
            for _ in pool.map(_run, commands):
                pass
        linked = Path(scratch) / library.name
        _run([compiler, *flags, "-shared", *map(str, objects.values()), "-o", str(linked)])
        linked.replace(library)


def _source_directory() -> Path:
    return Path(__file__).resolve().parent / "native"


def _run(command: list[str]) -> str:
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NativeBuildError(f"{command[0]} could not be run: {error}") from error
    if answer.returncode != 0:
        raise NativeBuildError(f"{command[0]} failed:\n{answer.stderr[-2000:]}")
    return answer.stdout
