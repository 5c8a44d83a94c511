"""The envelope of facts: what travels from a client to the writer, and what the log returns.

A *transaction* is a group of facts that stands or falls together. A client numbers its
transactions from 0 without gaps (``client_seq``); the triple (client, client_epoch, client_seq)
names a transaction for ever and is known before the writer has seen it. By convention a decision
is the first fact of its transaction, so the triple names the decision too; facts that carry the
decision out may follow in the same transaction.

Bytes are msgpack arrays of integers, byte strings, text, nil, booleans and nested arrays; never a
float or a map, so equal values have equal bytes. Bodies speak only of what the client knows;
``seq``, ``tx``, ``t_us`` and ``writer_epoch`` are the writer's.

The structs of which a log holds millions are left out of garbage collection (``gc=False``): frozen
values are part of no cycle.

The integer entity id ``e`` is not stored: it is the ``seq`` of the fact that first named the
entity, a pure function of the log's order, which only the writer gives.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

ENVELOPE_VERSION = 1
CLIENT_NAME_MAX_CHARS = 64
TRANSACTION_FACTS_MAX = 65_536
TRANSACTION_BYTES_MAX = 16 * 1024 * 1024


class Op(IntEnum):
    """Whether a fact states something or takes an earlier statement back."""

    RETRACT = 0
    ASSERT = 1


class Cause(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """A transaction that led to this one."""

    client: str
    client_epoch: int
    client_seq: int


class CompareAndSet(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """Precondition and effect on one *register* (an entity's field that the writer guards).

    The transaction is accepted only if the register holds ``expected`` (``None``: was never set,
    or was cleared); acceptance sets it to ``new`` (``None`` clears it). A register's name is the
    canonical encoding of (kind name, entity key, field), see ``identity.register_name``.
    """

    register: bytes
    expected: bytes | None
    new: bytes | None


class WireFact(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False):
    """One fact as a client sends it. ``body`` is the encoded struct of its kind (facts.py)."""

    op: int
    kind: int
    schema_v: int
    body: msgspec.Raw


class Transaction(
    msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, gc=False
):
    """The unit a client appends and the writer accepts, refuses or knows already."""

    client_seq: int
    causes: tuple[Cause, ...]
    compare_and_set: tuple[CompareAndSet, ...]
    facts: tuple[WireFact, ...]


class Run(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Consecutive transactions of one client inside a frame."""

    client: str
    client_epoch: int
    transactions: tuple[Transaction, ...]


class Fact(msgspec.Struct, frozen=True, gc=False):
    """One fact as the log returns it, with everything the writer added."""

    seq: int  # gapless over the whole log, from 0
    tx: int  # seq of the first fact of the transaction
    t_us: int  # writer's clock, strictly rising by transaction
    writer_epoch: int
    client: str
    client_epoch: int
    client_seq: int
    index: int  # place inside the transaction
    causes: tuple[Cause, ...]
    op: int
    kind: int
    schema_v: int
    body: msgspec.Raw
