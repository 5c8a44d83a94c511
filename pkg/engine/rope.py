"""Tables of cosines and sines for every position of a context."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from pagetrail.kernels.abi import Floats

from .descriptor import RopeScaling, RopeSpec

Doubles = npt.NDArray[np.float64]


def rope_tables(rope: RopeSpec, context: int) -> tuple[Floats, Floats]:
    """``(cosines, sines)``, each fp32 ``[context, width / 2]``.

    Frequencies are rounded to fp32 before they meet a position, as the models were trained.
    """
    frequencies = _frequencies(rope).astype(np.float32)
    angles = np.arange(context, dtype=np.float32)[:, None] * frequencies[None, :]
    factor = np.float32(rope.table_factor)
    return np.cos(angles) * factor, np.sin(angles) * factor


def _frequencies(rope: RopeSpec) -> Doubles:
    plain: Doubles = 1.0 / rope.theta ** (np.arange(0, rope.width, 2) / rope.width)
    if rope.scaling is RopeScaling.LINEAR:
        return plain / rope.factor
    if rope.scaling is RopeScaling.LLAMA3:
        return _llama3(rope, plain)
    if rope.scaling is RopeScaling.YARN:
        return _yarn(rope, plain)
    return plain


def _llama3(rope: RopeSpec, plain: Doubles) -> Doubles:
    """Long waves are stretched, short ones kept, those between are mixed (Llama 3.1)."""
    turns = rope.original_context * plain / (2.0 * math.pi)
    low, high = rope.low_frequency_factor, rope.high_frequency_factor
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    mixed: Doubles = (1.0 - kept) * plain / rope.factor + kept * plain
    return mixed


def _yarn(rope: RopeSpec, plain: Doubles) -> Doubles:
    """As Llama 3's, but mixed linearly over dimensions (YaRN, section 3.2)."""

    def dimension(turns: float) -> float:
        wave = rope.original_context / (turns * 2.0 * math.pi)
        return rope.width * math.log(wave) / (2.0 * math.log(rope.theta))

    low = max(math.floor(dimension(rope.beta_fast)), 0)
    high = min(math.ceil(dimension(rope.beta_slow)), rope.width - 1)
    span = max(float(high - low), 0.001)
    stretched = np.clip((np.arange(rope.width // 2) - low) / span, 0.0, 1.0)
    mixed: Doubles = plain / rope.factor * stretched + plain * (1.0 - stretched)
    return mixed
