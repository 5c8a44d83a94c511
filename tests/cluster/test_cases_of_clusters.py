"""What went wrong in other engines' clusters, as small inputs with the right answer.

Numbered as in the list of cases; those about one machine alone stand with its other tests:

    14  tests/cluster/test_growth_and_preemption.py, a fifth request waits
    16  tests/pages/test_owner_vectors.py, at most what is allocated is used
    20  tests/tiers/test_breaker.py
    22  tests/tiers/test_restoring.py, test_case_22_...
    23  tests/tiers/test_directory_store.py, test_case_23_...
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from cluster_parts import incoming, make_router, prompt, seen
from growing_parts import GrowingWorld, growing_machine

from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.identity import content_id
from pagetrail.catalog.kinds.content import Tier
from pagetrail.catalog.kinds.router import Answer, WorkerObserved
from pagetrail.catalog.kinds.worker import FinishReason, StreamFinished, StreamPreempted
from pagetrail.controlplane.cluster import wire
from pagetrail.controlplane.cluster.messages import Ended, Offer, Verdict
from pagetrail.controlplane.cluster.simulator.faults import Fault, FaultKind
from pagetrail.controlplane.cluster.simulator.setting import SimSettings
from pagetrail.controlplane.cluster.simulator.stores import Mood, Stores
from pagetrail.controlplane.cluster.simulator.timeline import Draw, Timeline
from pagetrail.controlplane.cluster.simulator.world import World
from pagetrail.controlplane.log.cursor import StreamCursor
from pagetrail.controlplane.log.frames import encode_frame, encode_runs
from pagetrail.controlplane.log.wire import Head
from pagetrail.controlplane.tiers.breaker import Breaker, BreakerState
from pagetrail.controlplane.tiers.restoring import ChunkToRead, DropLocal, Restored, Restoring
from pagetrail.gateway.resident import ResidentDigests
from pagetrail.simulate import simulate

QUIET = SimSettings(seed=3, simulated_us=3_000_000, workers=3, requests_per_s=15, faults=())


def test_case_15_a_stream_that_gave_way_goes_on_and_ends_once() -> None:
    world = GrowingWorld(growing_machine(pages=8))
    world.offer(1, incoming("old", 12, max_new_tokens=17))
    world.offer(2, incoming("young", 8, max_new_tokens=17))
    while not [one for one in world.facts() if isinstance(one, StreamPreempted)]:
        world.run(1)
    assert not world.ended
    world.run()
    finished = [one.stream for one in world.facts() if isinstance(one, StreamFinished)]
    assert sorted(finished) == [1, 2]
    assert sorted((one.number, one.reason) for one in world.ended) == [
        (1, FinishReason.LENGTH),
        (2, FinishReason.LENGTH),
    ]


def test_case_20_three_failures_open_the_breaker_and_one_good_probe_closes_it() -> None:
    breaker = Breaker()
    for _ in range(3):
        breaker = breaker.failed(0)
    assert breaker.state is BreakerState.OPEN
    assert not breaker.ask(breaker.cool_down_ns - 1)[1]
    probing, allowed = breaker.ask(breaker.cool_down_ns)
    assert allowed
    assert not probing.ask(breaker.cool_down_ns)[1], "one probe, not two"
    assert probing.succeeded().state is BreakerState.CLOSED


def test_case_22_a_read_that_brings_another_keys_bytes_is_a_miss() -> None:
    text = prompt(8)
    chunks = tuple(
        ChunkToRead(prefix, 4 * place, 4 * place + 4, ())
        for place, prefix in enumerate(text.chunks)
    )
    machine = Restoring(1, Tier.SSD, 0, 8, chunks, 1)
    machine.begin()
    assert machine.arrived(0, verified=False, corrupt=True) == [DropLocal(0), Restored(0)]
    with pytest.raises(InvariantError):
        machine.arrived(0, verified=True)  # the read that stalled comes back after all


def test_case_23_a_dead_workers_late_write_changes_nothing_that_was_written_since() -> None:
    timeline = Timeline()
    stores = Stores(timeline, Draw(1, "stores"))
    key = ("", int(Tier.OBJECT), "chunk/worker-0.1.1")
    stores.become(Mood.LATE)
    assert not stores.put("worker-0", key, content_id(b"old")), "no receipt, and still on its way"
    stores.become(Mood.SOUND)
    newer = ("", int(Tier.OBJECT), "chunk/worker-0.2.1")  # another attempt, another key
    assert stores.put("worker-0", newer, content_id(b"new"))
    timeline.run_until(10_000_000)
    assert stores.get("worker-0", newer) == content_id(b"new")


def test_case_25_a_late_release_of_attempt_one_leaves_attempt_twos_booking() -> None:
    routed = make_router(seen("a"), seen("b", queue_ns=1_000))
    routed.machine.received(incoming("r"), 0)
    routed.machine.answered(1, 1, Answer.DECLINED)
    booked = dict(routed.view.bookings)
    assert list(booked) == [(1, 2)]
    routed.machine.ended(Ended(1, 1, FinishReason.ERROR, 0, 0, 0))
    routed.machine.answered(1, 1, Answer.TIMED_OUT)
    assert routed.view.bookings == booked


def _beat(epoch: int, kept: bytes, observation: int = 1) -> wire.Beat:
    report: WorkerObserved = seen("w", observation, worker_epoch=epoch)
    return wire.Beat(report, 1, (kept,), (), whole=True, position=0, settled=True)


def test_case_26_after_a_restart_only_what_the_new_epoch_stores_is_there() -> None:
    routed = make_router()
    resident = ResidentDigests(4)
    accepted = []
    for beat in (_beat(1, b"X", 7), _beat(2, b"Y", 0), _beat(1, b"X", 8)):
        if routed.machine.heartbeat(beat.seen):  # what the gateway asks before it believes
            accepted.append(beat.seen.worker_epoch)
            resident.beat(beat)
    assert accepted == [1, 2]
    assert resident.tokens((b"Y",), ["w"]) == {"w": 4}
    assert resident.tokens((b"X",), ["w"]) == {"w": 0}


def test_case_27_a_gap_is_fetched_from_the_cursor_and_nothing_is_dropped_meanwhile() -> None:
    frames, chain = [], bytes(32)
    for seq in range(50, 60):
        frame = encode_frame(
            encode_runs([]),
            flags=0,
            fact_count=1,
            transaction_count=1,
            writer_epoch=1,
            first_seq=seq,
            t_us=seq,
            previous_chain=chain,
        )
        frames.append(frame)
        chain = frame.chain
    cursor = StreamCursor(50, bytes(32))
    for frame in frames[:5]:
        assert cursor.take(frame)
    assert not cursor.take(frames[7]), "57 does not follow 54"
    cursor.hear(Head(1, 60, chain))
    assert cursor.behind
    assert cursor.next_seq == 55, "fetched is from here"
    assert [cursor.take(frame) for frame in frames[4:]] == [False] + [True] * 5
    assert not cursor.behind


def test_case_28_a_worker_silent_past_its_grace_is_known_again_when_it_speaks() -> None:
    routed = make_router(seen("a"))
    routed.machine.expired("a", 1)
    assert routed.machine.received(incoming("r"), 0)[1] == []
    assert routed.machine.heartbeat(seen("a", 2)), "the same epoch"
    assert [one.worker for one in routed.machine.retry_waiting() if isinstance(one, Offer)] == ["a"]


def test_case_28_an_idle_worker_that_stood_still_serves_again() -> None:
    fault = Fault(500_000, FaultKind.PAUSE_WORKER, "worker-0", 2_000_000)
    report = World(msgspec.structs.replace(QUIET, workers=1, faults=(fault,))).run()
    assert report.violation == ""
    assert report.verdicts["completed"] > 0
    assert Verdict.NO_WORKER.name.lower() not in report.verdicts


def test_case_29_what_a_run_recorded_gives_the_run_byte_for_byte(tmp_path: Path) -> None:
    first, second = World(QUIET), World(QUIET)
    assert first.run() == second.run()
    assert [read.frame.raw for read in first.reads] == [read.frame.raw for read in second.reads]
    report = simulate(QUIET, tmp_path)
    assert report.violation == ""
    assert report.decisions > 4 * report.requests
