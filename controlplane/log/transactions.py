"""Rules that a transaction must meet, checked by the client before it spools and by the writer.

Both sides apply the same rules: whatever a client has spooled the writer can take, so a spool
never holds a transaction that blocks the ones behind it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

from pagetrail.catalog.envelope import (
    CLIENT_NAME_MAX_CHARS,
    TRANSACTION_FACTS_MAX,
    Cause,
    CompareAndSet,
    Transaction,
    WireFact,
)
from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.facts import KindId, encode_body
from pagetrail.catalog.kinds.system import Refused, WriterEpochStarted

SYSTEM_KIND_MAX = 15
"""Kinds up to this one are the writer's; a client may not send them."""

SYSTEM_CLIENT = "~writer"
"""Name under which the writer records its own transactions; client names have no tilde."""

SYSTEM_SCHEMA_VERSION = 1
INTEGER_MAX = 2**63 - 1
TRANSACTION_CAUSES_MAX = 4_096
TRANSACTION_REGISTERS_MAX = 1_024
REGISTER_BYTES_MAX = 4_096
"""Longest register name, and longest value."""

_CLIENT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")
_ENCODER = msgspec.msgpack.Encoder()


class _CheckedFact(WireFact, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A fact whose envelope numbers the decoder checks; only client facts pass."""

    op: Annotated[int, Meta(ge=0, le=1)]
    kind: Annotated[int, Meta(gt=SYSTEM_KIND_MAX, le=INTEGER_MAX)]
    schema_v: Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
    body: msgspec.Raw


class _CheckedTransaction(Transaction, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A transaction checked while it is decoded, which costs a tenth of checking it afterwards."""

    client_seq: Annotated[int, Meta(ge=0, le=INTEGER_MAX)]
    causes: tuple[Cause, ...]
    compare_and_set: tuple[CompareAndSet, ...]
    facts: Annotated[tuple[_CheckedFact, ...], Meta(min_length=1, max_length=TRANSACTION_FACTS_MAX)]


_TRANSACTIONS_DECODER = msgspec.msgpack.Decoder(tuple[_CheckedTransaction, ...])
_RAW_DECODER = msgspec.msgpack.Decoder(msgspec.Raw)


def check_client_name(client: str) -> None:
    """``BadInputError`` unless ``client`` can name a client (and a directory)."""
    if len(client) > CLIENT_NAME_MAX_CHARS or not _CLIENT_NAME.fullmatch(client):
        raise BadInputError(
            f"client name {client!r} cannot be used; expected 1 to {CLIENT_NAME_MAX_CHARS} "
            "letters, digits, '.', '_', '@' or '-', starting with a letter or digit"
        )


def encode_transaction(transaction: Transaction) -> bytes:
    """The one encoding of a transaction."""
    return _ENCODER.encode(transaction)


def encode_transactions(transactions: Sequence[Transaction]) -> bytes:
    """The one encoding of an array of transactions."""
    return _ENCODER.encode(transactions)


def decode_transactions(payload: bytes) -> tuple[Transaction, ...]:
    """Decode a client's array of transactions, checking each fact's envelope.

    ``BadInputError`` for any but its one encoding, and for a fact no client may send. Causes and
    registers are left to ``check_references``.
    """
    try:
        transactions = _TRANSACTIONS_DECODER.decode(payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"the message does not hold transactions that a client may send: {error}"
        ) from error
    if _ENCODER.encode(transactions) != payload:
        raise BadInputError(
            "the transactions are not in canonical msgpack; encode them as envelope.Transaction"
        )
    return transactions


def check_body(body: bytes | msgspec.Raw) -> None:
    """``BadInputError`` unless ``body`` is exactly one msgpack value."""
    try:
        _RAW_DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"a fact's body is not one whole msgpack value ({error}); use facts.encode_body"
        ) from error


def check_transaction(transaction: Transaction) -> None:
    """``BadInputError`` unless the writer may take the transaction, as far as its form goes."""
    facts = transaction.facts
    if not 1 <= len(facts) <= TRANSACTION_FACTS_MAX:
        raise BadInputError(
            f"transaction {transaction.client_seq} has {len(facts)} facts; expected 1 to "
            f"{TRANSACTION_FACTS_MAX}"
        )
    for fact in facts:
        if not (
            fact.op in (0, 1)
            and SYSTEM_KIND_MAX < fact.kind <= INTEGER_MAX
            and 0 <= fact.schema_v <= INTEGER_MAX
        ):
            _refuse_fact(transaction, fact)
    check_references(transaction)


def check_references(transaction: Transaction) -> None:
    """``BadInputError`` for causes or registers beyond their bounds, or a register named twice."""
    if transaction.causes:
        _check_causes(transaction)
    if transaction.compare_and_set:
        _check_registers(transaction)


def _refuse_fact(transaction: Transaction, fact: WireFact) -> None:
    raise BadInputError(
        f"transaction {transaction.client_seq} holds a fact with op {fact.op}, kind {fact.kind}, "
        f"schema_v {fact.schema_v}; expected op 0 or 1, a kind above {SYSTEM_KIND_MAX} and a "
        "version of at least 0"
    )


def _check_causes(transaction: Transaction) -> None:
    if len(transaction.causes) > TRANSACTION_CAUSES_MAX:
        raise BadInputError(
            f"transaction {transaction.client_seq} names {len(transaction.causes)} causes; at "
            f"most {TRANSACTION_CAUSES_MAX} are allowed"
        )
    for cause in transaction.causes:
        if not (0 <= cause.client_epoch <= INTEGER_MAX and 0 <= cause.client_seq <= INTEGER_MAX):
            raise BadInputError(f"transaction {transaction.client_seq} names the cause {cause}")


def _check_registers(transaction: Transaction) -> None:
    changes = transaction.compare_and_set
    if len(changes) > TRANSACTION_REGISTERS_MAX:
        raise BadInputError(
            f"transaction {transaction.client_seq} guards {len(changes)} registers; at most "
            f"{TRANSACTION_REGISTERS_MAX} are allowed"
        )
    if len({change.register for change in changes}) != len(changes):
        raise BadInputError(
            f"transaction {transaction.client_seq} names a register twice; each may appear once"
        )
    for change in changes:
        for value in (change.register, change.expected, change.new):
            if value is not None and len(value) > REGISTER_BYTES_MAX:
                raise BadInputError(
                    f"transaction {transaction.client_seq} has a register name or value of "
                    f"{len(value)} bytes; at most {REGISTER_BYTES_MAX} are allowed"
                )


def refused_transaction(
    transaction: Transaction, register: bytes, actual: bytes | None
) -> Transaction:
    """What the log holds in place of a transaction whose precondition failed."""
    digest = hashlib.sha256(encode_transaction(transaction)).digest()
    body = encode_body(Refused(register, actual, digest))
    fact = WireFact(1, KindId.REFUSED, SYSTEM_SCHEMA_VERSION, msgspec.Raw(body))
    return Transaction(transaction.client_seq, transaction.causes, (), (fact,))


def is_refusal(transaction: Transaction) -> bool:
    """Whether a transaction read from the log stands for a refused one."""
    facts = transaction.facts
    return len(facts) == 1 and facts[0].kind == KindId.REFUSED


def epoch_started_transaction(writer_epoch: int, format_version: int, clock: str) -> Transaction:
    """The first transaction of every writer epoch."""
    body = encode_body(WriterEpochStarted(writer_epoch, format_version, clock))
    kind = KindId.WRITER_EPOCH_STARTED
    fact = WireFact(1, kind, SYSTEM_SCHEMA_VERSION, msgspec.Raw(body))
    causes: tuple[Cause, ...] = ()
    return Transaction(0, causes, (), (fact,))
