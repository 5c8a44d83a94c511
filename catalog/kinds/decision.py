"""Decisions and their outcomes. All kinds of decision share one struct."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from .content import Digest

CITED_CHAIN_BYTES = 16
"""How much of its journal's chain a decision cites: enough that no other history has it too."""

CitedChain = Annotated[bytes, Meta(min_length=CITED_CHAIN_BYTES, max_length=CITED_CHAIN_BYTES)]


class Decision(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What was chosen, among what, why, from which inputs.

    ``chain`` stands for every input that the decider's own journal implies; ``as_of`` for what
    the catalog implied; ``recorded`` holds the rest in full (clock readings, look-up results).
    """

    subject: Annotated[int, Meta(description="stream or request number; 0: the decider itself")]
    evaluator: Annotated[int, Meta(description="place in the epoch's table of evaluators")]
    as_of: Annotated[int, Meta(description="catalog facts seen (a log position); -1: none read")]
    chain: Annotated[
        CitedChain, Meta(description="command chain of the view that was read: its first bytes")
    ]
    recorded: Annotated[msgspec.Raw, Meta(description="the evaluator kind's Recorded struct")]
    choice: Annotated[msgspec.Raw, Meta(description="the evaluator kind's Choice struct")]
    reason: Annotated[int, Meta(description="the evaluator kind's Reason")]
    tie_break: Annotated[int, Meta(description="place of the criterion that settled it; 0 first")]
    digest: Annotated[Digest, Meta(description="SHA-256 of all alternatives with their terms")]
    alternatives: Annotated[
        msgspec.Raw, Meta(description="the columns of terms when recorded in full, else nil")
    ]


class Outcome(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What then happened. The decision it answers is the transaction's first cause."""

    decision_kind: Annotated[int, Meta(description="kind id of the decision")]
    subject: Annotated[int, Meta(description="as in the decision")]
    values: Annotated[tuple[int, ...], Meta(description="by the kind's outcome schema")]
