"""Residency by recency: leaf-first LRU, LRU-2, and kept prompts in order of their standing.

None of these asks for durability: they are for workers without tiers, where eviction means
recomputing. The plan itself (leaves first, tails trimmed, shared pages left alone) is
``residency_plan``.
"""

from __future__ import annotations

import msgspec

from pagetrail.catalog.facts import KindId

from .inputs import EvictChoice, EvictInputs
from .residency_plan import PLAN_TERMS, evict, order_as_given, order_by, spared
from .types import Evaluation, Term

_LAST_ACCESS = Term("last_access", "commands")


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
    terms = (*PLAN_TERMS, _LAST_ACCESS)

    def evaluate(self, weights: LeafLruWeights, inputs: EvictInputs) -> Evaluation[EvictChoice]:
        barred = spared(inputs, durable_only=False)
        criteria = (inputs.last_access, inputs.entries)  # the order of the inputs, by contract
        return evict(inputs, barred, order_as_given(barred), criteria, (inputs.last_access,))


class Lru2Weights(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, kw_only=True
):
    """It has none."""


class Lru2:
    """The entry whose last access but one lies furthest back goes first.

    An entry that was accessed only once has no such access (-1) and goes before all that have;
    among those the order is plain LRU. One burst of new prompts so leaves alone what has been
    asked for twice.

    Spared, first that applies: pinned, dirty. Durability is not asked for.

    Order: previous access, then last access, then entry number; the smaller goes first.
    """

    name = "residency/lru-2@1"
    kind = KindId.EVICT
    weights_type = Lru2Weights
    terms = (*PLAN_TERMS, Term("previous_access", "commands; -1 none"), _LAST_ACCESS)

    def evaluate(self, weights: Lru2Weights, inputs: EvictInputs) -> Evaluation[EvictChoice]:
        barred = spared(inputs, durable_only=False)
        previous, last_access = inputs.previous_access, inputs.last_access
        order = order_by(barred, previous)
        criteria = (previous, last_access, inputs.entries)
        return evict(inputs, barred, order, criteria, (previous, last_access))


class SeedOrderWeights(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, kw_only=True
):
    """It has none."""


class SeedOrder:
    """Superseded turns first, then prompts never resumed before resumed ones, then LRU.

    ``standing`` is 0 superseded and never resumed, 1 superseded and resumed, 2 never resumed,
    3 resumed.

    Spared, first that applies: pinned, dirty. Durability is not asked for.

    Order: standing, then last access, then entry number; the smaller goes first.
    """

    name = "residency/seed-order@1"
    kind = KindId.EVICT
    weights_type = SeedOrderWeights
    terms = (*PLAN_TERMS, Term("standing", "0 to 3"), _LAST_ACCESS)

    def evaluate(self, weights: SeedOrderWeights, inputs: EvictInputs) -> Evaluation[EvictChoice]:
        barred = spared(inputs, durable_only=False)
        last_access = inputs.last_access
        standing = [
            (0 if superseded else 2) + resumed
            for superseded, resumed in zip(inputs.superseded, inputs.resumed, strict=True)
        ]
        order = order_by(barred, standing)
        criteria = (standing, last_access, inputs.entries)
        return evict(inputs, barred, order, criteria, (standing, last_access))
