"""An independent answer to "how many leading blocks were there": LRU over single blocks.

Knows nothing of runs, nodes, promises or facts: a table of blocks with the request that last used
each. A victim is the block that was used longest ago, the deepest first where one request used
several; so no block goes before those that hang below it.
"""

from __future__ import annotations

from collections.abc import Iterable

from pagetrail.replay.trace import TraceRequest


def hits(requests: Iterable[TraceRequest], blocks: int, count: str) -> list[int]:
    """Leading blocks that each request finds, in order, one request at a time."""
    last_use: dict[tuple[int, ...], int] = {}  # path of ids from the root -> number of the request
    found = []
    for number, request in enumerate(requests):
        ids = request.hash_ids
        paths = [ids[: depth + 1] for depth in range(len(ids))]
        reusable = len(ids) if count == "trace" else len(ids) - 1
        hit = 0
        while hit < reusable and paths[hit] in last_use:
            hit += 1
        found.append(hit)
        held = set(paths[:hit])
        missing = len(ids) - hit - (blocks - len(last_use))
        if missing > 0:
            victims = sorted(
                (path for path in last_use if path not in held),
                key=lambda path: (last_use[path], -len(path)),
            )
            for path in victims[:missing]:
                del last_use[path]
        for path in paths:
            last_use[path] = number
    return found


def percent(found: Iterable[int], requests: Iterable[TraceRequest]) -> str:
    """Hit blocks in percent of all blocks, two decimals."""
    total = sum(len(request.hash_ids) for request in requests)
    return f"{100 * sum(found) / total:.2f}"
