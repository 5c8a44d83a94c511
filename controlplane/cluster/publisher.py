"""Publication of stored chunks: catalog facts, first writer wins, durable only when acknowledged.

Owns the publications of one worker that the log has not shown yet. A chunk that is new to the
catalog is published as node, parts and copies in one transaction whose precondition is that nobody
has bound the part's content; the loser of such a race adds its copy to the winner's binding. A copy
of a chunk that is known is published on the condition that the bound content is this copy's. A
chunk is published after the chunk before it or not at all, so that what is published can be reached
from the root. Writes through the worker's journal; sends and stores nothing itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from pagetrail.catalog.envelope import CompareAndSet
from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.identity import node_id, part_id, register_name
from pagetrail.catalog.kinds.content import Copy, CopyState, Node, Part, Tier
from pagetrail.catalog.publishing import under_layout

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
    tenant: str
    prompt: Prompt
    chunk: int
    stored: Stored


@dataclass(slots=True)
class Publisher:
    """Publishes for one worker epoch.

    With a ``layout_digest`` a publication holds only while the log states that layout.
    """

    machine: WorkerMachine
    layout_digest: bytes | None = None
    _pending: dict[int, _Pending] = field(default_factory=dict)
    _prefixes: dict[bytes, int] = field(default_factory=dict)  # of what is pending

    @property
    def pending(self) -> int:
        """Chunks that were stored and whose publication the log has not shown yet."""
        return len(self._pending)

    def publish(self, tenant: str, prompt: Prompt, chunk: int, stored: Stored) -> None:
        """Publish one stored chunk of a prompt. Without any receipt nothing is published, nor when
        the chunk before it is not."""
        if not stored.copies or not self._continues(prompt, chunk):
            self.machine.give_up_storing(prompt)
            return
        fingerprint = self.machine.start.fingerprint
        pending = _Pending(tenant, prompt, chunk, stored)
        if self.machine.catalog.entry(fingerprint, prompt.chunks[chunk]) is None:
            self._publish_new(pending)
        else:
            self._publish_copies(pending)

    def _continues(self, prompt: Prompt, chunk: int) -> bool:
        """Whether the chunk before is published, or about to be by an earlier transaction."""
        if not chunk:
            return True
        before = prompt.chunks[chunk - 1]
        return (
            self.machine.catalog.entry(self.machine.start.fingerprint, before) is not None
            or before in self._prefixes
        )

    def _publish_new(self, pending: _Pending) -> None:
        start = self.machine.start
        prompt, chunk, stored = pending.prompt, pending.chunk, pending.stored
        prefix = prompt.chunks[chunk]
        node = node_id(start.fingerprint, prefix)
        part = part_id(node, 0, 0)
        tokens = start.chunk_tokens
        facts: list[msgspec.Struct] = [
            Node(
                node_id=node,
                fingerprint=start.fingerprint,
                prefix=prefix,
                parent_prefix=prompt.chunks[chunk - 1] if chunk else prompt.root,
                token_start=chunk * tokens,
                token_end=(chunk + 1) * tokens,
                tenant=pending.tenant,
            ),
            Part(part, node, 0, 0, stored.content_id, stored.size_bytes),
            *self._copies(part, stored),
        ]
        self._write(pending, facts, part, None)

    def _publish_copies(self, pending: _Pending) -> None:
        prefix = pending.prompt.chunks[pending.chunk]
        part = part_id(node_id(self.machine.start.fingerprint, prefix), 0, 0)
        stored = pending.stored
        self._write(pending, self._copies(part, stored), part, stored.content_id)

    def _write(
        self,
        pending: _Pending,
        facts: list[msgspec.Struct],
        part: bytes,
        bound: bytes | None,
    ) -> None:
        """Write a publication that holds only while the part's content is ``bound``."""
        register = register_name("part", part, "content_id")
        binding = [CompareAndSet(register, bound, pending.stored.content_id)]
        if self.layout_digest is not None:
            binding.insert(0, under_layout(self.machine.start.fingerprint, self.layout_digest))
        cause = self.machine.decider.write(facts, compare_and_set=binding)
        self._pending[cause.client_seq] = pending
        prefix = pending.prompt.chunks[pending.chunk]
        self._prefixes[prefix] = self._prefixes.get(prefix, 0) + 1

    def _take(self, client_seq: int) -> _Pending | None:
        pending = self._pending.pop(client_seq, None)
        if pending is not None:
            prefix = pending.prompt.chunks[pending.chunk]
            self._prefixes[prefix] -= 1
            if not self._prefixes[prefix]:
                del self._prefixes[prefix]
        return pending

    def shown(self, client_seq: int) -> None:
        """The log shows one of this epoch's transactions, accepted."""
        pending = self._take(client_seq)
        if pending is None:
            return
        durable = self.machine.durable(pending.prompt, pending.chunk + 1)
        if durable:
            self.machine.decider.write(durable)

    def refused(self, client_seq: int, actual: bytes | None) -> None:
        """The log shows one of this epoch's transactions, refused: the part's content was bound,
        or its binding taken back, since. It is published as things are now.

        Raises InvariantError when the bound bytes differ from ours, for in exact mode the same node
        has the same bytes, so one of the two workers computes something else; or when the log has
        another layout for the model.
        """
        pending = self._take(client_seq)
        if pending is None:
            return
        if actual is None:
            self._publish_new(pending)
        elif actual == pending.stored.content_id:
            self._publish_copies(pending)
        else:
            raise InvariantError(
                f"chunk {pending.prompt.chunks[pending.chunk].hex()} has content "
                f"{pending.stored.content_id.hex()} and layout "
                f"{(self.layout_digest or b'').hex()} here, and {actual.hex()} where it was "
                "published first; stop one of the two workers and compare their builds"
            )

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
