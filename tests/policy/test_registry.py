"""Evaluators by name, and what puts one in force."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
import pytest

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.catalog.facts import DECISION_KINDS
from pagetrail.catalog.identity import canonical
from pagetrail.controlplane.policy.admission import ReserveWeights
from pagetrail.controlplane.policy.registry import (
    EVALUATORS,
    UnknownEvaluatorError,
    bind,
    evaluator,
    unbind,
    weights_from,
)

ADMISSION = "admission/reserve@1"


@pytest.mark.parametrize("name", sorted(EVALUATORS))
def test_every_evaluator_says_what_it_is(name: str) -> None:
    found = evaluator(name)
    assert found.name == name
    assert found.kind in DECISION_KINDS
    stated = type(found).__doc__ or ""
    assert any(words in stated for words in ("Order:", "Order of", "there are no ties"))
    assert len({term.name for term in found.terms}) == len(found.terms)
    assert all(term.unit for term in found.terms)
    for field in msgspec.inspect.type_info(found.weights_type).fields:  # type: ignore[attr-defined]
        assert not field.required
        assert field.type.extra["unit"]
        assert field.type.extra_json_schema["description"]


def test_the_table_of_evaluators_cannot_be_changed() -> None:
    with pytest.raises(TypeError):
        EVALUATORS["routing/other@1"] = evaluator(ADMISSION)  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("residency/leaf-lru@2", "this build has no residency/leaf-lru@2.*residency/leaf-lru@1"),
        ("residency/leaf-lru", "it has residency/leaf-lru@1"),
        ("residency/leaf-lfu@1", "did you mean residency/leaf-lru@1"),
        ("nonsense", "names have the form family/policy@version"),
        ("", "did you mean admission/reserve@1 or"),
    ],
)
def test_an_unknown_evaluator_is_reported_with_the_nearest_names(name: str, said: str) -> None:
    with pytest.raises(UnknownEvaluatorError, match=said):
        evaluator(name)
    with pytest.raises(UnknownEvaluatorError, match=said):
        bind(name)


def test_a_binding_names_the_evaluator_its_weights_and_the_rules() -> None:
    rules = [hashlib.sha256(b"rule").digest()]
    bound = bind(ADMISSION, ReserveWeights(bypass_max=3), rules=rules)
    assert (bound.decision_kind, bound.evaluator) == (129, ADMISSION)
    assert msgspec.msgpack.decode(bound.weights) == [3]
    content = canonical([ADMISSION, bound.weights, rules])
    assert bound.digest == hashlib.sha256(b"pagetrail/evaluator/1\n" + content).digest()
    assert unbind(bound, rules=rules) == (evaluator(ADMISSION), ReserveWeights(bypass_max=3))


def test_every_part_of_a_binding_changes_its_digest() -> None:
    rule, other = b"\x01" * 32, b"\x02" * 32
    digests = {
        bind(ADMISSION).digest,
        bind(ADMISSION, ReserveWeights(bypass_max=3)).digest,
        bind(ADMISSION, rules=[rule]).digest,
        bind(ADMISSION, rules=[rule, other]).digest,
        bind(ADMISSION, rules=[other, rule]).digest,
        bind("routing/min-ttft@1").digest,
    }
    assert len(digests) == 6


def test_weights_outside_their_bounds_or_of_another_evaluator_are_refused() -> None:
    with pytest.raises(BadInputError, match="no weights of admission/reserve@1"):
        bind(ADMISSION, ReserveWeights(bypass_max=-1))
    with pytest.raises(BadInputError, match="takes ReserveWeights, not MinTtftWeights"):
        bind(ADMISSION, evaluator("routing/min-ttft@1").weights_type())


def test_weights_are_made_from_field_names_and_a_wrong_one_is_named() -> None:
    assert weights_from(ADMISSION) == ReserveWeights()
    assert weights_from(ADMISSION, {"bypass_max": 3}) == ReserveWeights(bypass_max=3)
    with pytest.raises(BadInputError, match="no weight 'bypas_max'; did you mean bypass_max"):
        weights_from(ADMISSION, {"bypas_max": 3})
    with pytest.raises(BadInputError, match="no weight 'x'; it has no weights at all"):
        weights_from("routing/min-ttft@1", {"x": 3})
    with pytest.raises(BadInputError, match="no weights of admission/reserve@1"):
        weights_from(ADMISSION, {"bypass_max": -3})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weights": b"\x91\x04"}, "the digest of admission/reserve@1 is not that of"),
        ({"decision_kind": 128}, "is bound to decisions of kind 128; it makes those of kind 129"),
        ({"digest": bytes(32)}, "the digest of admission/reserve@1 is not that of"),
    ],
)
def test_a_binding_whose_parts_do_not_belong_together_is_refused(
    changes: dict[str, Any], said: str
) -> None:
    damaged = msgspec.structs.replace(bind(ADMISSION), **changes)
    with pytest.raises(CorruptionError, match=said):
        unbind(damaged)
    with pytest.raises(CorruptionError):
        unbind(bind(ADMISSION), rules=[bytes(32)])


@pytest.mark.parametrize(
    "encoded", [b"", b"\x90", b"\x92\x01\x02", b"\x91\xcd\x00\x10", b"\x91\xa1a", b"\x91\xff"]
)
def test_recorded_weights_that_are_not_canonical_are_refused(encoded: bytes) -> None:
    bound = bind(ADMISSION)
    content = canonical([ADMISSION, encoded, []])
    digest = hashlib.sha256(b"pagetrail/evaluator/1\n" + content).digest()
    damaged = msgspec.structs.replace(bound, weights=encoded, digest=digest)
    with pytest.raises(CorruptionError, match="these are no weights of admission/reserve@1"):
        unbind(damaged)
