"""A model on disk in Hugging Face's form: config.json, safetensors, tokenizer files.

Owns the reading of such a directory and the identity of its weights. Reads safetensors only; a
checkpoint that would run code when it is opened (pickle) is refused. Nothing is written here.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3
from safetensors import SafetensorError, safe_open

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.kernels.abi import Floats

CONFIG_FILE = "config.json"
INDEX_FILE = "model.safetensors.index.json"
SINGLE_FILE = "model.safetensors"
SHARDS_MAX = 1_024


class MissingModelError(BadInputError):
    """No model lies where the caller said."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened directory. ``files`` maps each tensor to the file that holds it."""

    directory: Path
    config: dict[str, Any]
    files: dict[str, Path]
    identity: str  # digest of the weight files, or of what they were converted from

    def __contains__(self, name: str) -> bool:
        return name in self.files

    def tensor(self, name: str) -> Floats:
        """One tensor as contiguous fp32. Raises CorruptionError when it is absent or unreadable."""
        if name not in self.files:
            raise CorruptionError(
                f"{self.directory} holds no tensor {name!r}; the checkpoint is incomplete or of "
                "another family than its config.json says"
            )
        try:
            with safe_open(self.files[name], framework="numpy") as opened:
                return _as_fp32(opened.get_tensor(name), name)
        except SafetensorError as error:
            raise CorruptionError(f"{self.files[name]}: tensor {name!r}: {error}") from error
        except TypeError:  # numpy has no bf16
            return _bf16_tensor(self.files[name], name)


def open_checkpoint(directory: Path, identity: str | None = None) -> Checkpoint:
    """Open a Hugging Face directory.

    ``identity`` is given when the files were converted from others whose digest names them. Raises
    MissingModelError or CorruptionError with what to do.
    """
    if not directory.is_dir():
        raise MissingModelError(f"no model directory {directory}; give a directory or a GGUF file")
    config = read_json(directory / CONFIG_FILE)
    shards = _shards(directory)
    files: dict[str, Path] = {}
    for shard in shards:
        try:
            with safe_open(shard, framework="numpy") as opened:
                files.update(dict.fromkeys(opened.keys(), shard))
        except (SafetensorError, OSError) as error:
            raise CorruptionError(
                f"{shard} is not a complete safetensors file ({error}); fetch it again"
            ) from error
    return Checkpoint(directory, config, files, identity or digest_files(shards))


def digest_files(paths: Iterable[Path]) -> str:
    """BLAKE3 over name, size and bytes of each file, in the order given."""
    whole = blake3()
    for path in paths:
        size = path.stat().st_size
        digest = blake3(max_threads=blake3.AUTO)
        if size:
            with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as view:
                digest.update(view)
        whole.update(f"{path.name}\0{size}\0{digest.hexdigest()}\n".encode())
    return "blake3:" + whole.hexdigest()


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """A JSON object from a file; empty when an optional file is absent."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        if not required:
            return {}
        raise MissingModelError(
            f"{path.parent} has no {path.name}; it is no model directory in Hugging Face's form"
        ) from error
    except (OSError, ValueError) as error:
        raise CorruptionError(f"{path} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorruptionError(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def _shards(directory: Path) -> list[Path]:
    index = directory / INDEX_FILE
    if index.exists():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or len(set(weight_map.values())) > SHARDS_MAX:
            raise CorruptionError(
                f"{index} must map tensors to at most {SHARDS_MAX} files under 'weight_map'"
            )
        names = sorted(set(weight_map.values()))
    else:
        names = [SINGLE_FILE]
    if any("/" in name or name.startswith(".") for name in names):
        raise CorruptionError(f"{index} names files outside its directory")
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        pickled = [*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")]
        more = (
            f"; {pickled[0].name} is a pickle, which is never opened: convert it to safetensors"
            if pickled
            else "; fetch it again"
        )
        raise MissingModelError(f"{directory} lacks {', '.join(missing)}{more}")
    return [directory / name for name in names]


def _as_fp32(array: np.ndarray[Any, Any], name: str) -> Floats:
    if array.dtype not in (np.float32, np.float16, np.float64):
        raise BadInputError(f"tensor {name!r} has type {array.dtype}; fp32, fp16 or bf16 is needed")
    return np.ascontiguousarray(array, np.float32)


def _bf16_tensor(path: Path, name: str) -> Floats:
    """A bf16 tensor, read by the offsets in the file's header."""
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        entry = json.loads(file.read(header_bytes))[name]
        if entry["dtype"] != "BF16":
            raise BadInputError(
                f"tensor {name!r} has type {entry['dtype']}; fp32, fp16 or bf16 is needed"
            )
        start, end = entry["data_offsets"]
        file.seek(8 + header_bytes + start)
        raw = np.frombuffer(file.read(end - start), np.uint16)
    return (raw.astype(np.uint32) << 16).view(np.float32).reshape(entry["shape"])
