"""The native core's C interface: names, argument types, and the structs that cross it.

Owns nothing but the loaded library. Every pointer handed over must outlive the call; the callers
in ``cpu`` check shapes first, nothing is checked here.
"""

from __future__ import annotations

import ctypes
from ctypes import Structure, c_float, c_int32, c_int64, c_void_p
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .checks import KEY_SLABS_MAX


class Linear(Structure):
    """Arguments of ``pt_linear``; see native/calls.h, as for all of them."""

    _fields_ = (
        ("x", c_void_p),
        ("ldx", c_int64),
        ("rows", c_int64),
        ("depth", c_int64),
        ("weight", c_void_p),
        ("storage", c_int64),
        ("outputs", c_int64),
        ("bias", c_void_p),
        ("y", c_void_p),
        ("ldy", c_int64),
        ("add", c_int64),
    )


class Norm(Structure):
    """Arguments of ``pt_rms_norm``."""

    _fields_ = (
        ("x", c_void_p),
        ("ldx", c_int64),
        ("rows", c_int64),
        ("groups", c_int64),
        ("n", c_int64),
        ("weight", c_void_p),
        ("y", c_void_p),
        ("ldy", c_int64),
        ("plus", c_float),
        ("eps", c_float),
    )


class Rope(Structure):
    """Arguments of ``pt_rope``."""

    _fields_ = (
        ("x", c_void_p),
        ("ldx", c_int64),
        ("rows", c_int64),
        ("heads", c_int64),
        ("head_stride", c_int64),
        ("rotary", c_int64),
        ("positions", c_void_p),
        ("cosines", c_void_p),
        ("sines", c_void_p),
        ("interleaved", c_int64),
    )


class Gated(Structure):
    """Arguments of ``pt_gated``."""

    _fields_ = (
        ("x", c_void_p),
        ("ldx", c_int64),
        ("rows", c_int64),
        ("n", c_int64),
        ("kind", c_int64),
        ("y", c_void_p),
        ("ldy", c_int64),
    )


class Append(Structure):
    """Arguments of ``pt_append``."""

    _fields_ = (
        ("rows", c_void_p),
        ("ldr", c_int64),
        ("count", c_int64),
        ("width", c_int64),
        ("slots", c_void_p),
        ("slots_max", c_int64),
        ("layer", c_void_p),
        ("storage", c_int64),
    )


class Slab(Structure):
    """One layer of a pool, in elements; see native/calls.h."""

    _fields_ = (
        ("base", c_void_p),
        ("page_stride", c_int64),
        ("token_stride", c_int64),
        ("head_stride", c_int64),
        ("width", c_int64),
    )


class Attention(Structure):
    """Arguments of ``pt_attention``."""

    _fields_ = (
        ("q", c_void_p),
        ("ldq", c_int64),
        ("rows", c_int64),
        ("q_heads", c_int64),
        ("kv_heads", c_int64),
        ("keys", Slab * KEY_SLABS_MAX),
        ("values", Slab),
        ("key_slabs", c_int64),
        ("storage", c_int64),
        ("page_tokens", c_int64),
        ("q_indptr", c_void_p),
        ("kv_len", c_void_p),
        ("kv_base", c_void_p),
        ("page_indptr", c_void_p),
        ("page_ids", c_void_p),
        ("items", c_void_p),
        ("merge_indptr", c_void_p),
        ("item_count", c_int64),
        ("window", c_int64),
        ("out", c_void_p),
        ("ldo", c_int64),
        ("lse", c_void_p),
        ("partial", c_void_p),
        ("scale", c_float),
    )


class Launch(Structure):
    """One operation of a program; see native/program.cpp."""

    _fields_ = (("operation", c_void_p), ("arguments", c_void_p))


_5_INTS = (c_int64,) * 5
_OPERATION = (c_int32, (c_void_p, c_void_p))
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "pt_pool_new": (c_void_p, (c_int32,)),
    "pt_pool_free": (None, (c_void_p,)),
    "pt_pack": (None, (c_void_p, c_void_p, c_int64, c_int64, c_int32, c_void_p)),
    "pt_unpack_rows": (None, (c_void_p, c_int64, c_int32, c_void_p, c_int64, c_void_p)),
    "pt_linear": _OPERATION,
    "pt_rms_norm": _OPERATION,
    "pt_rope": _OPERATION,
    "pt_gated": _OPERATION,
    "pt_attention": _OPERATION,
    "pt_append": _OPERATION,
    "pt_run": (c_int32, (c_void_p, c_void_p, c_int64)),
    "pt_page_copy": (None, (c_void_p, *_5_INTS)),
    "pt_gather": (None, (c_void_p, *_5_INTS, c_void_p, c_int64, c_int64, c_void_p)),
    "pt_scatter": (None, (c_void_p, *_5_INTS, c_void_p, c_int64, c_int64, c_void_p)),
}


@lru_cache(maxsize=8)
def load(library: Path) -> ctypes.CDLL:
    """The library with every function's types declared."""
    loaded = ctypes.CDLL(str(library))
    for name, (result, arguments) in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


def address(array: npt.NDArray[np.generic] | None) -> int | None:
    """Where the array's first element lies; None for None."""
    if array is None:
        return None
    data: int = array.__array_interface__["data"][0]
    return data
