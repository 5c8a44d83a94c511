"""Every row of the machines' tables in docs/serving.md is gone through; no step is without one.

Most rows are reached by the scenarios, which are whole clusters under faults. The rest is reached
by plain calls here: no cluster of sound processes comes there.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cluster_parts import EVALUATORS, ROOMY, incoming, make_router, make_worker, offer, seen
from growing_parts import GrowingWorld, growing_machine
from table_rows import Row, Rows, documented

from pagetrail.catalog.envelope import Transaction, WireFact
from pagetrail.catalog.facts import fact
from pagetrail.catalog.index import StoredPart
from pagetrail.catalog.kinds.content import Tier, WorkerEpoch
from pagetrail.catalog.kinds.router import Answer
from pagetrail.catalog.kinds.worker import FinishReason, SwapBegun
from pagetrail.controlplane.cluster.messages import Ended
from pagetrail.controlplane.cluster.simulator.scenario import parse
from pagetrail.controlplane.cluster.simulator.world import World
from pagetrail.controlplane.log.committer import open_committer
from pagetrail.controlplane.log.transactions import encode_transactions
from pagetrail.controlplane.tiers.breaker import Breaker
from pagetrail.controlplane.tiers.restoring import ChunkToRead, Restoring

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))
MIB = 1024 * 1024


def an_attempt_fails(path: Path) -> None:
    for accepted in (False, True):
        routed = make_router(seen("a"), seen("b"))
        routed.machine.received(incoming("r"), 0)
        if accepted:
            routed.machine.answered(1, 1, Answer.ACCEPTED)
        routed.machine.ended(Ended(1, 1, FinishReason.ERROR, 0, 0, 0))


def a_worker_that_is_not_known_expires(path: Path) -> None:
    make_router().machine.expired("a", 1)


def an_offer_of_another_epoch(path: Path) -> None:
    make_worker(epoch=2).offered(offer(1, incoming("r"), epoch=1), 0)


def a_request_that_never_fits(path: Path) -> None:
    worker = make_worker(pages=10)
    worker.offered(offer(1, incoming("large", 80)), 0)
    worker.admit_waiting(0)


def nothing_will_make_room(path: Path) -> None:
    durable_only = "residency/value-density@1"
    evaluators = [name for name in EVALUATORS if not name.startswith("residency/")]
    worker = make_worker(pages=4, tiers=(Tier.SSD,), evaluators=(*evaluators, durable_only))
    worker.offered(offer(1, incoming("r", 16)), 0)
    worker.admit_waiting(0)
    worker.advanced(1, 16)
    worker.done(1, FinishReason.STOP, ROOMY)
    worker.captured(1, 16_384, 1)
    worker.offered(offer(2, incoming("s", 16)), 0)
    worker.admit_waiting(0)
    worker.starved()


def a_prompt_too_long_to_keep_goes_to_memory(path: Path) -> None:
    world = GrowingWorld(growing_machine(kept_columns_max=2, ram_bytes_max=MIB))
    world.offer(1, incoming("long", 16, max_new_tokens=1))
    world.run()


def a_lone_stream_outgrows_its_worker(path: Path) -> None:
    world = GrowingWorld(growing_machine(pages=6))
    world.offer(1, incoming("long", 8, max_new_tokens=100))
    world.run()


def a_stream_gives_way_and_is_computed_again(path: Path) -> None:
    world = GrowingWorld(growing_machine(pages=8))
    world.offer(1, incoming("old", 12, max_new_tokens=17))
    world.offer(2, incoming("young", 8, max_new_tokens=17))
    world.run()


def a_stream_is_cancelled_while_it_is_swapped_out(path: Path) -> None:
    costs = tuple((metric, 1) for metric, _ in growing_machine().start.costs)
    world = GrowingWorld(growing_machine(pages=8, swap_bytes_max=MIB, costs=costs))
    world.offer(1, incoming("old", 12, max_new_tokens=17))
    world.offer(2, incoming("young", 8, max_new_tokens=17))
    while not (begun := [one for one in world.facts() if isinstance(one, SwapBegun)]):
        world.run(1)
    world.machine.cancelled(begun[0].stream, 1)


def a_tier_fails_until_its_breaker_has_seen_everything(path: Path) -> None:
    breaker = Breaker(failures_max=1, cool_down_ns=10).failed(0)
    breaker.succeeded()
    breaker.failed(1)
    probing, _ = breaker.ask(10)
    probing.ask(11)
    probing.failed(12)


def reads_come_back_in_every_way(path: Path) -> None:
    part = StoredPart(b"", 0, 0, b"", 4, "")
    chunks = tuple(ChunkToRead(b"", 4 * place, 4 * place + 4, (part,)) for place in range(3))
    for answers in (
        [(0, False, True)],
        [(1, False, True), (0, True, False)],
        [(1, False, False), (0, False, True)],
        [(2, False, False), (1, True, False), (0, True, False)],
    ):
        window = 1 if len(answers) == 1 else len(answers)
        machine = Restoring(1, Tier.SSD, 0, 12, chunks, window)
        machine.begin()
        for place, verified, corrupt in answers:
            machine.arrived(place, verified, corrupt)


def a_client_sends_what_is_not_next(path: Path) -> None:
    committer, _ = open_committer(path)
    said: tuple[WireFact, ...] = (fact(WorkerEpoch("w", 1, "")),)
    for epoch, client_seq in ((1, 0), (1, 2), (2, 0), (1, 1)):
        payload = encode_transactions([Transaction(client_seq, (), (), said)])
        committer.admit("w", epoch, payload)
    committer.commit()
    committer.commit()
    committer.close()


BY_PLAIN_CALLS: tuple[Callable[[Path], None], ...] = (
    an_attempt_fails,
    a_worker_that_is_not_known_expires,
    an_offer_of_another_epoch,
    a_request_that_never_fits,
    nothing_will_make_room,
    a_prompt_too_long_to_keep_goes_to_memory,
    a_lone_stream_outgrows_its_worker,
    a_stream_gives_way_and_is_computed_again,
    a_stream_is_cancelled_while_it_is_swapped_out,
    a_tier_fails_until_its_breaker_has_seen_everything,
    reads_come_back_in_every_way,
    a_client_sends_what_is_not_next,
)


def test_every_row_of_every_table_is_gone_through_and_no_step_is_without_a_row(
    tmp_path: Path,
) -> None:
    rows = Rows()
    for path in SCENARIOS:
        settings, _, _ = parse(path.read_text(encoding="utf-8"))
        with pytest.MonkeyPatch.context() as patch:
            rows.watch(patch)
            assert World(settings).run().violation == "", path.stem
    for number, happen in enumerate(BY_PLAIN_CALLS):
        with pytest.MonkeyPatch.context() as patch:
            rows.watch(patch)
            happen(tmp_path / str(number))
    wanted = documented()
    assert _text(wanted - rows.seen) == "", "documented, and nothing goes there"
    assert _text(rows.seen - wanted) == "", "gone through, and not documented"


def _text(rows: set[Row]) -> str:
    return "\n".join(" | ".join(row) for row in sorted(rows))
