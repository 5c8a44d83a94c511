"""From where a request's prefix comes before its prefill starts.

Owns ``restore/min-completion`` and ``resume/min-completion``. It never opens a transfer or checks
a copy.
"""

from __future__ import annotations

import msgspec

from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.content import Tier

from .inputs import RestoreChoice, RestoreInputs, RestoreReason
from .types import Evaluation, Term

_RECOMPUTE = -1
_FIRST, _MIDDLE, _LAST = 0, 1, 2  # resident, restored, recomputed: who wins at equal completion


class MinCompletionWeights(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, kw_only=True
):
    """It has none: every term is a measured or configured time."""


class MinCompletion:
    """The source that has the whole prompt, or all rows of a preempted stream, back first.

    Formula: ``completion = cost + (reusable_tokens - tokens) * prefill_per_token``, where the
    cost of what is resident and of recomputing is 0.

    Alternatives, in this order: what is resident (if anything is), every option, recomputing all.
    Constraints on an option, first that applies: not longer than what is resident; longer than
    ``reusable_tokens``; its pages beyond the resident whole ones pass ``pages_for_restore``, so
    that under pressure a shorter prefix is taken.

    Order: completion, then resident before restored before recomputed, then more tokens, then
    tier, then holder's id.
    """

    weights_type = MinCompletionWeights
    terms = (
        Term("tier", "Tier; -1 recompute"),
        Term("tokens", "tokens"),
        Term("reason", "RestoreReason; 0 eligible"),
        Term("pages", "pages"),
        Term("cost_ns", "ns"),
        Term("completion_ns", "ns"),
    )

    def __init__(self, name: str, kind: KindId) -> None:
        self.name = name
        self.kind = kind

    def evaluate(
        self, weights: MinCompletionWeights, inputs: RestoreInputs
    ) -> Evaluation[RestoreChoice]:
        reusable = inputs.reusable_tokens
        resident = inputs.resident_tokens
        per_token_ns = inputs.prefill_ns_per_token
        resident_pages = resident // inputs.page_tokens
        rows: list[tuple[int, int, int, int, int, int]] = []
        keys: list[tuple[int, int, int, int]] = []  # the last part is the row
        if resident:
            completion_ns = (reusable - resident) * per_token_ns
            keys.append((completion_ns, _FIRST, -resident, 0))
            rows.append((int(Tier.DEVICE), resident, 0, 0, 0, completion_ns))
        for option in inputs.options:
            tokens = option.tokens
            pages = -(tokens // -inputs.page_tokens) - resident_pages
            completion_ns = option.cost_ns + (reusable - tokens) * per_token_ns
            reason = RestoreReason.ELIGIBLE
            if tokens <= resident:
                reason = RestoreReason.NOT_LONGER_THAN_RESIDENT
            elif tokens > reusable:
                reason = RestoreReason.LONGER_THAN_REQUEST
            elif pages > inputs.pages_for_restore:
                reason = RestoreReason.PRESSURE
            else:
                keys.append((completion_ns, _MIDDLE, -tokens, len(rows)))
            rows.append((option.tier, tokens, int(reason), pages, option.cost_ns, completion_ns))
        completion_ns = reusable * per_token_ns
        keys.append((completion_ns, _LAST, 0, len(rows)))
        rows.append((_RECOMPUTE, 0, 0, 0, 0, completion_ns))

        keys.sort()
        tie_break = _settled_by(keys[0], keys[1]) if len(keys) > 1 else 0
        completion_ns, standing, _, row = keys[0]
        tier, tokens = rows[row][:2]
        worker, reason = "", RestoreReason.RESIDENT
        if standing == _MIDDLE:
            worker = inputs.options[row - (1 if resident else 0)].worker
            reason = RestoreReason.CHEAPEST
        elif standing == _LAST:
            reason = RestoreReason.RECOMPUTE
        choice = RestoreChoice(tier, worker, tokens, completion_ns)
        return Evaluation(choice, int(reason), tie_break, tuple(zip(*rows, strict=True)))


def _settled_by(best: tuple[int, ...], next_best: tuple[int, ...]) -> int:
    return next(place for place, (a, b) in enumerate(zip(best, next_best, strict=True)) if a != b)
