"""Whether the chunks of a finished prompt are written down.

Owns ``checkpoint/expected-value``. It never captures, stores or publishes anything.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from pagetrail.catalog.facts import KindId

from .inputs import CheckpointChoice, CheckpointInputs, CheckpointReason
from .types import PPM, Evaluation, Term


class ExpectedValueWeights(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, kw_only=True
):
    """What the capture is weighed with."""

    capture_ppm: Annotated[
        int,
        Meta(
            ge=0,
            le=1_000 * PPM,
            description="how much the capture's cost counts; 1,000,000 is once",
            extra={"unit": "ppm"},
        ),
    ] = PPM
    value_ns_min: Annotated[
        int,
        Meta(
            ge=0,
            le=2**62,
            description="the value must be greater than this",
            extra={"unit": "ns"},
        ),
    ] = 0


class ExpectedValue:
    """Capture what is expected to save more than capturing costs.

    Formula::

        saving = reuse_ppm * max(0, recompute - reload) // 1_000_000
        cost   = capture * capture_ppm // 1_000_000
        value  = saving - cost

    Constraints, first that applies: no whole chunk is new; the value is not above
    ``value_ns_min``; the queue of captures is full; the largest chunk passes the staging bound;
    the tier lacks room (``tier_free_bytes`` -1: unbounded).

    Alternatives are to skip and to capture; both carry the decision's reason. The constraints
    settle everything: there are no ties.
    """

    name = "checkpoint/expected-value@1"
    kind = KindId.CHECKPOINT
    weights_type = ExpectedValueWeights
    terms = (
        Term("capture", "0 skip, 1 capture"),
        Term("reason", "CheckpointReason"),
        Term("saving_ns", "ns"),
        Term("cost_ns", "ns"),
        Term("value_ns", "ns"),
    )

    def evaluate(
        self, weights: ExpectedValueWeights, inputs: CheckpointInputs
    ) -> Evaluation[CheckpointChoice]:
        gain_ns = inputs.recompute_ns - inputs.reload_ns
        saving_ns = inputs.reuse_ppm * gain_ns // PPM if gain_ns > 0 else 0
        cost_ns = inputs.capture_ns * weights.capture_ppm // PPM
        value_ns = saving_ns - cost_ns
        reason = _reason(inputs, value_ns > weights.value_ns_min)
        capture = reason is CheckpointReason.WORTH_IT
        columns = (
            (0, 1),
            (int(reason),) * 2,
            (0, saving_ns),
            (0, cost_ns),
            (0, value_ns),
        )
        return Evaluation(CheckpointChoice(capture, value_ns), int(reason), 0, columns)


def _reason(inputs: CheckpointInputs, worth_it: bool) -> CheckpointReason:
    if inputs.tokens == 0:
        return CheckpointReason.NOTHING_NEW
    if not worth_it:
        return CheckpointReason.NO_VALUE
    if inputs.queued >= inputs.queue_max:
        return CheckpointReason.QUEUE_FULL
    if inputs.staging_bytes > inputs.staging_bytes_max:
        return CheckpointReason.TOO_LARGE
    if inputs.tier_free_bytes >= 0 and inputs.size_bytes > inputs.tier_free_bytes:
        return CheckpointReason.TIER_FULL
    return CheckpointReason.WORTH_IT
