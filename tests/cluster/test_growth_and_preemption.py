"""Streams outgrow their promise: who gives way, and that nothing is lost."""

from __future__ import annotations

import random
from typing import Any, TypeVar

import msgspec
import pytest
from cluster_parts import incoming
from growing_parts import SHARING, GrowingWorld, growing_machine

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.kinds.decision import Decision, Outcome
from pagetrail.catalog.kinds.worker import (
    FinishReason,
    NodesEvicted,
    PagesAdopted,
    RowsRestored,
    StreamPreempted,
    SwapBegun,
    SwapReleased,
)
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.policy.inputs import PreemptChoice
from pagetrail.controlplane.view import WorkerView

F = TypeVar("F", bound=msgspec.Struct)

MIB = 1 << 20


def of(kind: type[F], world: GrowingWorld) -> list[F]:
    return [fact for fact in world.facts() if isinstance(fact, kind)]


def decisions(world: GrowingWorld, kind: KindId) -> list[Decision]:
    return [
        msgspec.msgpack.decode(wire.body, type=Decision)
        for transaction in world.transactions
        for wire in transaction.facts
        if wire.kind == kind
    ]


def served(world: GrowingWorld) -> None:
    """Everything ended well and nothing is held."""
    owner = world.machine.view.owner
    assert {ended.reason for ended in world.ended} == {FinishReason.LENGTH}
    assert not owner.streams()
    assert owner.promised_in_all() == (0,)
    assert owner.held() == (owner.kept_columns,)
    assert not world.machine.view.preempted
    assert not world.machine.view.parking


def test_a_stream_grows_beyond_its_promise_while_pages_are_free() -> None:
    world = GrowingWorld(growing_machine(pages=16))
    world.offer(1, incoming("a", 8, max_new_tokens=20))
    world.run()
    served(world)
    assert not decisions(world, KindId.PREEMPT)


def test_kept_prompts_go_before_anyone_is_preempted() -> None:
    world = GrowingWorld(growing_machine(pages=10))
    world.offer(1, incoming("kept", 16, max_new_tokens=1))
    world.run()
    world.offer(2, incoming("a", 8, max_new_tokens=25))
    world.run()
    served(world)
    assert of(NodesEvicted, world)
    assert not decisions(world, KindId.PREEMPT)


@pytest.mark.parametrize("swap_bytes", [0, MIB], ids=["recompute", "swap"])
def test_growth_preempts_the_cheapest_and_it_goes_on_where_it_stood(swap_bytes: int) -> None:
    cheap_swap = {"costs": tuple((metric, 1) for metric, _ in growing_machine().start.costs)}
    world = GrowingWorld(growing_machine(pages=8, swap_bytes_max=swap_bytes, **cheap_swap))
    world.offer(1, incoming("old", 12, max_new_tokens=17))
    world.offer(2, incoming("young", 8, max_new_tokens=17))
    world.run()
    served(world)
    left = of(StreamPreempted, world)
    assert left
    assert {one.swapped for one in left} == {swap_bytes > 0}
    assert len(of(SwapBegun, world)) == (len(left) if swap_bytes else 0)
    assert len(of(SwapReleased, world)) == len(of(SwapBegun, world))
    resumed = decisions(world, KindId.RESUME)
    assert len(resumed) == len(left)
    if swap_bytes:
        assert of(RowsRestored, world)
        values = [o.values for o in of(Outcome, world) if o.decision_kind == KindId.PREEMPT]
        assert [rows > 0 for _, _, rows in values] == [True] * len(left)


def test_a_stream_with_higher_priority_is_never_preempted() -> None:
    world = GrowingWorld(growing_machine(pages=8))
    world.offer(1, incoming("urgent", 8, max_new_tokens=17, priority=1))
    world.offer(2, incoming("other", 8, max_new_tokens=17))
    world.run()
    served(world)
    assert {one.stream for one in of(StreamPreempted, world)} == {2}
    ways = [
        msgspec.msgpack.decode(d.choice, type=PreemptChoice)
        for d in decisions(world, KindId.PREEMPT)
    ]
    assert all(stream == 2 for way in ways for stream, _ in way.victims)


def test_a_fifth_request_waits_and_nobody_is_preempted_for_it() -> None:
    """Case 14: a pool of 100, four streams hold 22 each, a fifth needs 25."""
    world = GrowingWorld(growing_machine(pages=100))
    for number in range(1, 5):
        world.offer(number, incoming(f"r{number}", 88, max_new_tokens=1))
    world.offer(5, incoming("fifth", 100, max_new_tokens=1))
    assert world.machine.view.queue(9) == [5]
    world.run()
    served(world)
    assert not of(StreamPreempted, world)


def test_new_work_waits_behind_a_preempted_stream_and_a_higher_priority_does_not() -> None:
    world = GrowingWorld(growing_machine(pages=8))
    world.offer(1, incoming("old", 12, max_new_tokens=17))
    world.offer(2, incoming("young", 8, max_new_tokens=17))
    while not of(StreamPreempted, world):
        world.run(1)
    (gone,) = of(StreamPreempted, world)
    world.offer(3, incoming("new", 4, max_new_tokens=1))
    view = world.machine.view
    assert view.queue(9) == [gone.stream, 3]
    assert 3 not in view.running
    world.run()
    served(world)
    order = [one.stream for one in of(PagesAdopted, world)]
    assert order.index(3) > max(place for place, s in enumerate(order) if s == gone.stream)


def two_that_outgrow_the_pool(until: type[msgspec.Struct]) -> tuple[WorkerMachine, GrowingWorld]:
    """A worker with room to swap and two streams, run up to the first fact of a kind."""
    machine = growing_machine(
        pages=8, swap_bytes_max=MIB, costs=tuple((m, 1) for m, _ in growing_machine().start.costs)
    )
    world = GrowingWorld(machine)
    world.offer(1, incoming("old", 12, max_new_tokens=17))
    world.offer(2, incoming("young", 8, max_new_tokens=17))
    while not of(until, world):
        world.run(1)
    return machine, world


def test_a_swap_that_failed_is_computed_again() -> None:
    machine, world = two_that_outgrow_the_pool(SwapBegun)
    (begun,) = of(SwapBegun, world)
    assert machine.swapped_out(begun.stream, 0, 5, world.now_us)
    world.transactions += machine.decider.drain()
    assert of(StreamPreempted, world) == [StreamPreempted(begun.stream, False)]
    world.run()
    served(world)


def test_cancelling_a_preempted_stream_gives_its_host_memory_back() -> None:
    machine, world = two_that_outgrow_the_pool(StreamPreempted)
    (gone,) = of(StreamPreempted, world)
    assert machine.view.swapped_rows(gone.stream)
    world._later(world.worker.cancel(gone.stream, 1, world.now_us))
    assert not machine.view.preempted
    world.run()
    assert {e.reason for e in world.ended} == {FinishReason.LENGTH, FinishReason.CANCELLED}


def test_a_lone_stream_that_can_never_grow_ends_with_an_error_and_others_go_on() -> None:
    world = GrowingWorld(growing_machine(pages=6))
    world.offer(1, incoming("too long", 8, max_new_tokens=100))
    world.run()
    assert [ended.reason for ended in world.ended] == [FinishReason.ERROR]
    world.offer(2, incoming("next", 8, max_new_tokens=4))
    world.run()
    assert world.ended[-1].reason is FinishReason.LENGTH


def test_streams_may_not_outgrow_their_promise_where_nobody_decides_who_gives_way() -> None:
    without = tuple(name for name in SHARING if not name.startswith("preempt/"))
    with pytest.raises(BadInputError, match="evaluators of preempt and resume"):
        growing_machine(evaluators=without)


def random_world(seed: int, **changes: Any) -> GrowingWorld:
    """Requests of random lengths and priorities; what comes due comes between their arrivals."""
    draw = random.Random(seed)
    costs = tuple((m, draw.choice([1, 1_000])) for m, _ in growing_machine().start.costs)
    fields: dict[str, Any] = {"pages": 24, "swap_bytes_max": draw.choice([0, 40_000, MIB])}
    world = GrowingWorld(growing_machine(**{**fields, "costs": costs, **changes}))
    tenants = ("", *(tenant for tenant, _ in world.machine.start.quotas))
    for number in range(1, 40):
        request = incoming(
            f"r{number}",
            draw.randrange(1, 40),
            name=draw.choice(["x", "y", f"own{number}"]),
            max_new_tokens=draw.randrange(1, 50),
            priority=draw.randrange(2),
            tenant=draw.choice(tenants),
        )
        world.offer(number, request)
        world.run(draw.randrange(6))
    world.run()
    return world


@pytest.mark.parametrize("seed", range(12))
def test_whatever_arrives_every_request_ends_and_no_page_is_lost(seed: int) -> None:
    world = random_world(seed)
    assert len(world.ended) == 39
    served(world)


def test_the_random_worlds_swap_recompute_evict_and_give_way_themselves() -> None:
    worlds = [random_world(seed) for seed in range(6)]
    ways = {one.swapped for world in worlds for one in of(StreamPreempted, world)}
    assert ways == {True, False}
    reasons = {d.reason for world in worlds for d in decisions(world, KindId.PREEMPT)}
    assert reasons == {16, 18}
    assert any(of(NodesEvicted, world) for world in worlds)


def test_a_view_in_the_middle_of_preemption_reads_back() -> None:
    world = GrowingWorld(growing_machine(pages=8, swap_bytes_max=MIB))
    world.offer(1, incoming("old", 12, max_new_tokens=17))
    world.offer(2, incoming("young", 8, max_new_tokens=17))
    for _ in range(60):
        world.run(1)
        state = world.machine.view.encode()
        assert WorkerView.decode(world.machine.start, state).encode() == state
