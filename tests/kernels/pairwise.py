"""A small set of combinations in which every pair of values of two axes occurs."""

from __future__ import annotations

import itertools
from typing import Any


def pairwise(axes: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Greedy covering: each row takes, axis by axis, the value that covers most open pairs."""
    names = list(axes)
    places = {name: range(len(axes[name])) for name in names}
    open_pairs = {
        (a, i, b, j)
        for a, b in itertools.combinations(names, 2)
        for i in places[a]
        for j in places[b]
    }
    rows = []
    while open_pairs:
        first = min(open_pairs)
        row = {first[0]: first[1], first[2]: first[3]}
        for name in names:
            if name not in row:
                row[name] = max(
                    places[name], key=lambda i: (_covered(row, name, i, open_pairs, names), -i)
                )
        open_pairs -= {(a, row[a], b, row[b]) for a, b in itertools.combinations(names, 2)}
        rows.append({name: axes[name][row[name]] for name in names})
    return rows


def _covered(row: dict[str, int], name: str, value: int, open_pairs: set, names: list[str]) -> int:
    count = 0
    for other, chosen in row.items():
        if names.index(other) < names.index(name):
            count += (other, chosen, name, value) in open_pairs
        else:
            count += (name, value, other, chosen) in open_pairs
    return count
