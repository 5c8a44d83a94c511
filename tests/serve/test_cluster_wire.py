"""The cluster's messages as bytes, and what a gateway makes of them without any socket."""

from __future__ import annotations

import msgspec
import pytest

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.router import Answer, WorkerObserved
from pagetrail.catalog.kinds.worker import FinishReason
from pagetrail.controlplane.cluster import wire
from pagetrail.engine.sampling import SamplingParams
from pagetrail.engine.streams import Generation
from pagetrail.gateway.requests import Handle, NewTokens, Submission
from pagetrail.gateway.resident import ResidentDigests

SEEN = WorkerObserved("worker-0", 3, 7, b"f" * 32, True, 1_024, 0, 10, 4, 99, (1, 2), (0, 0))
MESSAGES: list[wire.Message] = [
    wire.Hello("worker-0", 3, b"f" * 32, "tiny", 16, 128, 4_096, 1_024),
    wire.Welcome("gateway", 2, 200),
    wire.Beat(SEEN, 5, (b"k" * 32,), (b"c" * 32,), False, 42, True),
    wire.Resync(3),
    wire.OfferWire(2, 1, 1, "worker-0", 3, "req", "", None, 0, 0, (1, 2), 2, 8, 1, b"x"),
    wire.CancelWire(2, 1, 1),
    wire.AnswerWire(2, 1, 1, Answer.ACCEPTED),
    wire.TokensWire(2, 1, 1, 0, 4, (9,), b"", b"", FinishReason.STOP),
    wire.EndedWire(2, 1, 1, FinishReason.LENGTH, 16, 0, 5, ""),
    wire.Alive("worker-0", 3),
    wire.Rejected("another model"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: type(message).__name__)
def test_every_message_reads_back_as_it_was(message: wire.Message) -> None:
    parts = wire.encode(message)
    assert parts[0] == wire.TOPIC
    assert wire.decode(parts) == message


def test_every_kind_of_message_has_a_tag_of_its_own() -> None:
    kinds = wire.Message.__args__  # type: ignore[attr-defined]
    assert {type(message) for message in MESSAGES} == set(kinds)
    assert len({kind.__struct_config__.tag for kind in kinds}) == len(kinds)


@pytest.mark.parametrize("parts", [[], [b"other/topic", b"x"], [b"pagetrail/cluster/2", b"x"]])
def test_another_topic_is_handed_on_untouched(parts: list[bytes]) -> None:
    assert wire.decode(parts) is None


@pytest.mark.parametrize(
    "parts",
    [
        [wire.TOPIC],
        [wire.TOPIC, b""],
        [wire.TOPIC, b"\xc1"],
        [wire.TOPIC, msgspec.msgpack.encode([99, "no such tag"])],
        [wire.TOPIC, msgspec.msgpack.encode([7, 2, 1, 1, 250])],  # no such answer
        [wire.TOPIC, wire.encode(MESSAGES[0])[1][:-1]],
        [wire.TOPIC, b"x", b"y"],
        [wire.TOPIC, b"\0" * (wire.MESSAGE_BYTES_MAX + 1)],
    ],
)
def test_a_malformed_message_of_ours_is_refused(parts: list[bytes]) -> None:
    with pytest.raises(BadInputError, match="cluster message"):
        wire.decode(parts)


def test_a_message_above_the_bound_is_not_sent() -> None:
    with pytest.raises(BadInputError, match="at most"):
        wire.encode(wire.Rejected("x" * wire.MESSAGE_BYTES_MAX))


# ---- what lies on the workers' devices


def beat(events: int, kept: list[bytes], cut: list[bytes], *, whole: bool = False) -> wire.Beat:
    return wire.Beat(SEEN, events, tuple(kept), tuple(cut), whole, 0, True)


def test_the_resident_prefix_is_found_and_follows_what_is_kept_and_cut() -> None:
    resident = ResidentDigests(16)
    pages = (b"1", b"2", b"3")
    assert resident.beat(beat(2, [b"1", b"2"], [], whole=True))
    assert resident.tokens(pages, ["worker-0", "worker-1"]) == {"worker-0": 32, "worker-1": 0}
    assert resident.beat(beat(4, [b"3"], [b"2"]))
    resident.beat(beat(5, [b"2"], []))
    assert resident.tokens(pages, ["worker-0"]) == {"worker-0": 48}
    resident.forget("worker-0")
    assert resident.tokens(pages, ["worker-0"]) == {"worker-0": 0}


def test_a_missed_heartbeat_is_noticed_and_a_whole_one_heals_it() -> None:
    resident = ResidentDigests(16)
    assert not resident.beat(beat(1, [b"1"], []))  # nothing known before it
    assert resident.beat(beat(1, [b"1"], [], whole=True))
    assert not resident.beat(beat(9, [b"2"], []))
    assert resident.beat(beat(9, [b"1", b"2"], [], whole=True))
    assert resident.tokens((b"1", b"2"), ["worker-0"]) == {"worker-0": 32}


# ---- tokens reach a client once, in order, without gaps


def handle(samples: int = 1) -> Handle:
    generation = Generation(SamplingParams(), (), (), False, 0, 8)
    submission = Submission("req", "", None, 0, (5, 6), generation, samples)
    return Handle(1, submission, lambda: None, [[] for _ in range(samples)])


def tokens(
    first: int, *ids: int, sample: int = 0, finish: FinishReason | None = None
) -> wire.TokensWire:
    return wire.TokensWire(1, 1, 1, sample, first, ids, b"", b"", finish)


def test_tokens_that_a_client_has_already_are_not_sent_again() -> None:
    request = handle()
    assert request.take(tokens(0, 7, 8)) == NewTokens(0, (7, 8), b"", b"", None)
    assert request.take(tokens(0, 7, 8)) is None
    assert request.take(tokens(1, 8, 9)) == NewTokens(0, (9,), b"", b"", None)
    assert request.boundary == (7, 8, 9)


def test_tokens_after_a_gap_are_not_sent_and_leave_the_request_incomplete() -> None:
    request = handle()
    request.take(tokens(0, 7))
    assert request.take(tokens(2, 9, finish=FinishReason.STOP)) is None
    assert not request.complete
    assert request.boundary == (7,)


def test_a_request_is_complete_when_every_sample_has_ended() -> None:
    request = handle(samples=2)
    request.take(tokens(0, 7, finish=FinishReason.LENGTH))
    assert not request.complete
    request.take(tokens(0, 8, sample=1, finish=FinishReason.STOP))
    assert request.complete
    assert request.boundary == ()  # several samples are drawn again from the start


def test_a_sample_that_was_not_asked_for_is_ignored() -> None:
    assert handle().take(tokens(0, 7, sample=3)) is None


def test_the_next_attempt_takes_what_was_sent_as_given() -> None:
    request = handle()
    request.take(tokens(0, 7, 8))
    request.worker, request.attempt = "worker-1", 2
    offer = request.offer(router_epoch=4, worker_epoch=9)
    assert (offer.router_epoch, offer.attempt, offer.worker_epoch) == (4, 2, 9)
    assert (offer.tokens, offer.prompt_tokens, offer.max_new_tokens) == ((5, 6, 7, 8), 2, 6)
