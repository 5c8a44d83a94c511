"""What a whole log must tell: what clients spooled, once; and only things that happened.

The machines may disagree with the world and still agree with themselves; this compares what they
wrote down with what the simulated world knows. It reads the log once, when a run is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from pagetrail.catalog.envelope import Run, Transaction
from pagetrail.catalog.facts import KindId, decode_body
from pagetrail.catalog.kinds.content import Copy, CopyState, Node, Part
from pagetrail.catalog.kinds.router import AttemptEnded, RequestOffered, RequestReceived
from pagetrail.catalog.kinds.worker import RequestQueued
from pagetrail.controlplane.journal import transaction_digest

from .invariants import ViolationError
from .log import ReadFrame, SimSpool

_ATTEMPTS = frozenset(
    {
        KindId.REQUEST_RECEIVED,
        KindId.REQUEST_OFFERED,
        KindId.REQUEST_QUEUED,
        KindId.ATTEMPT_ENDED,
    }
)
Received = Iterable[tuple[str, int, bytes]]  # (holder, tier, prefix) of every receipt


def check_spools(reads: Iterable[ReadFrame], spools: Mapping[str, SimSpool]) -> None:
    """Every client's transactions are in the log, each once, and nothing else is.

    Of an epoch that a loss of power cut short it is a prefix of them, with all that were
    acknowledged. Raises ViolationError.
    """
    logged: dict[tuple[str, int], list[Transaction]] = {}
    for read in reads:
        for run in read.runs:
            logged.setdefault((run.client, run.client_epoch), []).extend(run.transactions)
    for name, spool in spools.items():
        for epoch, book in spool.epochs.items():
            found = logged.get((name, epoch), [])
            enough = len(found) >= book.acknowledged if book.cut else len(found) == book.end
            if not enough or not all(map(_same, found, book.transactions)):
                raise ViolationError(
                    f"the log holds {len(found)} transactions of {name} epoch {epoch}, spooled "
                    f"were {book.end} and acknowledged {book.acknowledged}, or others"
                )


def _same(logged: Transaction, spooled: Transaction) -> bool:
    """The log holds what was spooled, or the refusal of it."""
    return logged == spooled or transaction_digest(logged) == transaction_digest(spooled)


def check_story(reads: Iterable[ReadFrame], received: Received) -> None:
    """Raises ViolationError for the first thing in the log that did not happen, or not so.

    Copies were stored before they were published. A chunk is published after the chunk before it,
    so what the tiers hold is closed towards the root. An attempt was offered to the worker epoch
    that queued it, is queued once, and of a request's attempts one completes at most.
    """
    contents, attempts = _Contents(frozenset(received)), _Attempts()
    for read in reads:
        for holds, body in read.changes.changes:
            if holds:
                contents.take(body)
        for run in read.runs:
            for transaction in run.transactions:
                for wire in transaction.facts:
                    if wire.kind in _ATTEMPTS:
                        attempts.take(run, decode_body(wire.kind, wire.schema_v, wire.body))
    attempts.check()


class _Contents:
    def __init__(self, received: frozenset[tuple[str, int, bytes]]) -> None:
        self._received = received
        self._nodes: dict[bytes, bytes] = {}
        self._prefixes: set[bytes] = set()
        self._parts: dict[bytes, bytes] = {}

    def take(self, body: msgspec.Struct) -> None:
        match body:
            case Node():
                if body.token_start and body.parent_prefix not in self._prefixes:
                    raise ViolationError(
                        f"chunk {body.prefix.hex()[:16]} is published before the chunk it continues"
                    )
                self._nodes[body.node_id] = body.prefix
                self._prefixes.add(body.prefix)
            case Part():
                self._parts[body.part_id] = self._nodes[body.node_id]
            case Copy(state=CopyState.READY):
                prefix = self._parts[body.part_id]
                if (body.worker, body.tier, prefix) not in self._received:
                    raise ViolationError(
                        f"a copy of chunk {prefix.hex()[:16]} is published and was never stored"
                    )


class _Attempts:
    """Requests have names of their own, whichever router counts them."""

    def __init__(self) -> None:
        self._names: dict[tuple[str, int, int], str] = {}
        self._offered: dict[tuple[str, int], tuple[str, int]] = {}
        self._queued: dict[tuple[str, int], tuple[str, int]] = {}
        self._completed: set[str] = set()

    def take(self, run: Run, body: msgspec.Struct) -> None:
        match body:
            case RequestReceived():
                self._names[run.client, run.client_epoch, body.number] = body.request
            case RequestOffered():
                name = self._names[run.client, run.client_epoch, body.number]
                self._offered[name, body.attempt] = (body.worker, body.worker_epoch)
            case RequestQueued():
                key = (body.request, body.attempt)
                if key in self._queued:
                    raise ViolationError(f"attempt {body.attempt} of {body.request} ran twice")
                self._queued[key] = (run.client, run.client_epoch)
            case AttemptEnded(completed=True):
                name = self._names[run.client, run.client_epoch, body.number]
                if name in self._completed:
                    raise ViolationError(f"two attempts completed {name}")
                self._completed.add(name)

    def check(self) -> None:
        for (name, attempt), ran in self._queued.items():
            offered = self._offered.get((name, attempt))
            if offered != ran:
                raise ViolationError(
                    f"attempt {attempt} of {name} ran at {ran[0]} epoch {ran[1]}; offered it was "
                    + (f"to {offered[0]} epoch {offered[1]}" if offered else "to nobody")
                )
