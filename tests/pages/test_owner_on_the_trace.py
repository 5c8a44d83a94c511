"""The public conversation trace through the page owner: published block hits, leaf-first LRU.

One pool, file order, blocks of 512 tokens, contiguous prefixes, never the last prompt block. The
independent count is a dictionary of blocks that evicts one leaf at a time.
"""

from __future__ import annotations

import heapq
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagetrail.catalog.kinds.worker import (
    NodesEvicted,
    PagesAdopted,
    PagesPromised,
    PoolSpec,
    PromptKept,
    RowsAdvanced,
    StreamFinished,
)
from pagetrail.controlplane.pages.index import PrefixIndex
from pagetrail.controlplane.pages.owner import PageOwner

TRACE_VARIABLE = "PAGETRAIL_TRACES"
NAME = "mooncake_conversation_trace.jsonl"
PAGE_TOKENS = 512


def requests() -> list[list[int]]:
    folder = os.environ.get(TRACE_VARIABLE)
    default = Path(__file__).resolve().parents[3] / "shared" / "traces"
    file = (Path(folder) if folder else default) / NAME
    if not file.is_file():
        pytest.skip(f"{file} is not here; set {TRACE_VARIABLE} to the folder of public traces")
    return [json.loads(line)["hash_ids"] for line in file.read_text("utf-8").splitlines()]


def hits_of_owner(prompts: list[list[int]], pages: int) -> Iterator[int]:
    """Blocks adopted by each request."""
    owner = PageOwner((PoolSpec("kv", 0, pages, 1),), PAGE_TOKENS, 0, pages, pages)
    index = PrefixIndex(owner)
    for stream, blocks in enumerate(prompts, 1):
        digests = [block.to_bytes(32, "big") for block in blocks]
        node, columns = index.match(digests, len(digests) - 1)
        owner.apply(PagesAdopted(stream, node, columns))
        need = len(blocks) - columns
        short = need - owner.available()[0]
        if short > 0:
            owner.apply(NodesEvicted(victims(owner, short)))
        owner.apply(PagesPromised(stream, (need,)))
        owner.apply(RowsAdvanced(((stream, need * PAGE_TOKENS),)))
        node, shared = index.match(digests)
        owner.apply(PromptKept(stream, node, shared, len(blocks)))
        index.record(stream, digests)
        owner.apply(StreamFinished(stream, 0))
        yield columns
    owner.check()


def victims(owner: PageOwner, short: int) -> tuple[tuple[int, int], ...]:
    """Tails of the leaves accessed longest ago; a parent follows when its last child is gone."""
    chosen: list[tuple[int, int]] = []
    exposed: list[tuple[int, int]] = []
    children_gone: dict[int, int] = {}
    leaves = (n for n in owner.oldest_nodes() if not n.children and not n.holders)
    leaf = next(leaves, None)
    while short > 0:
        if leaf is not None and (not exposed or (leaf.last_access, leaf.number) < exposed[0]):
            number, leaf = leaf.number, next(leaves, None)
        else:
            number = heapq.heappop(exposed)[1]
        node = owner.node(number)
        columns = min(short, node.columns)
        chosen.append((number, columns))
        short -= columns
        parent = node.parent
        if columns == node.columns and parent is not None:
            children_gone[parent.number] = children_gone.get(parent.number, 0) + 1
            last = children_gone[parent.number] == parent.children
            if last and parent.parent is not None and not parent.holders:
                heapq.heappush(exposed, (parent.last_access, parent.number))
    return tuple(chosen)


def hits_block_by_block(prompts: list[list[int]], pages: int) -> Iterator[int]:
    """The same policy over single blocks: the oracle."""
    parent: dict[int, int | None] = {}
    children: dict[int, int] = {}
    access: dict[int, int] = {}
    leaves: list[tuple[int, int]] = []
    for now, blocks in enumerate(prompts):
        hits = 0
        while hits < len(blocks) - 1 and blocks[hits] in access:
            hits += 1
        path = set(blocks[:hits])
        for block in path:
            access[block] = now
            if not children[block]:
                heapq.heappush(leaves, (now, block))
        while len(access) + len(blocks) - hits > pages:
            stamp, block = heapq.heappop(leaves)
            if access.get(block) != stamp or children[block] or block in path:
                continue
            del access[block], children[block]
            above = parent.pop(block)
            if above is not None:
                children[above] -= 1
                if not children[above]:
                    heapq.heappush(leaves, (access[above], above))
        for place in range(hits, len(blocks)):
            block = blocks[place]
            if block not in access:
                above = blocks[place - 1] if place else None
                parent[block], children[block] = above, 0
                if above is not None:
                    children[above] += 1
            access[block] = now
        heapq.heappush(leaves, (now, blocks[-1]))
        yield hits


def test_every_request_of_the_trace_hits_what_a_block_by_block_lru_hits() -> None:
    prompts = requests()
    hits = list(hits_of_owner(prompts, 1_000))
    assert hits == list(hits_block_by_block(prompts, 1_000))
    assert round(100 * sum(hits) / sum(map(len, prompts)), 2) == 4.45


@pytest.mark.slow
@pytest.mark.parametrize(("pages", "percent"), [(5_000, 11.16), (10_000, 21.13), (30_000, 32.54)])
def test_larger_pools_hit_the_published_share_of_blocks(pages: int, percent: float) -> None:
    prompts = requests()
    hits = list(hits_of_owner(prompts, pages))
    assert hits == list(hits_block_by_block(prompts, pages))
    assert round(100 * sum(hits) / sum(map(len, prompts)), 2) == percent
