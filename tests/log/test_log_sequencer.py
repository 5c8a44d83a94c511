"""The writer's decisions, held against a naive model, and its rebirth from its own frames."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from log_helpers import fact, transaction

from pagetrail.catalog.envelope import CompareAndSet, Transaction, WireFact
from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.facts import KindId, decode_body
from pagetrail.catalog.kinds.system import Refused
from pagetrail.controlplane.log.frames import Frame
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.sequencer import NotTaken, Sequencer, Taken
from pagetrail.controlplane.log.transactions import decode_transactions, encode_transactions
from pagetrail.controlplane.log.wire import Refusal, span_answer

LIMITS = LogLimits(answers=5)


def admit(
    sequencer: Sequencer, transactions: list[Transaction], client: str = "c", epoch: int = 1
) -> Taken | NotTaken:
    payload = encode_transactions(transactions)
    return sequencer.admit(client, epoch, decode_transactions(payload), payload)


def sealed(sequencer: Sequencer) -> Frame:
    frame = sequencer.seal(0)
    assert frame is not None
    return frame


def places(taken: Taken | NotTaken, first: int, count: int) -> list[tuple[int, int, bool]]:
    assert isinstance(taken, Taken), taken
    found = {}
    for span in taken.spans:
        for seq in range(span.first_client_seq, span.first_client_seq + span.count):
            found[seq] = span_answer(span, seq)
    return [found[seq] for seq in range(first, first + count)]


def test_a_gap_is_refused_with_the_expected_number_and_changes_nothing() -> None:
    sequencer = Sequencer(LIMITS)
    admit(sequencer, [transaction(0), transaction(1)])
    answer = admit(sequencer, [transaction(3)])
    assert isinstance(answer, NotTaken)
    assert (answer.reason, answer.expected) == (Refusal.GAP, 2)
    assert sealed(sequencer).header.transaction_count == 2


def test_a_first_message_that_does_not_start_at_zero_is_a_gap() -> None:
    answer = admit(Sequencer(LIMITS), [transaction(4)])
    assert isinstance(answer, NotTaken)
    assert (answer.reason, answer.expected) == (Refusal.GAP, 0)


def test_a_resend_gets_the_first_answer_and_adds_nothing() -> None:
    sequencer = Sequencer(LIMITS)
    message = [transaction(0, (1, 2)), transaction(1, (3,)), transaction(2, (4, 5))]
    first = places(admit(sequencer, message), 0, 3)
    assert first == [(0, 2, False), (2, 1, False), (3, 2, False)]
    assert places(admit(sequencer, message), 0, 3) == first
    assert places(admit(sequencer, message[1:]), 1, 2) == first[1:]
    assert sealed(sequencer).header.fact_count == 5


def test_a_message_that_overlaps_what_is_known_adds_only_the_rest() -> None:
    sequencer = Sequencer(LIMITS)
    admit(sequencer, [transaction(0, (1,)), transaction(1, (2,))])
    answer = admit(sequencer, [transaction(1, (2,)), transaction(2, (3, 4))])
    assert places(answer, 1, 2) == [(1, 1, False), (2, 2, False)]
    assert [f.client_seq for f in sealed(sequencer).facts()] == [0, 1, 2, 2]


def test_an_older_epoch_drains_before_and_never_after_the_newer_one_appends() -> None:
    sequencer = Sequencer(LIMITS)
    admit(sequencer, [transaction(0)], epoch=4)
    assert sequencer.expected("c", 5) == (0, 4)
    assert isinstance(admit(sequencer, [transaction(1)], epoch=4), Taken)
    admit(sequencer, [transaction(0)], epoch=5)
    answer = admit(sequencer, [transaction(2)], epoch=4)
    assert isinstance(answer, NotTaken)
    assert (answer.reason, answer.expected) == (Refusal.STALE_EPOCH, 5)
    unknown = admit(sequencer, [transaction(0)], epoch=3)
    assert isinstance(unknown, NotTaken)
    assert unknown.reason is Refusal.STALE_EPOCH
    resend = admit(sequencer, [transaction(0), transaction(1)], epoch=4)
    assert resend == Taken((), (0, 2))


def test_a_failed_precondition_leaves_a_refusal_under_the_same_number() -> None:
    sequencer = Sequencer(LIMITS)
    take = CompareAndSet(b"r", None, b"mine")
    steal = CompareAndSet(b"r", None, b"theirs")
    admit(sequencer, [transaction(0, (1, 2), [take])], client="a")
    lost = transaction(0, (3, 4), [steal])
    first = places(admit(sequencer, [lost, transaction(1, (5,))], client="b"), 0, 2)
    assert first == [(2, 1, True), (3, 1, False)]
    assert places(admit(sequencer, [lost], client="b"), 0, 1) == first[:1]
    assert sequencer.register(b"r") == b"mine"
    facts = sealed(sequencer).facts()
    body = decode_body(facts[2].kind, facts[2].schema_v, facts[2].body)
    assert isinstance(body, Refused)
    assert (facts[2].kind, facts[2].client_seq) == (KindId.REFUSED, 0)
    assert (body.register, body.actual) == (b"r", b"mine")


def test_registers_change_together_or_not_at_all() -> None:
    sequencer = Sequencer(LIMITS)
    both = [CompareAndSet(b"a", None, b"1"), CompareAndSet(b"b", b"x", b"2")]
    admit(sequencer, [transaction(0, (1,), both)])
    assert (sequencer.register(b"a"), sequencer.register(b"b")) == (None, None)
    admit(sequencer, [transaction(1, (1,), [CompareAndSet(b"a", None, b"1")])])
    admit(sequencer, [transaction(2, (1,), [CompareAndSet(b"a", b"1", None)])])
    assert sequencer.register(b"a") is None


@pytest.mark.parametrize(
    "facts",
    [
        (),
        (WireFact(2, 99, 1, fact(1).body),),
        (WireFact(1, KindId.REFUSED, 1, fact(1).body),),
        (WireFact(1, 99, -1, fact(1).body),),
    ],
)
def test_malformed_transactions_are_refused_and_change_nothing(facts: tuple[WireFact, ...]) -> None:
    sequencer = Sequencer(LIMITS)
    with pytest.raises(BadInputError):
        admit(sequencer, [transaction(0), Transaction(1, (), (), facts)])
    assert sequencer.seal(0) is None
    assert sequencer.expected("c", 1) == (0, -1)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\x90",
        b"\xc0",
        encode_transactions([transaction(0)]) + b"\xc0",
        encode_transactions([transaction(0)])[:-1],
        # the array length, then client_seq, in longer forms than needed
        b"\xdc\x00\x01" + encode_transactions([transaction(0)])[1:],
        encode_transactions([transaction(0)]).replace(b"\x94\x00", b"\x94\xcc\x00", 1),
        b"\x91\x94\xd1\x7f\xff" + encode_transactions([transaction(0)])[3:],
    ],
)
def test_bytes_in_any_but_the_one_encoding_are_refused(payload: bytes) -> None:
    sequencer = Sequencer(LIMITS)
    with pytest.raises(BadInputError):
        sequencer.admit("c", 1, decode_transactions(payload), payload)


@pytest.mark.parametrize("name", ["", "~writer", "../x", "a/b", "x" * 65, "a b", ".hidden"])
def test_names_that_cannot_be_a_directory_are_refused(name: str) -> None:
    with pytest.raises(BadInputError, match="client name"):
        admit(Sequencer(LIMITS), [transaction(0)], client=name)


def test_old_answers_are_named_as_missing_once_the_bound_is_passed() -> None:
    sequencer = Sequencer(LIMITS)
    for seq in range(20):
        admit(sequencer, [transaction(seq)])
    answer = admit(sequencer, [transaction(seq) for seq in range(20)])
    assert isinstance(answer, Taken)
    assert answer.missing == (0, 15)
    assert places(answer, 15, 5) == [(seq, 1, False) for seq in range(15, 20)]


@dataclass
class Model:
    """What a log should be, in the plainest terms."""

    taken: list[tuple[str, int, int, int]] = field(default_factory=list)
    registers: dict[bytes, bytes] = field(default_factory=dict)
    refused: set[tuple[str, int, int]] = field(default_factory=set)


class SequencerMachine(RuleBasedStateMachine):
    """Random messages, resends, gaps, epochs, registers, seals and rebirths."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.sequencer = Sequencer(LIMITS)
        self.sequencer.start_epoch(1, "logical")
        self.frames = [sealed(self.sequencer)]

    @rule(
        client=st.sampled_from("ab"),
        epoch=st.integers(1, 3),
        offset=st.integers(-3, 1),
        sizes=st.lists(st.integers(1, 3), min_size=1, max_size=4),
        register=st.sampled_from([None, b"r", b"s"]),
        expected=st.sampled_from([None, b"1", b"2"]),
        new=st.sampled_from([None, b"1", b"2"]),
    )
    def message(
        self,
        client: str,
        epoch: int,
        offset: int,
        sizes: list[int],
        register: bytes | None,
        expected: bytes | None,
        new: bytes | None,
    ) -> None:
        model = self.model
        mine = [row for row in model.taken if row[:2] == (client, epoch)]
        newest = max((row[1] for row in model.taken if row[0] == client), default=epoch)
        first = max(len(mine) + offset, 0)
        changes = [] if register is None else [CompareAndSet(register, expected, new)]
        message = [
            transaction(first + place, range(size), changes) for place, size in enumerate(sizes)
        ]
        answer = admit(self.sequencer, message, client, epoch)
        if newest > epoch and first + len(sizes) > len(mine):
            assert isinstance(answer, NotTaken)
            assert answer.reason is Refusal.STALE_EPOCH
            return
        if first > len(mine):
            assert isinstance(answer, NotTaken)
            assert answer.expected == len(mine)
            return
        for place in range(max(len(mine) - first, 0), len(sizes)):
            size = sizes[place]
            if changes and model.registers.get(changes[0].register) != expected:
                model.refused.add((client, epoch, first + place))
                size = 1
            elif changes and new is not None:
                model.registers[changes[0].register] = new
            elif changes:
                model.registers.pop(changes[0].register, None)
            model.taken.append((client, epoch, first + place, size))
        self.check_answer(answer, client, epoch, first, len(sizes))

    def check_answer(
        self, answer: Taken | NotTaken, client: str, epoch: int, first: int, count: int
    ) -> None:
        assert isinstance(answer, Taken)
        start = first
        if answer.missing is not None:
            assert answer.missing[0] == first
            start = first + answer.missing[1]
        where = {}
        seq = 1
        for row in self.model.taken:
            where[row[:3]] = (seq, row[3], row[:3] in self.model.refused)
            seq += row[3]
        wanted = [where[(client, epoch, n)] for n in range(start, first + count)]
        assert places(answer, start, first + count - start) == wanted

    @rule()
    def seal(self) -> None:
        frame = self.sequencer.seal(0)
        if frame is not None:
            self.frames.append(frame)

    @rule()
    def rebirth(self) -> None:
        self.seal()
        reborn = Sequencer(LIMITS)
        reborn.replay(self.frames)
        assert reborn.position == self.sequencer.position
        self.sequencer = reborn

    @invariant()
    def registers_are_the_models(self) -> None:
        for name in (b"r", b"s"):
            assert self.sequencer.register(name) == self.model.registers.get(name)

    def teardown(self) -> None:
        self.seal()
        recorded = [
            (run.client, run.client_epoch, t.client_seq, len(t.facts))
            for frame in self.frames[1:]
            for run in frame.runs()
            for t in run.transactions
        ]
        assert recorded == self.model.taken


TestSequencerAgainstTheModel = SequencerMachine.TestCase
TestSequencerAgainstTheModel.settings = settings(max_examples=60, stateful_step_count=30)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=70))
@settings(max_examples=50)
def test_rebirth_keeps_answers_whatever_the_sizes(sizes: list[int]) -> None:
    limits = LogLimits(answers=1_000)
    sequencer = Sequencer(limits)
    message = [transaction(seq, range(size)) for seq, size in enumerate(sizes)]
    first = places(admit(sequencer, message), 0, len(sizes))
    reborn = Sequencer(limits)
    reborn.replay([sealed(sequencer)])
    assert places(admit(reborn, message), 0, len(sizes)) == first


def test_registers_beyond_the_bound_are_refused_until_some_are_cleared() -> None:
    sequencer = Sequencer(LogLimits(registers=3))

    def set_to(number: int, register: bytes, before: bytes | None, after: bytes | None) -> object:
        change = CompareAndSet(register, before, after)
        message = [transaction(number, compare_and_set=[change])]
        return sequencer.admit("a", 1, message, encode_transactions(message))

    for number in range(3):
        assert isinstance(set_to(number, bytes([number]), None, b"x"), Taken)
    with pytest.raises(BadInputError, match="guards 3 registers and may guard 3; clear"):
        set_to(3, b"one more", None, b"x")
    assert sequencer.registers == 3
    assert isinstance(set_to(3, b"\x01", b"x", b"y"), Taken)
    assert isinstance(set_to(4, b"\x01", b"y", None), Taken)
    assert isinstance(set_to(5, b"one more", None, b"x"), Taken)
