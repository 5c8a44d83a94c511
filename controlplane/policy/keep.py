"""Whether a finished prompt stays: on the device, or in host memory.

Owns ``keep/within-limits``, with and without the way to RAM. Which kept columns make room for it is
a residency decision.
"""

from __future__ import annotations

import msgspec

from pagetrail.catalog.facts import KindId

from .inputs import KeepChoice, KeepInputs, KeepOrRamChoice, KeepReason
from .types import Evaluation, Term

_KEEPS = (KeepReason.KEEP, KeepReason.KEEP_AFTER_RECLAIM, KeepReason.NOTHING_NEW)


class WithinLimitsWeights(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, kw_only=True
):
    """It has none: the limits are the worker's."""


class WithinLimits:
    """Keep the whole prompt when both limits allow it, evicting older columns for it if needed.

    Formula: ``new = columns - shared``; ``reclaim = max(0, kept + new - kept_columns_max)``.

    Constraints, first that applies: there is no column; the prompt alone passes the limit of
    columns; the nodes it adds pass the limit of nodes (evicting columns promises no node). A
    prompt is kept whole or not at all. One without a new column is kept too: its stream swaps to
    the kept pages and its path counts as used. What is shared is never reclaimed for it:
    ``columns`` fit the limit, so ``reclaim`` is at most the kept columns that it does not share.

    With ``ram`` a prompt that cannot stay goes to host memory, if it has a whole chunk and its
    chunks do not pass the memory; and when room was tried for in vain, it cannot stay.

    Alternatives are to let it go and to keep it; both carry the decision's reason. The
    constraints settle everything: there are no ties.
    """

    kind = KindId.KEEP
    weights_type = WithinLimitsWeights
    terms = (
        Term("keep", "0 let go, 1 keep"),
        Term("reason", "KeepReason"),
        Term("new_columns", "page columns"),
        Term("reclaim_columns", "page columns"),
    )

    def __init__(self, name: str, *, ram: bool) -> None:
        self.name = name
        self._ram = ram

    def evaluate(self, weights: WithinLimitsWeights, inputs: KeepInputs) -> Evaluation[KeepChoice]:
        new_columns = inputs.columns - inputs.shared
        over = inputs.kept_columns + new_columns - inputs.kept_columns_max
        reason = _reason(inputs, new_columns, over)
        if self._ram and inputs.reclaim_failed and reason is KeepReason.KEEP_AFTER_RECLAIM:
            reason = KeepReason.NOTHING_TO_RECLAIM
        kept = inputs.columns > 0 and reason in _KEEPS
        reclaim = over if reason is KeepReason.KEEP_AFTER_RECLAIM else 0
        choice = KeepChoice(kept, inputs.columns if kept else 0, reclaim)
        if self._ram:
            fits = not kept and 0 < inputs.ram_bytes <= inputs.ram_bytes_max
            choice = KeepOrRamChoice(
                kept, choice.columns, reclaim, inputs.ram_columns if fits else 0
            )
        columns = ((0, 1), (int(reason),) * 2, (0, new_columns), (0, max(0, over)))
        return Evaluation(choice, int(reason), 0, columns)


def _reason(inputs: KeepInputs, new_columns: int, over: int) -> KeepReason:
    if new_columns <= 0:
        return KeepReason.NOTHING_NEW
    if inputs.columns > inputs.kept_columns_max:
        return KeepReason.TOO_MANY_COLUMNS
    if inputs.kept_nodes + inputs.new_nodes > inputs.kept_nodes_max:
        return KeepReason.TOO_MANY_NODES
    return KeepReason.KEEP_AFTER_RECLAIM if over > 0 else KeepReason.KEEP
