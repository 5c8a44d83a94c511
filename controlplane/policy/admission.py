"""Whether a request starts, waits or is refused.

Owns ``admission/reserve``, with and without tenants' shares. It never matches prefixes, evicts or
promises pages itself.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pagetrail.catalog.facts import KindId

from .inputs import AdmitChoice, AdmitInputs, AdmitOutcome, AdmitReason
from .types import Evaluation, Term


class ReserveWeights(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, kw_only=True
):
    """How long a large request may be passed by smaller ones."""

    bypass_max: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000_000,
            description="later requests that may be admitted past the first one waiting",
            extra={"unit": "requests"},
        ),
    ] = 16


_WAITS = frozenset(
    {
        AdmitReason.NO_LANE,
        AdmitReason.NO_PAGES,
        AdmitReason.BEHIND_WAITING,
        AdmitReason.BEYOND_QUOTA,
        AdmitReason.BEHIND_PREEMPTED,
    }
)


class Reserve:
    """Full reservation: a stream starts only when every page it may ever hold can be promised.

    Per group: ``promise = need - adopted``, ``reclaim = max(0, promise - available)``, ``short =
    max(0, promise - available - reclaimable)``.

    Constraints, first that applies. Refused for good, before anything is evicted: another model
    or layout; prompt and new tokens pass the context; some group's need passes its whole pool.
    Waits: others wait ahead and the first of them has been passed ``bypass_max`` times already;
    no lane is free; some group is short. Otherwise it is admitted, evicting ``reclaim`` first.
    A request that waits for pages does not hold up smaller ones behind it until it has been
    passed that often.

    With ``shares`` two more make it wait, after the lanes: a preempted stream waits ahead and this
    request is new; it would carry its account past the quota while one within its quota waits.
    ``reclaimable`` is then what the account may have evicted for it.

    Alternatives are the three outcomes. All carry the decision's reason, for what allows one of
    them rules the other two out. The constraints settle everything: there are no ties.
    """

    kind = KindId.ADMIT
    weights_type = ReserveWeights
    terms = (
        Term("outcome", "AdmitOutcome"),
        Term("reason", "AdmitReason"),
        Term("promise_pages", "pages, all groups"),
        Term("reclaim_pages", "pages, all groups"),
        Term("short_pages", "pages, all groups"),
        Term("start_ns", "ns, cheaper of restore and recompute"),
    )

    def __init__(self, name: str, *, shares: bool) -> None:
        self.name = name
        self._shares = shares

    def evaluate(self, weights: ReserveWeights, inputs: AdmitInputs) -> Evaluation[AdmitChoice]:
        promise = [need - held for need, held in zip(inputs.need, inputs.adopted, strict=True)]
        lacking = [
            wanted - free if wanted > free else 0
            for wanted, free in zip(promise, inputs.available, strict=True)
        ]
        short = [
            wanted - more if wanted > more else 0
            for wanted, more in zip(lacking, inputs.reclaimable, strict=True)
        ]
        reason = _reason(weights, inputs, any(lacking), any(short), self._shares)
        zeros = (0,) * len(promise)
        if reason <= AdmitReason.FITS_AFTER_RECLAIM:
            choice = AdmitChoice(int(AdmitOutcome.ADMIT), tuple(promise), tuple(lacking))
        elif reason in _WAITS:
            choice = AdmitChoice(int(AdmitOutcome.QUEUE), zeros, zeros)
        else:
            choice = AdmitChoice(int(AdmitOutcome.REFUSE), zeros, zeros)
        start_ns = min(inputs.restore_ns, inputs.recompute_ns)
        columns = (
            (int(AdmitOutcome.ADMIT), int(AdmitOutcome.QUEUE), int(AdmitOutcome.REFUSE)),
            (int(reason),) * 3,
            (sum(promise), 0, 0),
            (sum(lacking) - sum(short), 0, 0),
            (sum(short), 0, 0),
            (start_ns, 0, 0),
        )
        return Evaluation(choice, int(reason), 0, columns)


def _reason(
    weights: ReserveWeights, inputs: AdmitInputs, lacking: bool, short: bool, shares: bool
) -> AdmitReason:
    if not inputs.compatible:
        return AdmitReason.INCOMPATIBLE
    if inputs.prompt_tokens + inputs.max_new_tokens > inputs.context_tokens:
        return AdmitReason.CONTEXT_EXCEEDED
    if any(need > total for need, total in zip(inputs.need, inputs.total, strict=True)):
        return AdmitReason.NEVER_FITS
    if inputs.waiting_ahead > 0 and inputs.bypassed >= weights.bypass_max:
        return AdmitReason.BEHIND_WAITING
    if inputs.running >= inputs.lanes:
        return AdmitReason.NO_LANE
    if shares and inputs.preempted_ahead:
        return AdmitReason.BEHIND_PREEMPTED
    if shares and inputs.within_waiting and not inputs.within_quota:
        return AdmitReason.BEYOND_QUOTA
    if short:
        return AdmitReason.NO_PAGES
    return AdmitReason.FITS_AFTER_RECLAIM if lacking else AdmitReason.FITS
