"""What is written down, and what stays on the device."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_inputs import MS, column, drawn_inputs, evaluate

from pagetrail.controlplane.policy.inputs import (
    CheckpointChoice,
    CheckpointInputs,
    CheckpointReason,
    KeepChoice,
    KeepInputs,
    KeepReason,
)

CHECKPOINT = "checkpoint/expected-value@1"
KEEP = "keep/within-limits@1"

WORTH = CheckpointInputs(
    tokens=256,
    size_bytes=1_000,
    depth_tokens=0,
    reuse_ppm=500_000,
    recompute_ns=100 * MS,
    reload_ns=20 * MS,
    capture_ns=30 * MS,
    staging_bytes=500,
    staging_bytes_max=500,
    queued=3,
    queue_max=4,
    tier_free_bytes=1_000,
)


def test_a_capture_is_worth_its_expected_saving_less_its_cost() -> None:
    answer = evaluate(CHECKPOINT, WORTH)  # 0.5 x (100 - 20) - 30 ms
    assert answer.choice == CheckpointChoice(True, 10 * MS)
    assert answer.reason == CheckpointReason.WORTH_IT
    assert column(CHECKPOINT, answer, "saving_ns") == (0, 40 * MS)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"tokens": 0, "queued": 4}, CheckpointReason.NOTHING_NEW),
        ({"capture_ns": 40 * MS, "queued": 4}, CheckpointReason.NO_VALUE),
        ({"capture_ns": 40 * MS - 1}, CheckpointReason.WORTH_IT),
        ({"reload_ns": 101 * MS, "capture_ns": 0}, CheckpointReason.NO_VALUE),
        ({"queued": 4, "staging_bytes": 501}, CheckpointReason.QUEUE_FULL),
        ({"staging_bytes": 501, "tier_free_bytes": 0}, CheckpointReason.TOO_LARGE),
        ({"tier_free_bytes": 999}, CheckpointReason.TIER_FULL),
        ({"tier_free_bytes": -1}, CheckpointReason.WORTH_IT),
    ],
)
def test_the_first_constraint_that_applies_skips_the_capture(
    changes: dict[str, Any], reason: CheckpointReason
) -> None:
    answer = evaluate(CHECKPOINT, msgspec.structs.replace(WORTH, **changes))
    assert answer.reason == reason
    assert answer.choice.capture == (reason == CheckpointReason.WORTH_IT)


def test_weights_make_the_capture_dearer_or_raise_the_bar() -> None:
    assert evaluate(CHECKPOINT, WORTH, capture_ppm=1_333_334).choice.capture is False
    assert evaluate(CHECKPOINT, WORTH, capture_ppm=0).choice.value_ns == 40 * MS
    assert evaluate(CHECKPOINT, WORTH, value_ns_min=10 * MS).choice.capture is False


ROOM = KeepInputs(
    columns=10, shared=4, kept_columns=20, kept_columns_max=30, kept_nodes=4, kept_nodes_max=8
)


@pytest.mark.parametrize(
    ("changes", "reason", "choice"),
    [
        ({}, KeepReason.KEEP, KeepChoice(True, 10, 0)),
        ({"kept_columns": 24}, KeepReason.KEEP, KeepChoice(True, 10, 0)),
        ({"kept_columns": 26}, KeepReason.KEEP_AFTER_RECLAIM, KeepChoice(True, 10, 2)),
        ({"shared": 10}, KeepReason.NOTHING_NEW, KeepChoice(True, 10, 0)),
        ({"columns": 0, "shared": 0}, KeepReason.NOTHING_NEW, KeepChoice(False, 0, 0)),
        ({"columns": 31}, KeepReason.TOO_MANY_COLUMNS, KeepChoice(False, 0, 0)),
        ({"kept_nodes": 8}, KeepReason.TOO_MANY_NODES, KeepChoice(False, 0, 0)),
        ({"kept_nodes": 7}, KeepReason.KEEP, KeepChoice(True, 10, 0)),
        ({"kept_nodes": 7, "new_nodes": 2}, KeepReason.TOO_MANY_NODES, KeepChoice(False, 0, 0)),
    ],
)
def test_both_limits_are_checked_and_older_columns_make_room(
    changes: dict[str, Any], reason: KeepReason, choice: KeepChoice
) -> None:
    answer = evaluate(KEEP, msgspec.structs.replace(ROOM, **changes))
    assert (answer.reason, answer.choice) == (reason, choice)


@settings(deadline=None)
@given(st.integers(0, 2**32))
def test_a_keep_stays_within_its_limits_and_reclaims_nothing_that_it_shares(seed: int) -> None:
    inputs = drawn_inputs("KEEP", seed)
    assert isinstance(inputs, KeepInputs)
    if inputs.kept_columns > inputs.kept_columns_max or inputs.shared > inputs.kept_columns:
        return  # no book can be in that state
    choice = evaluate(KEEP, inputs).choice
    if choice.keep:
        kept = inputs.kept_columns + inputs.columns - inputs.shared - choice.reclaim_columns
        assert inputs.columns <= kept <= inputs.kept_columns_max
        assert choice.reclaim_columns <= inputs.kept_columns - inputs.shared
