"""Exact comparison of fractions in integers."""

from __future__ import annotations

from collections.abc import Sequence


def comparable(numerators: Sequence[int], denominators: Sequence[int]) -> list[int]:
    """Integers that compare as the fractions do, exactly; those over 0 come after all others.

    Two different fractions ``a/b`` and ``c/d`` are at least ``1/(b*d)`` apart. Scaled by a power
    of two that no product of two denominators reaches they are more than 1 apart, so that their
    floors differ in the same direction; equal fractions have equal floors. Numerators and
    denominators must not be negative.
    """
    if not denominators:
        return []
    shift = 2 * max(denominators).bit_length()
    if 0 not in denominators:
        return [
            (numerator << shift) // denominator
            for numerator, denominator in zip(numerators, denominators, strict=True)
        ]
    beyond = (max(numerators) + 1) << shift
    return [
        (numerator << shift) // denominator if denominator else beyond
        for numerator, denominator in zip(numerators, denominators, strict=True)
    ]
