"""Which worker serves a request, and from which prefix it starts there.

Owns ``routing/min-ttft``. It never looks a worker up, books load or sends an offer.
"""

from __future__ import annotations

import msgspec

from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.content import Tier

from .inputs import RouteChoice, RouteInputs, RouteReason
from .types import Evaluation, Term

# Plain integers: members of an enumeration are slower to look up and to encode.
_DEVICE = int(Tier.DEVICE)
_OFFLINE = int(RouteReason.OFFLINE)
_MODEL_NOT_LOADED = int(RouteReason.MODEL_NOT_LOADED)
_CONTEXT_EXCEEDED = int(RouteReason.CONTEXT_EXCEEDED)
_LONGER = int(RouteReason.PREFIX_LONGER_THAN_REQUEST)
_TOO_FEW_PAGES = int(RouteReason.INSUFFICIENT_PAGES)
_EXCLUDED = int(RouteReason.EXCLUDED)

_NOBODY = RouteChoice(worker="", worker_epoch=0, tier=-1, tokens=0, ttft_ns=0)


class MinTtftWeights(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, kw_only=True
):
    """It has none: every term is a predicted time."""


class MinTtft:
    """The worker and prefix with the lowest predicted time to first token.

    Formula, for every boundary of every worker::

        wait    = max(queue, load)
        prefill = (prompt_tokens - 1 - tokens) * prefill_per_token
        ttft    = wait + restore + prefill + first_token

    The last prompt token is never prefilled: evaluating it is what ``first_token`` times.
    Overlap of restore and prefill is not discounted.

    Constraints, first that applies: offline; model not loaded; prompt and new tokens pass the
    worker's context; the prefix is longer than ``prompt_tokens - 1``; too few pages; the worker
    has declined or failed this request before. Pages required are ``ceil((prompt + new + verify
    rows) / page)`` less the whole pages of the boundary that lie on the device already; available
    are free and reclaimable ones together.

    Order of eligible alternatives: ttft, then more cached tokens, then worker id, then tier.
    Every boundary of a worker is an alternative of its own, so losing one location removes only
    that alternative.
    """

    name = "routing/min-ttft@1"
    kind = KindId.ROUTE
    weights_type = MinTtftWeights
    terms = (
        Term("candidate", "place in the inputs' candidates"),
        Term("tier", "Tier; -1 recompute"),
        Term("tokens", "tokens"),
        Term("reason", "RouteReason; 0 eligible"),
        Term("required_pages", "pages"),
        Term("wait_ns", "ns"),
        Term("restore_ns", "ns"),
        Term("prefill_ns", "ns"),
        Term("ttft_ns", "ns"),
    )

    def evaluate(self, weights: MinTtftWeights, inputs: RouteInputs) -> Evaluation[RouteChoice]:
        rows = _rows(inputs)
        choice, reason, tie_break = _best(inputs, rows)
        return Evaluation(choice, reason, tie_break, tuple(zip(*rows, strict=True)))


_Row = tuple[int, int, int, int, int, int, int, int, int]


def _rows(inputs: RouteInputs) -> list[_Row]:
    prompt_rows = inputs.prompt_tokens - 1
    sequence_tokens = inputs.prompt_tokens + inputs.max_new_tokens
    excluded = inputs.excluded
    device = _DEVICE
    rows: list[_Row] = []
    add = rows.append
    for place, candidate in enumerate(inputs.candidates):
        boundaries = candidate.boundaries
        page_tokens = candidate.page_tokens
        pages = -((sequence_tokens + candidate.verify_rows) // -page_tokens)
        available = candidate.free_pages + candidate.reclaimable_pages
        queue_ns = candidate.queue_ns
        per_token_ns = candidate.prefill_ns_per_token
        first_token_ns = candidate.first_token_ns
        closed = 0
        if not candidate.online:
            closed = _OFFLINE
        elif not candidate.model_loaded:
            closed = _MODEL_NOT_LOADED
        elif sequence_tokens > candidate.context_tokens:
            closed = _CONTEXT_EXCEEDED
        declined = _EXCLUDED if excluded and candidate.worker in excluded else 0
        resident = 0
        for boundary in boundaries:
            if boundary.tier == device and boundary.tokens > resident:
                resident = boundary.tokens
        for boundary in boundaries:
            tokens = boundary.tokens
            missing = prompt_rows - tokens
            required = pages
            if resident:
                required -= (tokens if tokens < resident else resident) // page_tokens
            if closed:
                reason = closed
            elif missing < 0:
                reason = _LONGER
            elif required > available:
                reason = _TOO_FEW_PAGES
            else:
                reason = declined
            wait_ns = boundary.load_ns
            if wait_ns < queue_ns:
                wait_ns = queue_ns
            restore_ns = boundary.restore_ns
            prefill_ns = missing * per_token_ns if missing > 0 else 0
            ttft_ns = wait_ns + restore_ns + prefill_ns + first_token_ns
            add(
                (
                    place,
                    boundary.tier,
                    tokens,
                    reason,
                    required if required > 0 else 0,
                    wait_ns,
                    restore_ns,
                    prefill_ns,
                    ttft_ns,
                )
            )
    return rows


def _best(inputs: RouteInputs, rows: list[_Row]) -> tuple[RouteChoice, int, int]:
    """The choice, its reason, and how many criteria tied before it was settled."""
    left = [row for row in rows if not row[3]]
    if not left:
        return _NOBODY, int(RouteReason.NO_WORKER), 0
    tie_break = 0
    lowest_ns = min([row[8] for row in left])
    left = [row for row in left if row[8] == lowest_ns]
    if len(left) > 1:
        tie_break = 1
        most_tokens = max([row[2] for row in left])
        left = [row for row in left if row[2] == most_tokens]
    if len(left) > 1:
        tie_break = 2
        first = left[0][0]  # candidates stand in byte order of their ids
        left = [row for row in left if row[0] == first]
    if len(left) > 1:
        tie_break = 3
        left.sort()
    place, tier, tokens, _, _, _, _, _, ttft_ns = left[0]
    candidate = inputs.candidates[place]
    choice = RouteChoice(candidate.worker, candidate.worker_epoch, tier, tokens, ttft_ns)
    return choice, int(RouteReason.LOWEST_TTFT), tie_break
