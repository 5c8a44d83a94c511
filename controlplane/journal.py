"""The journal of one client epoch: its transactions in order, and the chain over them.

A decider cites the chain to say what it had seen of its own history: every command, completion,
observation, outcome and earlier decision. Owns the numbering of transactions and the chain; writes
nothing itself.

    chain_0     = SHA-256(domain, client, client epoch)
    chain_(i+1) = SHA-256(chain_i, SHA-256(encoded transaction i))

The inner digest lets a refused transaction, of which the log keeps only the digest, still be
folded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from pagetrail.catalog.envelope import Cause, CompareAndSet, Run, Transaction, WireFact
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.identity import canonical
from pagetrail.catalog.kinds.system import Refused

_DOMAIN = b"pagetrail/journal/1\n"
_ENCODER = msgspec.msgpack.Encoder()
_REFUSED = msgspec.msgpack.Decoder(Refused)


def journal_root(client: str, client_epoch: int) -> bytes:
    """The chain of a journal that holds nothing yet."""
    return hashlib.sha256(_DOMAIN + canonical([client, client_epoch])).digest()


def transaction_digest(transaction: Transaction) -> bytes:
    """SHA-256 of a transaction as its client sent it, also when the log holds its refusal."""
    facts = transaction.facts
    if len(facts) == 1 and facts[0].kind == KindId.REFUSED:
        return _REFUSED.decode(facts[0].body).transaction_digest
    return hashlib.sha256(_ENCODER.encode(transaction)).digest()


class Journal:
    """Numbers a client epoch's transactions and keeps the chain over them."""

    __slots__ = ("chain", "client", "client_epoch", "next_seq")

    def __init__(self, client: str, client_epoch: int, *, next_seq: int = 0, chain: bytes = b""):
        self.client = client
        self.client_epoch = client_epoch
        self.next_seq = next_seq
        self.chain = chain or journal_root(client, client_epoch)

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

    def fold(self, transaction: Transaction) -> None:
        """Move past a transaction that was read back."""
        self.chain = hashlib.sha256(self.chain + transaction_digest(transaction)).digest()
        self.next_seq = transaction.client_seq + 1

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
