"""The worker machine by plain calls: a test for every row of its table, and for what may not be."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from cluster_parts import ROOMY, facts, incoming, make_worker, offer

from pagetrail.catalog.envelope import Fact, Op
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.identity import content_id, salted_root
from pagetrail.catalog.index import LiveIndex
from pagetrail.catalog.kinds.content import Tier
from pagetrail.catalog.kinds.decision import Outcome
from pagetrail.catalog.kinds.router import Answer
from pagetrail.catalog.kinds.worker import (
    AdoptionUndone,
    FinishReason,
    NodeDurable,
    NodesEvicted,
    PagesAdopted,
    PromptKept,
    RequestDropped,
    RequestQueued,
    RowsAdvanced,
    RowsRestored,
    StreamFinished,
)
from pagetrail.controlplane.cluster.messages import (
    Answered,
    Capture,
    Ended,
    Incoming,
    Restore,
    Run,
    Stop,
    WorkerEffect,
)
from pagetrail.controlplane.cluster.publisher import Publisher, Stored
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.policy.inputs import AdmitReason
from pagetrail.controlplane.view import WorkerView

F = TypeVar("F", bound=msgspec.Struct)

TIERED = (
    "routing/min-ttft@1",
    "admission/reserve@1",
    "residency/value-density@1",
    "restore/min-completion@1",
    "checkpoint/expected-value@1",
    "keep/within-limits@1",
)


def start(
    worker: WorkerMachine, number: int, request: Incoming, now_us: int = 0
) -> list[WorkerEffect]:
    """Offer a request and admit what can be; the effects of the admission."""
    worker.offered(offer(number, request), now_us)
    return worker.admit_waiting(now_us)


def finish(worker: WorkerMachine, stream: int) -> list[WorkerEffect]:
    """All rows of a running stream are written, and it is done."""
    missing = worker.prompt(stream).tokens - worker.view.owner.rows(stream)
    worker.advanced(stream, missing)
    return worker.done(stream, FinishReason.LENGTH, ROOMY)


def serve(worker: WorkerMachine, number: int, request: Incoming) -> list[WorkerEffect]:
    """One request from its offer to its end."""
    (run,) = start(worker, number, request)
    assert isinstance(run, Run)
    return finish(worker, run.stream)


def written(worker: WorkerMachine) -> list[msgspec.Struct]:
    return facts(worker.decider.drain())


def of(kind: type[F], found: list[msgspec.Struct]) -> list[F]:
    return [fact for fact in found if isinstance(fact, kind)]


# ---------------------------------------------------------------- the table


def test_an_offer_for_another_epoch_or_worker_is_declined_and_writes_nothing() -> None:
    worker = make_worker(epoch=2)
    written(worker)
    effects = worker.offered(offer(1, incoming("r"), epoch=1), 5)
    assert effects == [Answered(1, 1, Answer.DECLINED)]
    assert written(worker) == []


def test_an_offer_is_accepted_and_queued() -> None:
    worker = make_worker()
    written(worker)
    effects = worker.offered(offer(1, incoming("r")), 5)
    assert effects == [Answered(1, 1, Answer.ACCEPTED)]
    (queued,) = written(worker)
    assert isinstance(queued, RequestQueued)
    assert (queued.stream, queued.request, queued.arrival_us) == (1, "r", 5)


def test_a_duplicate_offer_is_acknowledged_again_and_changes_nothing() -> None:
    worker = make_worker()
    worker.offered(offer(1, incoming("r")), 5)
    before = worker.view.encode()
    written(worker)
    effects = worker.offered(offer(1, incoming("r")), 9)
    assert effects == [Answered(1, 1, Answer.ACCEPTED)]
    assert written(worker) == []
    assert worker.view.encode() == before


def test_another_attempt_at_the_same_request_is_another_stream() -> None:
    worker = make_worker()
    worker.offered(offer(1, incoming("r")), 5)
    worker.offered(offer(1, incoming("r"), attempt=2), 6)
    assert worker.view.queue(10) == [1, 2]
    assert worker.cancelled(1, 1)[0] == ended(1, 1, FinishReason.CANCELLED)
    assert worker.view.queue(10) == [2]


def test_waiting_and_admitted_with_nothing_to_restore_it_runs() -> None:
    worker = make_worker()
    assert start(worker, 1, incoming("r", 8)) == [Run(1, 0)]
    assert worker.view.owner.promised(1) == (2,)


def test_waiting_and_never_fitting_it_is_refused_and_smaller_ones_behind_it_run() -> None:
    worker = make_worker(pages=10)
    worker.offered(offer(1, incoming("large", 80)), 0)
    worker.offered(offer(2, incoming("small", 8)), 0)
    effects = worker.admit_waiting(0)
    assert effects == [ended(1, 1, FinishReason.ERROR), Run(2, 0)]
    assert [drop.stream for drop in of(RequestDropped, written(worker))] == [1]


def test_waiting_and_cancelled_it_is_dropped() -> None:
    worker = make_worker(lanes=1)
    start(worker, 1, incoming("r"))
    start(worker, 2, incoming("s"))
    written(worker)
    assert worker.cancelled(2, 1) == [ended(2, 1, FinishReason.CANCELLED)]
    assert [drop.stream for drop in of(RequestDropped, written(worker))] == [2]
    assert worker.cancelled(2, 1) == []


def test_running_and_cancelled_its_pages_return_when_the_device_has_let_go() -> None:
    worker = make_worker()
    free = worker.view.owner.available()
    start(worker, 1, incoming("r"))
    assert worker.cancelled(1, 1) == [Stop(1)]
    assert worker.view.owner.available() != free
    assert worker.cancelled(1, 1) == [], "once is enough"
    assert worker.closed(1) == [ended(1, 1, FinishReason.CANCELLED)]
    assert worker.view.owner.available() == free


def test_running_and_done_it_is_kept_and_ends() -> None:
    worker = make_worker()
    request = incoming("r", 8)
    (effect,) = serve(worker, 1, request)
    assert effect == ended(1, 1, FinishReason.LENGTH)
    found = written(worker)
    assert len(of(PromptKept, found)) == 1
    assert of(RowsAdvanced, found) == [RowsAdvanced(((1, 8),))]
    assert of(StreamFinished, found) == [StreamFinished(1, FinishReason.LENGTH)]
    assert worker.resident_tokens(request.prompt.pages) == 8


def test_a_kept_prompt_is_adopted_but_never_its_last_token() -> None:
    worker = make_worker()
    serve(worker, 1, incoming("r", 8, name="same"))
    written(worker)
    (run,) = start(worker, 2, incoming("s", 8, name="same"))
    assert run == Run(2, 4)
    (adopted,) = of(PagesAdopted, written(worker))
    assert adopted.columns == 1


def test_running_and_done_with_tiers_whole_chunks_are_captured_before_it_ends() -> None:
    worker = make_worker(tiers=(Tier.SSD,), evaluators=TIERED)
    (capture,) = serve(worker, 1, incoming("r", 10))
    assert capture == Capture(1, (0, 1))
    (effect,) = worker.captured(1, 8_192, 77)
    assert effect == ended(1, 1, FinishReason.LENGTH)
    outcomes = [fact for fact in of(Outcome, written(worker)) if fact.values == (77, 8_192)]
    assert [fact.decision_kind for fact in outcomes] == [KindId.CHECKPOINT]


def test_an_admitted_stream_is_restored_and_runs_from_the_last_verified_row() -> None:
    published = Published()
    published.serve(incoming("r", 12, name="same"))
    other = make_worker(tiers=(Tier.SSD, Tier.OBJECT), evaluators=TIERED, catalog=published.index)
    (restore,) = start(other, 1, incoming("s", 12, name="same"))
    assert isinstance(restore, Restore)
    assert (restore.first_token, restore.tokens) == (0, 11)
    assert other.restored(1, 4, restore.tier, 5) == [Run(1, 4)]
    assert of(RowsRestored, written(other)) == [RowsRestored(1, 4, restore.tier)]
    assert other.cached_tokens(1) == 4


def test_restoring_and_cancelled_it_stops_and_what_arrives_later_is_ignored() -> None:
    published = Published()
    published.serve(incoming("r", 12, name="same"))
    other = make_worker(tiers=(Tier.SSD, Tier.OBJECT), evaluators=TIERED, catalog=published.index)
    start(other, 1, incoming("s", 12, name="same"))
    assert other.cancelled(1, 1) == [Stop(1)]
    written(other)
    assert other.restored(1, 8, Tier.OBJECT, 5) == []
    assert written(other) == []
    assert other.closed(1) == [ended(1, 1, FinishReason.CANCELLED)]


def test_starved_streams_end_with_an_error_and_none_while_one_runs() -> None:
    worker = make_worker(pages=4, tiers=(Tier.SSD,), evaluators=TIERED)
    serve(worker, 1, incoming("r", 16))
    worker.captured(1, 16_384, 1)
    worker.offered(offer(2, incoming("s", 16)), 0)
    assert worker.admit_waiting(0) == [], "nothing is durable yet, so nothing can be evicted"
    assert worker.starved() == [ended(2, 1, FinishReason.ERROR)]
    assert worker.view.queue(10) == []
    busy = make_worker(lanes=1)
    start(busy, 1, incoming("r"))
    start(busy, 2, incoming("s"))
    assert busy.starved() == []
    assert busy.view.queue(10) == [2]


# ---------------------------------------------------------------- pressure


def test_what_is_matched_is_adopted_before_anything_is_evicted() -> None:
    worker = make_worker(pages=6)
    serve(worker, 1, incoming("a", 16, name="same"))
    written(worker)
    (run,) = start(worker, 2, incoming("b", 24, name="same"))
    assert run == Run(2, 16)
    found = written(worker)
    assert not of(NodesEvicted, found)
    finish(worker, 2)
    assert worker.view.owner.available() == (0,)
    (run,) = start(worker, 3, incoming("c", 20, name="same"))
    assert run == Run(3, 16), "held while the rest is evicted"
    assert [fact.victims for fact in of(NodesEvicted, written(worker))] == [((2, 1),)]


def test_an_eviction_that_cannot_reach_the_need_undoes_the_adoption() -> None:
    worker = make_worker(pages=8, tiers=(Tier.SSD,), evaluators=TIERED)
    serve(worker, 1, incoming("a", 16, name="same"))
    worker.captured(1, 1, 1)
    free = worker.view.owner.available()
    written(worker)
    assert start(worker, 2, incoming("b", 32, name="other")) == []
    found = written(worker)
    assert len(of(AdoptionUndone, found)) == 1
    assert worker.view.queue(10) == [2]
    assert worker.view.owner.available() == free


def test_waiting_for_the_same_reason_is_decided_once() -> None:
    worker = make_worker(lanes=1)
    start(worker, 1, incoming("a"))
    start(worker, 2, incoming("b"))
    written(worker)
    assert worker.admit_waiting(50) == []
    assert worker.admit_waiting(60) == []
    assert written(worker) == []


def test_a_request_that_waits_for_pages_is_passed_so_often_and_no_more() -> None:
    worker = make_worker(pages=8, lanes=32, bypass_max=2)
    start(worker, 1, incoming("holds", 16))
    written(worker)
    assert start(worker, 2, incoming("large", 32)) == []
    assert start(worker, 3, incoming("one", 4)) == [Run(3, 0)]
    assert start(worker, 4, incoming("two", 4)) == [Run(4, 0)]
    assert worker.view.waiting[2].bypassed == 2
    assert start(worker, 5, incoming("three", 4)) == []
    assert worker.view.queue(10) == [2, 5]
    last = [fact for fact in written(worker) if getattr(fact, "subject", 0) == 5]
    assert [fact.reason for fact in last] == [AdmitReason.BEHIND_WAITING]
    for stream in (1, 3, 4):
        finish(worker, stream)
    assert worker.admit_waiting(9)[0] == Run(2, 0)


# ---------------------------------------------------------------- tenants, publication


def test_a_tenants_state_is_invisible_to_others_on_the_device_and_in_the_catalog() -> None:
    mine, yours = salted_root(b"mine"), salted_root(b"yours")
    published = Published()
    published.serve(incoming("r", 12, name="same", root=mine, tenant="mine"))
    same = incoming("s", 12, name="same", root=mine, tenant="mine").prompt
    assert published.worker.resident_tokens(same.pages) == 12
    for root in (yours, salted_root(None), salted_root(b"")):
        other = incoming("t", 12, name="same", root=root)
        assert published.worker.resident_tokens(other.prompt.pages) == 0
        for chunk in other.prompt.chunks:
            assert published.index.entry(published.worker.start.fingerprint, chunk) is None
        worker = make_worker(
            tiers=(Tier.SSD, Tier.OBJECT), evaluators=TIERED, catalog=published.index
        )
        assert start(worker, 1, other) == [Run(1, 0)]
    worker = make_worker(tiers=(Tier.SSD, Tier.OBJECT), evaluators=TIERED, catalog=published.index)
    (effect,) = start(worker, 1, incoming("u", 12, name="same", root=mine))
    assert isinstance(effect, Restore)


def test_the_tail_behind_the_last_chunk_becomes_durable_with_it() -> None:
    published = Published()
    published.serve(incoming("r", 10))
    marks = of(NodeDurable, published.found)
    assert marks[-1].columns == 3, "two chunks and half a page"
    assert published.worker.view.owner.node(marks[-1].node).durable_columns == 3


def test_chunks_that_the_catalog_has_already_are_durable_without_being_stored_again() -> None:
    published = Published()
    published.serve(incoming("r", 10, name="same"))
    other = make_worker(tiers=(Tier.OBJECT,), evaluators=TIERED, catalog=published.index)
    (effect,) = start(other, 1, incoming("s", 10, name="same"))
    assert isinstance(effect, Restore)
    other.restored(1, effect.tokens - effect.first_token, effect.tier, 5)
    (done,) = finish(other, 1)
    assert done.reason is FinishReason.LENGTH, "nothing to capture"
    assert [mark.columns for mark in of(NodeDurable, written(other))] == [3]


def test_a_views_canonical_form_reads_back_in_the_middle_of_work() -> None:
    worker = make_worker(lanes=1)
    serve(worker, 1, incoming("a", 12, name="same"))
    start(worker, 2, incoming("b", 12, name="same"))
    start(worker, 3, incoming("c", 4))
    state = worker.view.encode()
    again = WorkerView.decode(worker.start, state)
    assert again.encode() == state
    assert again.queue(5) == worker.view.queue(5)
    assert again.queue_ns() == worker.view.queue_ns()


# ---------------------------------------------------------------- helpers that need a catalog


class Published:
    """A worker whose publications show in an index at once, as after their acknowledgement."""

    def __init__(self) -> None:
        self.index = LiveIndex()
        self.worker = make_worker(
            tiers=(Tier.SSD, Tier.OBJECT), evaluators=TIERED, catalog=self.index
        )
        self.publisher = Publisher(self.worker)
        self.found: list[msgspec.Struct] = []
        self._seq = 0

    def serve(self, request: Incoming) -> None:
        (run,) = start(self.worker, 1, request)
        assert isinstance(run, Run)
        (capture,) = finish(self.worker, run.stream)
        assert isinstance(capture, Capture)
        self.worker.captured(run.stream, 1, 1)
        self._show()
        for chunk in capture.chunks:
            prefix = request.prompt.chunks[chunk]
            copies = tuple((int(tier), prefix.hex()) for tier in (Tier.SSD, Tier.OBJECT))
            stored = Stored(content_id(prefix), 4_096, copies)
            self.publisher.publish(request.tenant, request.prompt, chunk, stored)
        self._show()

    def _show(self) -> None:
        for transaction in self.worker.decider.drain():
            self.found += facts([transaction])
            self.index.apply(
                [
                    Fact(
                        self._seq + place,
                        self._seq,
                        self._seq,
                        1,
                        "w",
                        1,
                        transaction.client_seq,
                        place,
                        transaction.causes,
                        Op(wire.op),
                        wire.kind,
                        wire.schema_v,
                        wire.body,
                    )
                    for place, wire in enumerate(transaction.facts)
                ]
            )
            self._seq += len(transaction.facts)
            self.publisher.shown(transaction.client_seq)
        self.found += facts(self.worker.decider.outbox)


def ended(number: int, attempt: int, reason: FinishReason) -> Ended:
    """An end without cached rows or a first token."""
    return Ended(number, attempt, reason, cached_tokens=0, resident_tokens=0, ttft_ns=0)
