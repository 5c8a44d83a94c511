"""What an eviction reads of a book, column by column, is what the kept nodes say row by row."""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from itertools import product
from typing import Any

import msgspec
from pagedriver import ACCOUNTS, Driver
from test_owner_against_model import ONE_GROUP, THREE_GROUPS, TWO_GROUPS

from pagetrail.catalog.errors import BadInputError
from pagetrail.controlplane.eviction import (
    ALL_ACCOUNTS,
    EvictRecorded,
    KeepCosts,
    evict_inputs,
)
from pagetrail.controlplane.pages.owner import PageOwner
from pagetrail.controlplane.pages.runs import Run
from pagetrail.controlplane.policy.inputs import EvictInputs

COSTS = KeepCosts(7, 3)
STEPS, HISTORIES = 250, 12


def nodes_below_root(owner: PageOwner) -> list[Run]:
    """Every kept node, by (last access, number)."""
    found: list[Run] = []
    number = 0
    while len(found) < owner.kept_nodes:
        number += 1
        with contextlib.suppress(BadInputError):  # evicted, or never kept
            found.append(owner.node(number))
    return sorted(found, key=lambda node: (node.last_access, node.number))


def listed(owner: PageOwner, recorded: EvictRecorded, account: int) -> list[Run]:
    """The nodes that the contract asks for: cut at a change of last access, and not before."""
    nodes = [node for node in nodes_below_root(owner) if account in (ALL_ACCOUNTS, node.account)]
    for end in range(recorded.candidates_min, len(nodes)):
        whole = nodes[end].last_access != nodes[end - 1].last_access
        idle = sum(node.columns for node in nodes[:end] if node.holders == 0)
        if whole and idle >= max(recorded.need):
            return nodes[:end]
    return nodes


def row_of(owner: PageOwner, node: Run) -> dict[str, Any]:
    durable = node.durable == node.columns
    return {
        "last_access": node.last_access,
        "previous_access": node.previous_access,
        "accesses": node.accesses,
        "depth_columns": node.end,
        "resumed": node.resumed,
        "superseded": node.superseded,
        "durable": durable,
        "pinned": node.pins > 0,
        "dirty": False,
        "reuse_ppm": node.accesses * 1_000_000 // (node.accesses + 3),
        "recompute_ns": 7 * node.columns,
        "reload_ns": 3 * node.columns if durable else 0,
        "sharing_ns": 0,
        "slo_ns": 0,
    }


def check(owner: PageOwner, recorded: EvictRecorded, account: int) -> EvictInputs:
    inputs = evict_inputs(owner, COSTS, recorded, account)
    nodes = listed(owner, recorded, account)
    assert inputs.need == recorded.need
    assert list(inputs.entries) == [node.number for node in nodes]
    for place, node in enumerate(nodes):
        told = {name: getattr(inputs, name)[place] for name in row_of(owner, node)}
        assert told == row_of(owner, node)
        held = [inputs.own_runs[place], *inputs.further_runs[place]]
        parent = node.parent
        above = [parent] if parent is not None and parent.number != 0 else []
        for run, expected in zip(held, [node, *above], strict=True):
            assert inputs.run_columns[run] == expected.columns
            assert [pages[run] for pages in inputs.run_pages] == [
                len(ids) for ids in expected.pages
            ]
            assert inputs.run_holders[run] == 1 + expected.children + expected.holders
    assert len(set(inputs.own_runs)) == len(nodes)
    parents = {node.parent.number for node in nodes if node.parent is not None} - {0}
    assert len(inputs.run_columns) == len({node.number for node in nodes} | parents)
    total = owner.kept_nodes if account == ALL_ACCOUNTS else owner.kept_nodes_of(account)
    assert inputs.entries_cut == total - len(nodes)
    return inputs


def test_columns_are_what_the_nodes_say() -> None:
    seen: Counter[str] = Counter()
    for seed, pools in product(range(HISTORIES), (ONE_GROUP, TWO_GROUPS, THREE_GROUPS)):
        draw = random.Random(seed)
        roomy = tuple(msgspec.structs.replace(pool, pages=3 * pool.pages) for pool in pools)
        driver = Driver(roomy, 1 + seed % 4, draw.randrange, 4 * (seed % 2))
        for step in range(STEPS):
            driver.step()
            if step % 7:
                continue
            need = tuple(draw.randrange(4) for _ in pools)
            for account in (ALL_ACCOUNTS, *range(ACCOUNTS)):
                recorded = EvictRecorded(need, draw.randrange(1, 4))
                inputs = check(driver.live, recorded, account)
                seen["cut"] += inputs.entries_cut > 0
                seen["children"] += any(inputs.further_runs)
                seen["parents not listed"] += len(inputs.run_columns) > len(inputs.entries)
                seen["users"] += max(inputs.run_holders, default=0) > 1
                seen["pinned"] += any(inputs.pinned)
                seen["durable"] += any(inputs.durable)
                seen["narrow"] += any(pages != inputs.run_columns for pages in inputs.run_pages)
    assert min(seen.values()) > 0, seen
