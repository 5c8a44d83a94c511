"""Residency by value: what an entry's reuse is expected to save, per page it gives back.

The plan itself (leaves first, tails trimmed, shared pages left alone) is ``residency_plan``.
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

_PpmWeight = Annotated[int, Meta(ge=0, le=1_000 * PPM)]


class ValueDensityWeights(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, kw_only=True
):
    """How much each part of an entry's value counts; 1,000,000 is once."""

    saving_ppm: Annotated[
        _PpmWeight,
        Meta(description="of the expected saving by reuse", extra={"unit": "ppm"}),
    ] = PPM
    sharing_ppm: Annotated[
        _PpmWeight, Meta(description="of the sharing bonus", extra={"unit": "ppm"})
    ] = PPM
    slo_ppm: Annotated[
        _PpmWeight, Meta(description="of the service-level bonus", extra={"unit": "ppm"})
    ] = PPM


class ValueDensity:
    """Least value per freed page first.

    Formula::

        saving  = reuse_ppm * max(0, recompute - reload) // 1_000_000
        value   = saving * saving_ppm // 1_000_000 + sharing * sharing_ppm // 1_000_000
                  + slo * slo_ppm // 1_000_000
        density = value / pages of the entry's own run in the groups that need pages

    Densities are compared as exact fractions, never divided. An entry without pages in those
    groups comes after all others: evicting it can only expose its parent.

    Spared, first that applies: pinned, dirty, and (unless named ``untiered``) not durable, which
    means its publication is not acknowledged.

    Order: density, then last access, then entry number; the smaller goes first.
    """

    kind = KindId.EVICT
    weights_type = ValueDensityWeights
    terms = (
        *PLAN_TERMS,
        Term("value_ns", "ns"),
        Term("pages", "pages in the groups that need some"),
        Term("last_access", "commands"),
    )

    def __init__(self, name: str, *, durable_only: bool) -> None:
        self.name = name
        self._durable_only = durable_only

    def evaluate(
        self, weights: ValueDensityWeights, inputs: EvictInputs
    ) -> Evaluation[EvictChoice]:
        barred = spared(inputs, durable_only=self._durable_only)
        values = _values(weights, inputs)
        pages = own_pages(inputs)
        last_access = inputs.last_access
        density = comparable(values, pages)
        order = order_by(barred, density)
        criteria = (density, last_access, inputs.entries)
        terms = (values, pages, last_access)
        return evict(inputs, barred, order, criteria, terms)


def _values(weights: ValueDensityWeights, inputs: EvictInputs) -> list[int]:
    ppm = PPM
    values = [
        reuse_ppm * (recompute_ns - reload_ns) // ppm if recompute_ns > reload_ns else 0
        for reuse_ppm, recompute_ns, reload_ns in zip(
            inputs.reuse_ppm, inputs.recompute_ns, inputs.reload_ns, strict=True
        )
    ]
    if weights.saving_ppm != ppm:
        values = [value * weights.saving_ppm // ppm for value in values]
    sharing, slo = inputs.sharing_ns, inputs.slo_ns
    if any(sharing) or any(slo):
        values = [
            value + bonus * weights.sharing_ppm // ppm + other * weights.slo_ppm // ppm
            for value, bonus, other in zip(values, sharing, slo, strict=True)
        ]
    return values
