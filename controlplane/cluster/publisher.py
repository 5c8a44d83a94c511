"""Publication of stored chunks: catalog facts, first writer wins, durable only when acknowledged.

Owns the publications of one worker that the log has not shown yet. A chunk that is new to the
catalog is published as node, parts and copies in one transaction whose precondition is that nobody
has bound the part's content; the loser of such a race adds its copy to the winner's binding. Writes
through the worker's journal; sends and stores nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from pagetrail.catalog.envelope import CompareAndSet
from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.identity import node_id, part_id, register_name
from pagetrail.catalog.kinds.content import Copy, CopyState, Node, Part, Tier

from .messages import Prompt
from .worker import WorkerMachine


@dataclass(frozen=True, slots=True)
class Stored:
    """One part of a chunk as the tiers' receipts describe it."""

    content_id: bytes
    size_bytes: int
    copies: tuple[tuple[int, str], ...]  # (Tier, location) of each receipt


@dataclass(frozen=True, slots=True)
class _Pending:
    prompt: Prompt
    chunk: int
    stored: Stored


@dataclass(slots=True)
class Publisher:
    """Publishes for one worker epoch."""

    machine: WorkerMachine
    _pending: dict[int, _Pending] = field(default_factory=dict)

    @property
    def pending(self) -> int:
        """Chunks that were stored and whose publication the log has not shown yet."""
        return len(self._pending)

    def publish(self, tenant: str, prompt: Prompt, chunk: int, stored: Stored) -> None:
        """Publish one stored chunk of a prompt. Without any receipt nothing is published."""
        if not stored.copies:
            self.machine.give_up_storing(prompt)
            return
        start = self.machine.start
        prefix = prompt.chunks[chunk]
        parent = prompt.chunks[chunk - 1] if chunk else prompt.root
        known = self.machine.catalog.entry(start.fingerprint, prefix)
        node = node_id(start.fingerprint, prefix)
        part = part_id(node, 0, 0)
        copies = self._copies(part, stored)
        if known is not None:
            cause = self.machine.decider.write(copies)
        else:
            tokens = start.chunk_tokens
            facts: list[msgspec.Struct] = [
                Node(
                    node_id=node,
                    fingerprint=start.fingerprint,
                    prefix=prefix,
                    parent_prefix=parent,
                    token_start=chunk * tokens,
                    token_end=(chunk + 1) * tokens,
                    tenant=tenant,
                ),
                Part(part, node, 0, 0, stored.content_id, stored.size_bytes),
                *copies,
            ]
            binding = CompareAndSet(
                register_name("part", part, "content_id"), None, stored.content_id
            )
            cause = self.machine.decider.write(facts, compare_and_set=[binding])
        self._pending[cause.client_seq] = _Pending(prompt, chunk, stored)

    def shown(self, client_seq: int) -> None:
        """The log shows one of this epoch's transactions, accepted."""
        pending = self._pending.pop(client_seq, None)
        if pending is None:
            return
        durable = self.machine.durable(pending.prompt, pending.chunk + 1)
        if durable:
            self.machine.decider.write(durable)

    def refused(self, client_seq: int, actual: bytes | None) -> None:
        """The log shows one of this epoch's transactions, refused: another bound the part first.

        Raises InvariantError when the winner's bytes differ from ours: in exact mode the same node
        has the same bytes, so one of the two workers computes something else.
        """
        pending = self._pending.pop(client_seq, None)
        if pending is None:
            return
        if actual != pending.stored.content_id:
            raise InvariantError(
                f"chunk {pending.prompt.chunks[pending.chunk].hex()} has content "
                f"{pending.stored.content_id.hex()} here and {(actual or b'').hex()} where it was "
                "published first; stop one of the two workers and compare their builds"
            )
        part = part_id(
            node_id(self.machine.start.fingerprint, pending.prompt.chunks[pending.chunk]), 0, 0
        )
        cause = self.machine.decider.write(self._copies(part, pending.stored))
        self._pending[cause.client_seq] = pending

    def _copies(self, part: bytes, stored: Stored) -> list[msgspec.Struct]:
        worker = self.machine.start.worker
        return [
            Copy(
                part_id=part,
                worker="" if tier == Tier.OBJECT else worker,
                tier=tier,
                state=CopyState.READY,
                location=location,
            )
            for tier, location in stored.copies
        ]
