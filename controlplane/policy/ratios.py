"""Exact comparison of fractions in integers."""

from __future__ import annotations

from collections.abc import Sequence


def comparable(numerators: Sequence[int], denominators: Sequence[int]) -> list[int]:
    """Integers that compare as the fractions do, exactly; those over 0 come after all others.

    Every fraction is brought to one denominator, the product of all distinct ones, which is the
    comparison by cross-multiplication done once per fraction instead of once per pair.
    """
    distinct = sorted({denominator for denominator in denominators if denominator})
    product = 1
    for denominator in distinct:
        product *= denominator
    scale = {denominator: product // denominator for denominator in distinct}
    if len(scale) == len(set(denominators)):
        return [
            numerator * scale[denominator]
            for numerator, denominator in zip(numerators, denominators, strict=True)
        ]
    beyond = 1 + max(numerators) * product
    return [
        numerator * scale[denominator] if denominator else beyond
        for numerator, denominator in zip(numerators, denominators, strict=True)
    ]
