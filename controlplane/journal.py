"""The journal of one client epoch: its transactions in order, and the chain over them.

A decider cites the chain to say what it had seen of its own history: every command, completion,
observation, outcome and earlier decision. Owns the numbering of transactions and the chain; writes
nothing itself.

    origin   = SHA-256(domain, client, client epoch)
    chain_i  = SHA-256(origin, item_0, ..., item_(i-1))

An item is a transaction's encoding, each of which says where it ends. One with preconditions may
be refused, and then the log keeps only its digest; so its item is the SHA-256 of its encoding, as a
msgpack byte string. A keyframe makes the chain before it the origin of what follows, the keyframe's
own item first, so that a fold can begin there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from pagetrail.catalog.envelope import Cause, CompareAndSet, Run, Transaction, WireFact
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.identity import canonical
from pagetrail.catalog.kinds.system import Refused

Encoded = bytes | msgspec.Raw

_DOMAIN = b"pagetrail/journal/2\n"
_ENCODER = msgspec.msgpack.Encoder()
_REFUSED = msgspec.msgpack.Decoder(Refused)


def journal_root(client: str, client_epoch: int) -> bytes:
    """The origin of a journal that holds nothing yet."""
    return hashlib.sha256(_DOMAIN + canonical([client, client_epoch])).digest()


def transaction_digest(transaction: Transaction) -> bytes:
    """SHA-256 of a transaction as its client sent it, also when the log holds its refusal."""
    facts = transaction.facts
    if len(facts) == 1 and facts[0].kind == KindId.REFUSED:
        return _REFUSED.decode(facts[0].body).transaction_digest
    return hashlib.sha256(_ENCODER.encode(transaction)).digest()


class Journal:
    """Numbers a client epoch's transactions and keeps the chain over them."""

    __slots__ = ("_items", "client", "client_epoch", "next_seq")

    def __init__(self, client: str, client_epoch: int) -> None:
        self.client = client
        self.client_epoch = client_epoch
        self.next_seq = 0
        self._items = hashlib.sha256(journal_root(client, client_epoch))

    @classmethod
    def after_keyframe(
        cls, client: str, client_epoch: int, chain: bytes, client_seq: int, encoded: Encoded
    ) -> Journal:
        """Where a journal stands after a keyframe that cites ``chain``."""
        journal = cls(client, client_epoch)
        journal._items = hashlib.sha256(chain)
        journal._items.update(encoded)
        journal.next_seq = client_seq + 1
        return journal

    @property
    def chain(self) -> bytes:
        """The chain over everything folded so far."""
        return self._items.digest()

    def write(
        self,
        facts: Sequence[WireFact],
        causes: Sequence[Cause] = (),
        compare_and_set: Sequence[CompareAndSet] = (),
    ) -> Transaction:
        """The next transaction of this epoch; the chain moves past it."""
        transaction = Transaction(
            self.next_seq, tuple(causes), tuple(compare_and_set), tuple(facts)
        )
        self.fold(transaction)
        return transaction

    def fold(self, transaction: Transaction, encoded: Encoded | None = None) -> None:
        """Move past a transaction; ``encoded`` is its encoding, when that is at hand."""
        kind = transaction.facts[0].kind
        if kind == _KEYFRAME:
            self._items = hashlib.sha256(self._items.digest())
        if transaction.compare_and_set or kind == _REFUSED_KIND:
            self._items.update(_ENCODER.encode(transaction_digest(transaction)))
        else:
            self._items.update(_ENCODER.encode(transaction) if encoded is None else encoded)
        self.next_seq = transaction.client_seq + 1

    def fold_plain(self, encoded: Sequence[Encoded]) -> None:
        """Move past the next transactions by their encodings.

        Not for keyframes, refusals and transactions with preconditions.
        """
        self._items.update(b"".join(encoded))
        self.next_seq += len(encoded)

    def cause(self, client_seq: int) -> Cause:
        """Names one of this epoch's transactions."""
        return Cause(self.client, self.client_epoch, client_seq)


def last_journals(runs: Iterable[Run]) -> dict[str, Journal]:
    """Where each client's newest epoch stands, from a log's runs in order."""
    journals: dict[str, Journal] = {}
    for run in runs:
        journal = journals.get(run.client)
        if journal is None or journal.client_epoch != run.client_epoch:
            journal = journals[run.client] = Journal(run.client, run.client_epoch)
        for transaction in run.transactions:
            journal.fold(transaction)
    return journals


# Plain integers: members of an enumeration are slower to compare.
_KEYFRAME = int(KindId.KEYFRAME)
_REFUSED_KIND = int(KindId.REFUSED)
