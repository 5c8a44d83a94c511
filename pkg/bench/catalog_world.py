"""The catalog that `pagetrail bench catalog` measures on: a filled replica and a filled index.

Chains of 64 chunks, told in the arrival order of 16 interleaved requests. The facts go in as the
columns that a sealed segment gives (replica) and as changes already read (index).
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import groupby

import msgspec

from pagetrail.catalog.fact_columns import STATED, Columns, KindColumns, table
from pagetrail.catalog.facts import KINDS, KindId
from pagetrail.catalog.identity import ROOT, node_id, part_id
from pagetrail.catalog.index import CatalogChanges, LiveIndex
from pagetrail.catalog.kinds.content import (
    Copy,
    CopyState,
    LayoutPart,
    Model,
    Node,
    Part,
    Tier,
)
from pagetrail.catalog.replica import Replica, open_replica
from pagetrail.catalog.replica_schema import CAUSE, KIND_TABLES

CHAIN_CHUNKS = 64
INTERLEAVED = 16
WORKERS = 8
APPLY_CHUNKS = 64_000
FINGERPRINT = sha256(b"bench model").digest()
_KIND_OF = {
    KINDS[kind].struct: int(kind)
    for kind in (KindId.MODEL, KindId.LAYOUT_PART, KindId.NODE, KindId.PART, KindId.COPY)
}

Told = tuple[str, tuple[msgspec.Struct, ...]]
"""A transaction: client and bodies."""


@dataclass(frozen=True, slots=True)
class World:
    """A filled replica and index, the prompts that made them, and the CPU time of the replica."""

    replica: Replica
    index: LiveIndex
    prompts: tuple[tuple[bytes, ...], ...]
    facts: int
    apply_s: float


class NoLog:
    """A replica in memory starts empty and has nothing to check itself against."""

    def chain_at(self, position: int) -> bytes | None:
        return None


def filled(chains: int) -> World:
    """A world of so many chains; the caller closes the replica."""
    prompts = tuple(_chain(number) for number in range(chains))
    replica, index = open_replica(None, NoLog()), LiveIndex()
    replica.connection.execute("SET threads = 1")
    apply_s = 0.0
    gc.disable()  # nothing here is garbage, and looking for it takes longer than all the rest
    for _, group in groupby(enumerate(_told(prompts)), lambda one: one[0] // APPLY_CHUNKS):
        told = [transaction for _, transaction in group]
        columns = _columns(told, replica.position)
        start = time.process_time()
        replica.apply_columns(columns, bytes(32))
        apply_s += time.process_time() - start
        changes = tuple((True, body) for _, bodies in told for body in bodies)
        index.fold(CatalogChanges(columns.first_seq, columns.next_seq, changes))
    gc.enable()
    gc.freeze()
    return World(replica, index, prompts, replica.position, apply_s)


def _chain(number: int) -> tuple[bytes, ...]:
    """Chunk digests of one prompt; they stand for digests of its tokens."""
    return tuple(sha256(b"%d/%d" % (number, chunk)).digest() for chunk in range(CHAIN_CHUNKS))


def _told(prompts: tuple[tuple[bytes, ...], ...]) -> Iterator[Told]:
    """The model's layout, then node, part and first copy of each chunk; six of ten prompts get a
    second, durable copy."""
    layout = sha256(b"bench layout").digest()
    yield (
        "worker-0",
        (Model(FINGERPRINT, "bench", "llama", layout, 256), LayoutPart(layout, 0, 0)),
    )
    for first in range(0, len(prompts), INTERLEAVED):
        for chunk in range(CHAIN_CHUNKS):
            for number in range(first, min(first + INTERLEAVED, len(prompts))):
                yield f"worker-{number % WORKERS}", _published(prompts[number], number, chunk)


def _published(prompt: tuple[bytes, ...], number: int, chunk: int) -> tuple[msgspec.Struct, ...]:
    prefix, parent = prompt[chunk], prompt[chunk - 1] if chunk else ROOT
    node = node_id(FINGERPRINT, prefix)
    part = part_id(node, 0, 0)
    start = chunk * 256
    bodies = (
        Node(node, FINGERPRINT, prefix, parent, start, start + 256, ""),
        Part(part, node, 0, 0, prefix, 1 << 20),
        Copy(part, f"worker-{number % WORKERS}", Tier.SSD, CopyState.READY, ""),
    )
    if number % 10 < 6:
        return (*bodies, Copy(part, "", Tier.OBJECT, CopyState.READY, ""))
    return bodies


def _columns(told: list[Told], first_seq: int) -> Columns:
    """The transactions as columns, kind by kind."""
    rows: dict[int, tuple[list[tuple[object, ...]], list[tuple[object, ...]]]] = {}
    seq = first_seq
    for client, bodies in told:
        tx = seq
        for body in bodies:
            envelopes, fields = rows.setdefault(_KIND_OF[type(body)], ([], []))
            # in the order of STATED: seq, tx, t_us, writer_epoch, client, its epoch and seq, op, v
            envelopes.append((seq, tx, tx, 1, client, 1, tx, 1, 1))
            fields.append(msgspec.structs.astuple(body))
            seq += 1
    kinds = tuple(
        KindColumns(
            kind,
            table(STATED, list(zip(*envelopes, strict=True))),
            table(KIND_TABLES[kind].columns, list(zip(*fields, strict=True))),
        )
        for kind, (envelopes, fields) in rows.items()
    )
    return Columns(first_seq, seq, kinds, table(CAUSE, [()] * len(CAUSE)))
