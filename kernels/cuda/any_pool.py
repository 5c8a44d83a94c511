"""Append and attention over pools of either kind: plain numbers, or eight-bit codes with scales.

Pure. The pools of one call are of one kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from ..abi import KernelInputError
from ..device import AttentionSpec
from . import operations, quantised
from .arrays import DeviceArray, PoolArray
from .launch import Launch
from .operations import Partials
from .paged import BatchLayout
from .quantised import CodedArrays

AnyArrays = PoolArray | CodedArrays
Kind = TypeVar("Kind", PoolArray, CodedArrays)


def append(
    pools: Sequence[AnyArrays],
    layer: int,
    rows: Sequence[DeviceArray],
    slots: DeviceArray,
    error: DeviceArray,
) -> tuple[Launch, ...]:
    """Rows into one or two slabs; see ``operations.append`` and ``quantised.append``."""
    if isinstance(pools[0], CodedArrays):
        return quantised.append(_of_kind(CodedArrays, pools), layer, rows, slots, error)
    return operations.append(_of_kind(PoolArray, pools), layer, rows, slots, error)


def attention(
    what: AttentionSpec,
    layer: int,
    q: DeviceArray,
    keys: Sequence[AnyArrays],
    values: AnyArrays,
    batch: BatchLayout,
    out: DeviceArray,
    lse: DeviceArray | None,
    partials: Partials,
    *,
    reference: bool = False,
) -> tuple[Launch, ...]:
    """See ``operations.attention``."""
    rest = (batch, out, lse, partials)
    if isinstance(values, CodedArrays):
        coded = _of_kind(CodedArrays, keys)
        return quantised.attention(what, layer, q, coded, values, *rest, reference=reference)
    plain = _of_kind(PoolArray, keys)
    return operations.attention(what, layer, q, plain, values, *rest, reference=reference)


def _of_kind(kind: type[Kind], pools: Sequence[AnyArrays]) -> list[Kind]:
    chosen = [pool for pool in pools if isinstance(pool, kind)]
    if len(chosen) != len(pools):
        raise KernelInputError(
            "the pools of one call hold all plain numbers or all codes, not some of each"
        )
    return chosen
