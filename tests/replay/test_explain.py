"""An explanation tells what the facts say: choice, alternatives, causes, effects, verdict."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import msgspec
import pytest
from log_editor import BODY, FACTS, KIND, EditableLog
from replay_runs import Served, derived, transactions
from rich.console import Console

from pagetrail.catalog.envelope import Cause
from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.facts import DECISION_KINDS, KindId, decode_body
from pagetrail.catalog.kinds.worker import NodesEvicted
from pagetrail.controlplane.policy.inputs import EvictReason
from pagetrail.replay.alternatives import SHOWN_MAX
from pagetrail.replay.explain import Explained, explain
from pagetrail.replay.explain_text import render

CHOICE = 5  # place of the choice among a decision's fields


def _eviction(served: Served) -> str:
    """The eviction with the most alternatives."""
    best = max(derived(served.directory, KindId.EVICT), key=lambda one: len(one.inputs.entries))
    return f"{best.client}/1/{best.client_seq}"


def _only(served: Served, name: str) -> Explained:
    (decision,) = explain(served.directory, name).decisions
    return decision


def test_all_decisions_about_a_request_are_told_in_the_order_of_the_log(
    four_workers: Served,
) -> None:
    told = explain(four_workers.directory, "trace-40").decisions
    kinds = {decision.kind for decision in told}
    assert kinds >= {"route", "admit", "restore", "keep", "checkpoint"}
    assert {decision.request for decision in told} == {"trace-40"}
    assert [decision.position for decision in told] == sorted(
        decision.position for decision in told
    )
    assert {decision.verdict for decision in told} == {"derived again"}


def test_an_eviction_is_told_with_its_victims_and_why_each_other_node_stays(
    four_workers: Served,
) -> None:
    name = _eviction(four_workers)
    told = _only(four_workers, name)
    client, _, seq = name.split("/")
    (transaction,) = [
        transaction
        for who, _, transaction in transactions(four_workers.directory)
        if who == client and transaction.client_seq == int(seq)
    ]
    evicted = [
        body.victims
        for wire in transaction.facts
        if isinstance(body := decode_body(wire.kind, wire.schema_v, wire.body), NodesEvicted)
    ]
    assert [(one.terms["entry"], one.terms["cut_columns"]) for one in told.chosen] == list(
        evicted[0]
    )
    (again,) = [
        one
        for one in derived(four_workers.directory, KindId.EVICT)
        if (one.client, one.client_seq) == (client, int(seq))
    ]
    reasons = [EvictReason(reason).name.lower() for reason in again.evaluation.columns[1]]
    for rejected in told.rejected:
        assert rejected.count == reasons.count(rejected.reason)
        assert len(rejected.shown) == min(rejected.count, SHOWN_MAX)
        for name, (least, most) in rejected.ranges.items():
            assert all(least <= one.terms[name] <= most for one in rejected.shown)
    assert len(told.chosen) + sum(one.count for one in told.rejected) == len(reasons)
    assert told.commands[0].kind == "nodes_evicted"


def test_causes_and_effects_are_linked_both_ways(four_workers: Served) -> None:
    named: dict[Cause, list[str]] = {}
    for client, epoch, transaction in transactions(four_workers.directory):
        for cause in transaction.causes:
            named.setdefault(cause, []).append(f"{client}/{epoch}/{transaction.client_seq}")
    for decision in explain(four_workers.directory, "trace-60").decisions:
        client, epoch, seq = decision.name.split("/")
        effects = named.get(Cause(client, int(epoch), int(seq)), [])
        assert [link.name for link in decision.effects] == effects
        for link in decision.causes:
            assert decision.name in [
                effect.name for effect in _only(four_workers, link.name).effects
            ]
    route = next(
        one for one in explain(four_workers.directory, "trace-60").decisions if one.kind == "route"
    )
    (outcome,) = route.outcomes
    assert any(name.startswith("ttft_ns") for name in outcome.values)


def test_a_position_stands_for_its_transactions_decision_or_the_one_it_cites(
    four_workers: Served,
) -> None:
    told = next(
        one for one in explain(four_workers.directory, "trace-60").decisions if one.kind == "route"
    )
    assert _only(four_workers, str(told.position)).name == told.name
    assert _only(four_workers, str(told.position + 1)).name == told.name
    assert _only(four_workers, str(told.effects[0].position)).name == told.name


@pytest.mark.parametrize("asked", ["nobody/1/3", "worker-0/9/3", "trace-0", "no such thing"])
def test_what_names_no_decision_is_refused(four_workers: Served, asked: str) -> None:
    with pytest.raises(BadInputError, match="expected client/epoch/client_seq"):
        explain(four_workers.directory, asked)


def test_a_fact_that_follows_from_no_decision_is_refused(four_workers: Served) -> None:
    with pytest.raises(BadInputError, match="worker_started fact that names no decision"):
        explain(four_workers.directory, "worker-0/1/0")


def test_a_changed_choice_is_told_with_what_is_derived_instead(
    four_workers: Served, tmp_path: Path
) -> None:
    name = _eviction(four_workers)
    client, _, seq = name.split("/")
    log = EditableLog.read(four_workers.directory).whole_copy()
    for _, who, _, transaction in log.places():
        if who == client and transaction[0] == int(seq):
            assert transaction[FACTS][0][KIND] == KindId.EVICT
            transaction[FACTS][0][BODY][CHOICE][0][0][0] += 1
    log.write(tmp_path)
    (told,) = explain(tmp_path, name).decisions
    assert told.verdict.startswith("choice.victims: recorded")


def test_every_kind_of_decision_renders_as_text_and_as_json(four_workers: Served) -> None:
    first: dict[int, str] = {}
    for client, epoch, transaction in transactions(four_workers.directory):
        kind = transaction.facts[0].kind
        if kind in DECISION_KINDS and transaction.client_seq > 40:
            first.setdefault(kind, f"{client}/{epoch}/{transaction.client_seq}")
    assert len(first) == 6
    for kind, name in first.items():
        explanation = explain(four_workers.directory, name)
        out = StringIO()
        Console(file=out, width=200).print(render(explanation))
        text = out.getvalue()
        assert KindId(kind).name.lower() in text
        assert name in text
        assert "derived again" in text
        assert msgspec.json.decode(msgspec.json.encode(explanation))["decisions"][0]["name"] == name
