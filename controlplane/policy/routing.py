"""Which worker serves a request, and from which prefix it starts there.

Owns ``routing/min-ttft``. It never looks a worker up, books load or sends an offer.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import add, mul

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
        Term("candidate", "place in the inputs' workers"),
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
        if not inputs.starts:
            return Evaluation(_NOBODY, int(RouteReason.NO_WORKER), 0, ())
        columns = _columns(inputs)
        choice, reason, tie_break = _best(inputs, columns)
        return Evaluation(choice, reason, tie_break, columns)


_Column = tuple[int, ...]


def _columns(inputs: RouteInputs) -> tuple[_Column, ...]:
    """Every way to start, column by column. What holds for all of them is worked out once."""
    starts, tiers, tokens = inputs.starts, inputs.tiers, inputs.tokens
    by_start = _spreader(inputs)
    prompt_rows = inputs.prompt_tokens - 1
    per_token_ns = by_start(inputs.prefill_ns_per_token)
    if any(tokens):
        missing = [prompt_rows - reused if reused < prompt_rows else 0 for reused in tokens]
        prefill_ns = tuple(map(mul, missing, per_token_ns))
    else:
        prefill_ns = tuple(map(max(prompt_rows, 0).__mul__, per_token_ns))
    wait_ns = by_start(inputs.queue_ns)
    if any(inputs.load_ns):
        wait_ns = tuple(map(max, wait_ns, inputs.load_ns))
    restore_ns = inputs.restore_ns
    before_ns = map(add, wait_ns, by_start(inputs.first_token_ns))
    if any(restore_ns):
        before_ns = map(add, before_ns, restore_ns)
    ttft_ns = tuple(map(add, before_ns, prefill_ns))
    required = _required_pages(inputs)
    reasons = _reasons(inputs, required, by_start(inputs.available_pages))
    return starts, tiers, tokens, reasons, required, wait_ns, restore_ns, prefill_ns, ttft_ns


def _spreader(inputs: RouteInputs) -> Callable[[_Column], _Column]:
    """From a column of workers to one of ways to start."""
    starts = inputs.starts
    if starts == tuple(range(len(inputs.workers))):
        return lambda column: column
    return lambda column: tuple([column[place] for place in starts])


def _required_pages(inputs: RouteInputs) -> _Column:
    """Pages that a way to start takes beyond those that lie on its worker's device."""
    starts, page_tokens = inputs.starts, inputs.page_tokens
    sequence_tokens = inputs.prompt_tokens + inputs.max_new_tokens
    verify_rows = inputs.verify_rows
    if _DEVICE not in inputs.tiers and verify_rows.count(verify_rows[0]) == len(verify_rows):
        return (-((sequence_tokens + verify_rows[0]) // -page_tokens),) * len(starts)
    pages = [-((sequence_tokens + rows) // -page_tokens) for rows in verify_rows]
    resident = [0] * len(pages)
    for place, tier, reused in zip(starts, inputs.tiers, inputs.tokens, strict=True):
        if tier == _DEVICE and reused > resident[place]:
            resident[place] = reused
    required = []
    for place, reused in zip(starts, inputs.tokens, strict=True):
        held = resident[place] if resident[place] < reused else reused
        missing = pages[place] - held // page_tokens
        required.append(missing if missing > 0 else 0)
    return tuple(required)


def _reasons(inputs: RouteInputs, required: _Column, available: _Column) -> _Column:
    """Per way to start: 0, or the RouteReason for which it cannot be chosen."""
    prompt_rows = inputs.prompt_tokens - 1
    closed = _closed(inputs)
    if (
        closed is None
        and not inputs.excluded
        and max(inputs.tokens) <= prompt_rows
        and max(required) <= min(available)
    ):
        return (0,) * len(required)
    closed = closed or [0] * len(inputs.workers)
    declined = [_EXCLUDED if worker in inputs.excluded else 0 for worker in inputs.workers]
    return tuple(
        [
            closed[place]
            or (
                _LONGER
                if reused > prompt_rows
                else _TOO_FEW_PAGES
                if wanted > there
                else declined[place]
            )
            for place, reused, wanted, there in zip(
                inputs.starts, inputs.tokens, required, available, strict=True
            )
        ]
    )


def _closed(inputs: RouteInputs) -> list[int] | None:
    """Per worker: 0, or the reason for which it can take no way at all; None: all are open."""
    sequence_tokens = inputs.prompt_tokens + inputs.max_new_tokens
    fit = min(inputs.context_tokens) >= sequence_tokens
    if fit and all(inputs.online) and all(inputs.model_loaded):
        return None
    return [
        _OFFLINE
        if not online
        else _MODEL_NOT_LOADED
        if not loaded
        else _CONTEXT_EXCEEDED
        if sequence_tokens > context_tokens
        else 0
        for online, loaded, context_tokens in zip(
            inputs.online, inputs.model_loaded, inputs.context_tokens, strict=True
        )
    ]


def _best(inputs: RouteInputs, columns: tuple[_Column, ...]) -> tuple[RouteChoice, int, int]:
    """The choice, its reason, and how many criteria tied before it was settled."""
    starts, tiers, tokens, reasons, *_, ttft_ns = columns
    tie_break = 0
    if any(reasons):
        eligible = [place for place, reason in enumerate(reasons) if not reason]
        if not eligible:
            return _NOBODY, int(RouteReason.NO_WORKER), 0
        lowest_ns = min([ttft_ns[place] for place in eligible])
        left = [place for place in eligible if ttft_ns[place] == lowest_ns]
    else:
        lowest_ns = min(ttft_ns)
        left = [ttft_ns.index(lowest_ns)]
        if ttft_ns.count(lowest_ns) > 1:
            left = [place for place, other_ns in enumerate(ttft_ns) if other_ns == lowest_ns]
    if len(left) > 1:
        tie_break = 1
        most_tokens = max([tokens[place] for place in left])
        left = [place for place in left if tokens[place] == most_tokens]
    if len(left) > 1:
        tie_break = 2
        first = starts[left[0]]  # workers stand in byte order of their ids
        left = [place for place in left if starts[place] == first]
    if len(left) > 1:
        tie_break = 3
        left.sort(key=tiers.__getitem__)
    best = left[0]
    worker = starts[best]
    choice = RouteChoice(
        inputs.workers[worker],
        inputs.worker_epochs[worker],
        tiers[best],
        tokens[best],
        ttft_ns[best],
    )
    return choice, int(RouteReason.LOWEST_TTFT), tie_break
