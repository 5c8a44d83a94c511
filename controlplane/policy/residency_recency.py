"""Residency by recency: leaf-first LRU, LRU-2, and kept prompts in order of their standing.

None of these asks for durability: they are for workers without tiers, where eviction means
recomputing. The plan itself (leaves first, tails trimmed, shared pages left alone) is
``residency_plan``.
"""

from __future__ import annotations

import msgspec

from pagetrail.catalog.facts import KindId

from .inputs import EvictChoice, EvictInputs
from .residency_plan import PLAN_TERMS, evict, spared
from .types import Evaluation, Term


class LeafLruWeights(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, kw_only=True
):
    """It has none."""


class LeafLru:
    """Least recently used leaf first; equal to an LRU over single page columns.

    Spared, first that applies: pinned, dirty. Durability is not asked for. Only entries whose own
    run nothing else holds can go; a parent becomes one when its last child is gone, and only as
    many columns as are needed are cut from a leaf's tail.

    Order: last access, then entry number; the earlier and the smaller go first.
    """

    name = "residency/leaf-lru@1"
    kind = KindId.EVICT
    weights_type = LeafLruWeights
    terms = (*PLAN_TERMS, Term("last_access", "commands"))

    def evaluate(self, weights: LeafLruWeights, inputs: EvictInputs) -> Evaluation[EvictChoice]:
        candidates = inputs.candidates
        barred = spared(candidates, durable_only=False)
        entries = [entry.entry for entry in candidates]
        last_access = [entry.last_access for entry in candidates]
        order = [place for place, reason in enumerate(barred) if not reason]
        criteria = (last_access, entries)  # the order of the inputs, by contract
        return evict(inputs, barred, order, criteria, entries, (last_access,))
