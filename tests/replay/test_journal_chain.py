"""The chain over a journal, computed again by hand: one SHA-256 over the items' encodings."""

from __future__ import annotations

import hashlib

import msgpack
import msgspec
import pytest

from pagetrail.catalog.envelope import Cause, CompareAndSet, Run, Transaction, WireFact
from pagetrail.catalog.facts import KindId, fact
from pagetrail.catalog.identity import canonical
from pagetrail.catalog.kinds.worker import Keyframe, RequestDropped
from pagetrail.controlplane.journal import Journal, last_journals
from pagetrail.controlplane.log.transactions import refused_transaction


def command(number: int) -> WireFact:
    return fact(RequestDropped(number, 1))


def plain(transaction: Transaction) -> list[object]:
    """A transaction as msgpack arrays, written without the product's encoder."""
    return [
        transaction.client_seq,
        [[cause.client, cause.client_epoch, cause.client_seq] for cause in transaction.causes],
        [[one.register, one.expected, one.new] for one in transaction.compare_and_set],
        [
            [wire.op, wire.kind, wire.schema_v, msgpack.unpackb(bytes(wire.body))]
            for wire in transaction.facts
        ],
    ]


def chain_by_hand(client: str, epoch: int, transactions: list[Transaction]) -> bytes:
    origin = hashlib.sha256(b"pagetrail/journal/2\n" + canonical([client, epoch])).digest()
    items = [origin]
    for transaction in transactions:
        if transaction.facts[0].kind == KindId.KEYFRAME:
            items = [hashlib.sha256(b"".join(items)).digest()]
        encoded = msgpack.packb(plain(transaction), use_bin_type=True)
        if transaction.compare_and_set:
            encoded = msgpack.packb(hashlib.sha256(encoded).digest(), use_bin_type=True)
        items.append(encoded)
    return hashlib.sha256(b"".join(items)).digest()


def written(journal: Journal, count: int = 12) -> tuple[list[Transaction], list[bytes]]:
    """Transactions of every form, and the chain before each."""
    transactions, before = [], []
    for number in range(count):
        before.append(journal.chain)
        if number % 5 == 3:
            facts: list[WireFact] = [fact(Keyframe(number, journal.chain, b"state"))]
        else:
            facts = [command(number + place) for place in range(1 + number % 3)]
        guarded = (CompareAndSet(b"register", None, b"new"),) if number % 4 == 2 else ()
        causes = (Cause("other", 2, number),) if number % 3 == 1 else ()
        transactions.append(journal.write(facts, causes, guarded))
    return transactions, before


def test_the_chain_is_one_hash_over_everything_since_the_last_keyframe() -> None:
    journal = Journal("worker-1", 3)
    transactions, before = written(journal)
    for place, chain in enumerate(before):
        assert chain == chain_by_hand("worker-1", 3, transactions[:place])
    assert journal.chain == chain_by_hand("worker-1", 3, transactions)
    assert len({*before, journal.chain}) == len(transactions) + 1
    assert Journal("worker-1", 4).chain != Journal("worker-1", 3).chain
    assert Journal("worker-2", 3).chain != Journal("worker-1", 3).chain


def test_a_fold_from_a_keyframe_or_of_encoded_transactions_comes_to_the_same_chain() -> None:
    journal = Journal("worker-1", 3)
    transactions, before = written(journal)
    encoded = [msgspec.Raw(msgspec.msgpack.encode(one)) for one in transactions]
    whole = Journal("worker-1", 3)
    for transaction, raw in zip(transactions, encoded, strict=True):
        whole.fold(transaction, raw)
    assert (whole.chain, whole.next_seq) == (journal.chain, journal.next_seq)
    (last,) = last_journals([Run("worker-1", 3, tuple(transactions))]).values()
    assert (last.chain, last.next_seq) == (journal.chain, journal.next_seq)
    for place in (3, 8):
        part = Journal.after_keyframe("worker-1", 3, before[place], place, encoded[place])
        for transaction, raw in zip(transactions[place + 1 :], encoded[place + 1 :], strict=True):
            assert part.next_seq == transaction.client_seq
            part.fold(transaction, raw)
        assert (part.chain, part.next_seq) == (journal.chain, journal.next_seq)


def test_a_refused_transaction_folds_like_the_one_that_was_sent() -> None:
    sent, logged = Journal("worker-1", 3), Journal("worker-1", 3)
    transactions, _ = written(sent)
    for transaction in transactions:
        if transaction.compare_and_set:
            logged.fold(refused_transaction(transaction, b"register", b"held"))
        else:
            logged.fold(transaction)
    assert logged.chain == sent.chain


@pytest.mark.parametrize("place", range(12))
def test_a_transaction_that_is_left_out_shows_in_every_later_chain(place: int) -> None:
    transactions, before = written(Journal("worker-1", 3))
    without = Journal("worker-1", 3)
    for transaction in transactions[:place]:
        without.fold(transaction)
    for later in range(place + 1, len(transactions)):
        assert without.chain != before[later]
        without.fold(transactions[later])
