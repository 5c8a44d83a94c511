"""What is stored of an answer, and whether it still comes out so."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from policy_inputs import MS, drawn_inputs

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.decision import Decision
from pagetrail.controlplane.policy.inputs import RouteInputs
from pagetrail.controlplane.policy.recorder import (
    FULL,
    REFERENCE,
    Mismatch,
    RecordMode,
    record,
    rederive,
)
from pagetrail.controlplane.policy.registry import EVALUATORS, evaluator

ROUTING = evaluator("routing/min-ttft@1")
SEED = 3  # several workers, one of them chosen
CHAIN = hashlib.sha256(b"chain").digest()


class Seen(msgspec.Struct, frozen=True, array_like=True):
    clock_us: int


def decide(
    name: str, inputs: msgspec.Struct, mode: RecordMode = FULL, subject: int = 7
) -> Decision:
    found = evaluator(name)
    evaluation, decision = record(
        2,
        found,
        found.weights_type(),
        inputs,
        subject=subject,
        as_of=41,
        chain=CHAIN,
        recorded=Seen(5),
        mode=mode,
    )
    assert evaluation == found.evaluate(found.weights_type(), inputs)
    return decision


def test_a_decision_holds_the_answer_and_what_it_was_read_from() -> None:
    inputs = drawn_inputs("ROUTE", SEED)
    evaluation = ROUTING.evaluate(ROUTING.weights_type(), inputs)
    decision = decide(ROUTING.name, inputs)
    assert (decision.subject, decision.evaluator, decision.as_of) == (7, 2, 41)
    assert decision.chain == CHAIN[:16]
    assert bytes(decision.recorded) == msgspec.msgpack.encode(Seen(5))
    assert bytes(decision.choice) == msgspec.msgpack.encode(evaluation.choice)
    assert (decision.reason, decision.tie_break) == (evaluation.reason, evaluation.tie_break)
    columns = msgspec.msgpack.encode(evaluation.columns)
    assert bytes(decision.alternatives) == columns
    assert decision.digest == hashlib.sha256(columns).digest()


def test_in_reference_form_the_alternatives_are_left_to_their_digest() -> None:
    inputs = drawn_inputs("ROUTE", SEED)
    reference, full = decide(ROUTING.name, inputs, REFERENCE), decide(ROUTING.name, inputs)
    assert bytes(reference.alternatives) == b"\xc0"
    assert msgspec.structs.replace(reference, alternatives=full.alternatives) == full


def test_a_sample_is_the_same_decisions_in_every_run_and_about_its_share() -> None:
    inputs = drawn_inputs("KEEP", 1)

    def sample(ppm: int) -> list[int]:
        mode = RecordMode(ppm)
        return [
            n
            for n in range(2_000)
            if bytes(decide("keep/within-limits@1", inputs, mode, n).alternatives) != b"\xc0"
        ]

    tenth = sample(100_000)
    assert tenth == sample(100_000)
    assert 140 <= len(tenth) <= 260  # 200 expected, standard deviation 13.4
    assert set(sample(1)) <= set(tenth) <= set(sample(300_000))
    assert sample(0) == []
    assert sample(1_000_000) == list(range(2_000))


@pytest.mark.parametrize("ppm", [-1, 1_000_001])
def test_a_share_that_is_none_is_refused(ppm: int) -> None:
    with pytest.raises(BadInputError, match="sample_ppm must be from 0"):
        RecordMode(ppm)


@pytest.mark.parametrize("name", sorted(EVALUATORS))
@settings(deadline=None)
@given(seed=st.integers(0, 2**32), mode=st.sampled_from([REFERENCE, RecordMode(500_000), FULL]))
def test_what_was_decided_is_derived_again_after_a_trip_through_bytes(
    name: str, seed: int, mode: RecordMode
) -> None:
    found = evaluator(name)
    inputs = drawn_inputs(found.kind.name, seed)
    written = msgspec.msgpack.encode(decide(name, inputs, mode))
    read = msgspec.msgpack.decode(written, type=Decision)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(inputs), type=type(inputs))
    assert rederive(read, found, found.weights_type(), again) is None
    assert msgspec.msgpack.encode(read) == written


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(value))


INPUTS = drawn_inputs("ROUTE", SEED)
ANSWER = ROUTING.evaluate(ROUTING.weights_type(), INPUTS)
CHOICE = ANSWER.choice


def test_the_first_field_that_differs_is_named_with_both_values() -> None:
    decision = decide(ROUTING.name, INPUTS)

    def found(**changes: Any) -> Mismatch:
        changed = msgspec.structs.replace(decision, **changes)
        mismatch = rederive(changed, ROUTING, ROUTING.weights_type(), INPUTS)
        assert mismatch is not None
        return mismatch

    other = msgspec.structs.replace(CHOICE, worker="nobody", ttft_ns=1)
    assert found(choice=raw(other), reason=1) == Mismatch("choice.worker", "nobody", CHOICE.worker)
    assert found(choice=raw(msgspec.structs.replace(CHOICE, ttft_ns=1))) == Mismatch(
        "choice.ttft_ns", 1, CHOICE.ttft_ns
    )
    assert found(choice=raw([1, 2])) == Mismatch("choice", "920102", CHOICE)
    padded = raw([*msgspec.structs.astuple(CHOICE), 0])
    assert found(choice=padded).field == "choice"
    assert found(reason=17, tie_break=3) == Mismatch("reason", 17, 16)
    assert found(tie_break=3, digest=bytes(32)) == Mismatch("tie_break", 3, ANSWER.tie_break)
    assert found(digest=bytes(32)) == Mismatch("digest", "00" * 32, decision.digest.hex())

    columns = [list(values) for values in ANSWER.columns]
    columns[8][1] += 1
    assert found(alternatives=raw(columns), digest=bytes(32)) == Mismatch(
        "alternatives.ttft_ns[1]", ANSWER.columns[8][1] + 1, ANSWER.columns[8][1]
    )
    shorter = [values[:-1] for values in ANSWER.columns]
    assert found(alternatives=raw(shorter)).field == "alternatives.candidate"
    assert found(alternatives=raw(ANSWER.columns[:-1])).field == "alternatives"
    assert found(alternatives=msgspec.Raw(b"\x01")).field == "alternatives"
    assert str(found(reason=17)) == "reason: recorded 17, derived 16"


def test_a_changed_input_shows_even_when_the_choice_stays() -> None:
    assert isinstance(INPUTS, RouteInputs)
    loser = next(n for n, name in enumerate(INPUTS.workers) if name != CHOICE.worker)
    changed = list(INPUTS.first_token_ns)
    changed[loser] += 90_000 * MS
    inputs = msgspec.structs.replace(INPUTS, first_token_ns=tuple(changed))
    decision = decide(ROUTING.name, INPUTS, REFERENCE)
    mismatch = rederive(decision, ROUTING, ROUTING.weights_type(), inputs)
    assert mismatch is not None
    assert mismatch.field == "digest"
    full = rederive(decide(ROUTING.name, INPUTS), ROUTING, ROUTING.weights_type(), inputs)
    assert full is not None
    assert full.field.startswith("alternatives.ttft_ns[")
