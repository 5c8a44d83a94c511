"""A stream that gives way to another's growth goes on with the tokens it would have had."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from engine_runs import EngineRun

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.decision import Outcome
from pagetrail.catalog.kinds.worker import (
    FinishReason,
    RamKeepBegun,
    RamKeepEnded,
    RowsRestored,
    StreamPreempted,
)
from pagetrail.controlplane.cluster import wire
from pagetrail.controlplane.policy.outcomes import OUTCOME_TERMS

NEW = 120


def prompt(number: int, count: int) -> list[int]:
    return [3 + (number * 131 + place * place * 7 + place) % 500 for place in range(count)]


REQUESTS = {1: prompt(1, 70), 2: prompt(2, 90), 3: prompt(3, 40)}


@contextmanager
def engine(directory: Path, pages: int, **settings: str) -> Iterator[EngineRun]:
    run = EngineRun(directory, pages, **settings)
    try:
        yield run
    finally:
        run.close()


def answers(run: EngineRun, **options: object) -> dict[int, list[int]]:
    for number, tokens in REQUESTS.items():
        run.offer(number, tokens, NEW, **options)
    run.run()
    ended = {m.number: m.reason for m in run.sent if isinstance(m, wire.EndedWire)}
    assert ended == dict.fromkeys(REQUESTS, FinishReason.LENGTH)
    owner = run.machine.view.owner
    assert not owner.streams()
    assert owner.promised_in_all() == (0,)
    return {number: run.tokens(number) for number in REQUESTS}


@pytest.mark.parametrize("temperature", [0.0, 0.9], ids=["greedy", "sampled"])
@pytest.mark.parametrize("swap_bytes", [0, 1 << 28], ids=["recompute", "swap"])
def test_preempted_streams_give_the_tokens_of_an_undisturbed_run(
    tiny_model: Callable[[str], Path], swap_bytes: int, temperature: float
) -> None:
    directory = tiny_model("llama")
    with engine(directory, 200) as undisturbed:
        expected = answers(undisturbed, temperature=temperature)
    assert all(len(tokens) == NEW for tokens in expected.values())
    with engine(
        directory,
        32,
        worker__reserve_output="false",
        worker__swap_bytes=str(swap_bytes),
        worker__poison="true",
    ) as pressed:
        assert answers(pressed, temperature=temperature) == expected
    left = [fact for fact in pressed.facts() if isinstance(fact, StreamPreempted)]
    assert left
    assert {one.swapped for one in left} == {swap_bytes > 0}
    restored = [fact for fact in pressed.facts() if isinstance(fact, RowsRestored)]
    assert bool(restored) == (swap_bytes > 0)


def test_samples_and_prompt_logprobs_survive_a_preemption(
    tiny_model: Callable[[str], Path],
) -> None:
    directory = tiny_model("llama")

    def serve(run: EngineRun) -> tuple[list[list[int]], list[bytes]]:
        run.offer(1, REQUESTS[1], NEW, samples=2, temperature=0.7)
        run.offer(2, REQUESTS[2], NEW, prompt_logprobs=1)
        run.run()
        return [run.tokens(1, 0), run.tokens(1, 1), run.tokens(2)], run.prompt_logprobs(2)

    with engine(directory, 200) as undisturbed:
        expected = serve(undisturbed)
    with engine(directory, 32, worker__reserve_output="false", worker__poison="true") as pressed:
        assert serve(pressed) == expected
    assert any(isinstance(fact, StreamPreempted) for fact in pressed.facts())


def test_a_cancelled_stream_that_had_given_way_leaves_nothing(
    tiny_model: Callable[[str], Path],
) -> None:
    with engine(tiny_model("llama"), 32, worker__reserve_output="false") as run:
        for number, tokens in REQUESTS.items():
            run.offer(number, tokens, NEW)
        while not run.machine.view.preempted:
            run.runtime.turn(idle_wait_s=0.0)
        (gone, *_) = run.machine.view.preempted
        run.inbox.put(wire.CancelWire(1, gone, 1))
        run.run()
        reasons = {m.number: m.reason for m in run.sent if isinstance(m, wire.EndedWire)}
        assert reasons.pop(gone) is FinishReason.CANCELLED
        assert set(reasons.values()) == {FinishReason.LENGTH}
        assert not run.machine.view.preempted


def test_a_prompt_that_may_not_stay_on_the_device_is_restored_from_memory(
    tiny_model: Callable[[str], Path],
) -> None:
    directory, tokens = tiny_model("llama"), prompt(4, 300)
    with engine(directory, 200, worker__ram_bytes="0") as without:
        without.offer(1, tokens, 10)
        without.run()
        expected = without.tokens(1)
    with engine(
        directory, 200, worker__kept_pages="4", worker__chunk_tokens="128", worker__poison="true"
    ) as run:
        run.offer(1, tokens, 10)
        run.run()
        begun = [fact for fact in run.facts() if isinstance(fact, RamKeepBegun)]
        ended = [fact for fact in run.facts() if isinstance(fact, RamKeepEnded)]
        assert [(one.columns, one.lease) for one in begun] == [(16, 1)]
        assert ended == [RamKeepEnded(1, 256)]
        kept = [
            fact.values
            for fact in run.facts()
            if isinstance(fact, Outcome) and fact.decision_kind == KindId.KEEP
        ]
        assert [len(values) for values in kept] == [len(OUTCOME_TERMS[KindId.KEEP])]
        run.offer(2, tokens, 10)
        run.run()
        assert run.tokens(1) == run.tokens(2) == expected
        assert [fact.rows for fact in run.facts() if isinstance(fact, RowsRestored)] == [256]


def test_poison_shows_a_read_of_pages_that_were_released(
    tiny_model: Callable[[str], Path],
) -> None:
    with engine(tiny_model("llama"), 200, worker__poison="true") as run:
        run.offer(1, prompt(5, 64), 4)
        while not run.tokens(1):
            run.runtime.turn(idle_wait_s=0.0)
        table = np.asarray(run.machine.view.owner.page_table(1, 0), np.int32)
        before = np.frombuffer(run.model.capture(table, 0, 64), np.float32)
        assert np.isfinite(before).all()
        run.inbox.put(wire.CancelWire(1, 1, 1))
        run.run()
        stale = np.frombuffer(run.model.capture(table, 0, 64), np.float32)
        assert np.isnan(stale).all()


def test_quotas_that_pass_the_pool_are_refused_at_start(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(BadInputError, match="give away 300 pages"):
        EngineRun(tiny_model("llama"), 200, tenants__quotas="a=100, b=200")
