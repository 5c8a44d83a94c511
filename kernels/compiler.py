"""The machine's own C++ compiler: found, run, and what it makes kept in a cache.

The name of a file is a digest of every text it is made of, the flags and the compiler, so a changed
source or compiler builds anew, and processes that start together build once. Nothing is written
into the installed package.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

COMPILERS = ("g++", "c++", "clang++")
BUILD_SECONDS_MAX = 600
QUOTED_MAX = 3_000  # last characters of what a compiler said


class CompilerError(RuntimeError):
    """There is no compiler, it failed, or there is no place for what it makes. Says which."""


@dataclass(frozen=True, slots=True)
class Product:
    """A shared library to make, and of what."""

    name: str
    sources: tuple[Path, ...]
    headers: tuple[Path, ...]  # what the sources include, beside the system's own
    flags: tuple[str, ...]
    suffix: str = ".so"


def find_compiler() -> str:
    """Where the compiler is. Raises CompilerError when there is none."""
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        raise CompilerError(
            f"no C++ compiler found (looked for {', '.join(COMPILERS)}); install one, for example "
            "g++"
        )
    return compiler


def text_digest(files: tuple[Path, ...]) -> str:
    """A digest of the files' names and texts, in their order."""
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def build(product: Product, directory: Path) -> Path:
    """The product's file in ``directory``, made if it is not there: whole or not at all.

    Raises CompilerError.
    """
    compiler = find_compiler()
    version = run([compiler, "--version"]).splitlines()[0]
    try:
        text = text_digest((*product.sources, *product.headers))
    except OSError as error:
        raise CompilerError(f"a source of {product.name} cannot be read: {error}") from error
    told = "\0".join((text, version, product.suffix, *product.flags))
    key = hashlib.sha256(told.encode()).hexdigest()[:32]
    library = directory / f"{product.name}-{key}{product.suffix}"
    if library.exists():
        return library
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with (directory / f"{product.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.exists():
                _make(compiler, product, library)
    except OSError as error:
        raise CompilerError(
            f"cannot write {library.name} to {directory}: {error.strerror}; set XDG_CACHE_HOME to "
            "a directory that can be written"
        ) from error
    return library


def _make(compiler: str, product: Product, library: Path) -> None:
    """Sources side by side, then one link, renamed into place."""
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        objects = {source: Path(scratch) / f"{source.name}.o" for source in product.sources}
        commands = [
            # -x: a kernel's source may have a name that the compiler takes for another language.
            [compiler, *product.flags, "-x", "c++", "-c", str(source), "-o", str(made)]
            for source, made in objects.items()
        ]
        with ThreadPoolExecutor(max_workers=len(commands)) as pool:
            for _ in pool.map(run, commands):
                pass
        linked = Path(scratch) / library.name
        run([compiler, *product.flags, "-shared", *map(str, objects.values()), "-o", str(linked)])
        linked.replace(library)


def run(command: list[str]) -> str:
    """What a command of the compiler prints. Raises CompilerError with its last words."""
    try:
        answer = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=BUILD_SECONDS_MAX,
            env=os.environ | {"LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CompilerError(f"{command[0]} could not be run: {error}") from error
    if answer.returncode:
        raise CompilerError(f"{command[0]} failed:\n{answer.stderr[-QUOTED_MAX:]}")
    return answer.stdout
