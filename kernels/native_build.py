"""The native core: which instruction sets it is built for, and its library for each.

Built with the machine's own compiler at first use, into the cache (compiler.py).
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from . import compiler
from .cache import cache_directory

SOURCES = ("linear.cpp", "rows.cpp", "attention.cpp", "pages.cpp", "program.cpp")
HEADERS = (
    *("vec.h", "storage.h", "wide.h", "pool.h", "product.h", "pairs.h"),
    *("ahead.h", "steps.h", "lines.h", "lines_16.h", "tile_16.h", "item.h", "calls.h"),
)
FLAGS = ("-std=c++17", "-O3", "-fPIC", "-pthread", "-ffp-contract=off", "-Wno-psabi")


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


def source_digest() -> str:
    """A digest of the core's own text: part of what a result's bits depend on."""
    return compiler.text_digest((*_files(SOURCES), *_files(HEADERS)))


def build(target: Target, directory: Path | None = None) -> Path:
    """The shared library for ``target``, built if the cache has none. Raises CompilerError."""
    product = compiler.Product(
        name=f"core-{target.name}",
        sources=_files(SOURCES),
        headers=_files(HEADERS),
        flags=(*FLAGS, *target.flags),
    )
    return compiler.build(product, directory or cache_directory() / "native")


def _files(names: tuple[str, ...]) -> tuple[Path, ...]:
    folder = Path(__file__).resolve().parent / "native"
    return tuple(folder / name for name in names)
