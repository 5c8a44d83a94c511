"""The native core's C interface: names, argument types, and the structs that cross it.

Owns nothing but the loaded library. Every pointer handed over must outlive the call; the callers
in ``cpu`` check shapes first, nothing is checked here.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, Structure, c_float, c_int32, c_int64, c_void_p
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .checks import KEY_SLABS_MAX


class Slab(Structure):
    """One layer of a pool, in elements; see native/attention.cpp."""

    _fields_ = (
        ("base", c_void_p),
        ("page_stride", c_int64),
        ("token_stride", c_int64),
        ("head_stride", c_int64),
        ("width", c_int64),
    )


class Attention(Structure):
    """Arguments of ``pt_attention``; see native/attention.cpp."""

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


_2_POINTERS = (c_void_p,) * 2
_3_INTS = (c_int64,) * 3
_5_INTS = (c_int64,) * 5
_SIGNATURES: dict[str, tuple[object, tuple[object, ...]]] = {
    "pt_pool_new": (c_void_p, (c_int32,)),
    "pt_pool_free": (None, (c_void_p,)),
    "pt_pack": (None, (c_void_p, c_void_p, c_int64, c_int64, c_int32, c_void_p)),
    "pt_unpack_rows": (None, (c_void_p, c_int64, c_int32, c_void_p, c_int64, c_void_p)),
    "pt_linear": (
        None,
        (*_2_POINTERS, *_3_INTS, c_void_p, c_int32, c_int64, *_2_POINTERS, c_int64, c_int32),
    ),
    "pt_rms_norm": (
        None,
        (*_2_POINTERS, *_3_INTS, c_int64, c_void_p, c_float, c_float, c_void_p, c_int64),
    ),
    "pt_rope": (
        None,
        (*_2_POINTERS, *_5_INTS, c_void_p, c_void_p, c_void_p, c_int32),
    ),
    "pt_gated": (
        None,
        (c_void_p, c_void_p, c_int64, c_int64, c_int64, c_int32, c_void_p, c_int64),
    ),
    "pt_attention": (None, (c_void_p, POINTER(Attention))),
    "pt_append": (
        c_int32,
        (c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_int32),
    ),
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
