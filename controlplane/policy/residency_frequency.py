"""Residency by frequency: LFU with aging, and GDSF with the cost of depth.

Neither keeps a clock or a history of its own: what they need stands in the inputs, so that a
decision depends on nothing but these. They do not ask for durability: they are for workers
without tiers. The plan itself (leaves first, tails trimmed, shared pages left alone) is
``residency_plan``.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pagetrail.catalog.facts import KindId

from .inputs import EvictChoice, EvictInputs
from .ratios import comparable
from .residency_plan import PLAN_TERMS, evict, order_by, own_pages, spared
from .types import PPM, Evaluation, Term

_LOG_STEPS = 16  # steps of a doubling


class LfuAgingWeights(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, kw_only=True
):
    """How fast frequency fades."""

    half_life_commands: Annotated[
        int,
        Meta(
            ge=1,
            le=2**32,
            description="commands without an access after which half the accesses are forgotten",
            extra={"unit": "commands"},
        ),
    ] = 4_096


class LfuAging:
    """Least frequently used first, where an entry's count halves with every half-life of rest.

    Such a count is ``(accesses + 1) * 2 ** ((last_access - now) / half_life)``. Its logarithm
    orders entries alike and the present falls out of it, which leaves::

        score = 16 * last_access + half_life_commands * floor(16 * log2(accesses + 1))

    The floor is exact: it is the bit length, less one, of ``(accesses + 1) ** 16``.

    Spared, first that applies: pinned, dirty. Durability is not asked for.

    Order: score, then last access, then entry number; the smaller goes first.
    """

    name = "residency/lfu-aging@1"
    kind = KindId.EVICT
    weights_type = LfuAgingWeights
    terms = (
        *PLAN_TERMS,
        Term("score", "sixteenths of a command"),
        Term("accesses", "accesses"),
        Term("last_access", "commands"),
    )

    def evaluate(self, weights: LfuAgingWeights, inputs: EvictInputs) -> Evaluation[EvictChoice]:
        barred = spared(inputs, durable_only=False)
        last_access, accesses = inputs.last_access, inputs.accesses
        half_life = weights.half_life_commands
        score = [
            _LOG_STEPS * last + half_life * (((count + 1) ** _LOG_STEPS).bit_length() - 1)
            for last, count in zip(last_access, accesses, strict=True)
        ]
        order = order_by(barred, score)
        criteria = (score, last_access, inputs.entries)
        return evict(inputs, barred, order, criteria, (score, accesses, last_access))


class GdsfWeights(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, kw_only=True
):
    """What recency and depth are worth beside frequency and cost."""

    aging_ns_per_command: Annotated[
        int,
        Meta(
            ge=0,
            le=2**40,
            description="how much priority, per page, an access gains for each command it is later",
            extra={"unit": "ns"},
        ),
    ] = 100_000
    depth_ppm: Annotated[
        int,
        Meta(
            ge=0,
            le=PPM,
            description="how much dearer each column of prefix makes an entry's recomputation",
            extra={"unit": "ppm"},
        ),
    ] = 1_000


class Gdsf:
    """Greedy dual size frequency: least frequency times cost per page first, aged.

    Formula::

        cost     = recompute + recompute * depth_ppm * depth_columns // 1_000_000
        priority = aging_ns_per_command * last_access + accesses * cost / pages

    ``pages`` are those of the entry's own run in the groups that need some. Priorities are
    compared as exact fractions. The textbook's inflating clock, which would be state beside the
    inputs, is replaced by a clock that rises evenly with the commands. An entry without pages in
    those groups comes after all others.

    Spared, first that applies: pinned, dirty. Durability is not asked for.

    Order: priority, then last access, then entry number; the smaller goes first.
    """

    name = "residency/gdsf@1"
    kind = KindId.EVICT
    weights_type = GdsfWeights
    terms = (
        *PLAN_TERMS,
        Term("cost_ns", "ns"),
        Term("accesses", "accesses"),
        Term("pages", "pages in the groups that need some"),
        Term("last_access", "commands"),
    )

    def evaluate(self, weights: GdsfWeights, inputs: EvictInputs) -> Evaluation[EvictChoice]:
        barred = spared(inputs, durable_only=False)
        last_access, accesses = inputs.last_access, inputs.accesses
        pages = own_pages(inputs)
        depth_ppm = weights.depth_ppm
        cost_ns = [
            recompute_ns + recompute_ns * depth_ppm * depth_columns // PPM
            for recompute_ns, depth_columns in zip(
                inputs.recompute_ns, inputs.depth_columns, strict=True
            )
        ]
        aging_ns = weights.aging_ns_per_command
        priority = comparable(
            [
                aging_ns * last * size + count * cost
                for last, size, count, cost in zip(
                    last_access, pages, accesses, cost_ns, strict=True
                )
            ],
            pages,
        )
        order = order_by(barred, priority)
        criteria = (priority, last_access, inputs.entries)
        terms = (cost_ns, accesses, pages, last_access)
        return evict(inputs, barred, order, criteria, terms)
