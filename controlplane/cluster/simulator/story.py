"""What a whole log must tell: attempts that were really finished, copies that really exist.

The machines may disagree with the world and still agree with themselves; this compares what they
wrote down with what the simulated world knows.
"""

from __future__ import annotations

from collections.abc import Sequence

from pagetrail.catalog.envelope import Fact, Op, Transaction
from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.facts import KindId, decode_body
from pagetrail.catalog.kinds.content import Copy, CopyState, Node, Part
from pagetrail.catalog.kinds.router import AttemptEnded
from pagetrail.catalog.kinds.worker import FinishReason
from pagetrail.controlplane.log.frames import Frame

from ..messages import Ended
from .nodes import Stores

_READ = frozenset(
    {
        KindId.NODE,
        KindId.PART,
        KindId.COPY,
    }
)


class ViolationError(InvariantError):
    """Something that must hold did not."""


class FinishedAttempts:
    """Attempts that some worker has brought to their end, as the world saw it."""

    def __init__(self) -> None:
        self._done: set[tuple[int, int]] = set()

    def add_if_done(self, ended: Ended) -> None:
        """A worker tells how an attempt ended."""
        if ended.reason in (FinishReason.STOP, FinishReason.LENGTH):
            self._done.add((ended.number, ended.attempt))

    def check(self, router: Sequence[Transaction], number: int) -> None:
        """The router has just completed a request: its attempt must have come to its end."""
        for transaction in reversed(router):
            for wire in transaction.facts:
                if wire.kind != KindId.ATTEMPT_ENDED:
                    continue
                body = decode_body(wire.kind, wire.schema_v, wire.body)
                if isinstance(body, AttemptEnded) and body.number == number:
                    if (number, body.attempt) not in self._done:
                        raise ViolationError(
                            f"request {number} completed with attempt {body.attempt}, which no "
                            "worker has finished"
                        )
                    return


def check_story(frames: Sequence[Frame], stores: Stores) -> None:
    """Raises ViolationError for the first thing in the log that did not happen."""
    story = _Story()
    for frame in frames:
        for fact in frame.facts():
            if fact.kind in _READ:
                story.take(fact)
    for holder, tier, prefix in story.copies:
        if (holder, tier, prefix) not in stores.objects:
            raise ViolationError(
                f"a copy of chunk {prefix.hex()[:16]} is published and was never stored"
            )


class _Story:
    def __init__(self) -> None:
        self.copies: set[tuple[str, int, bytes]] = set()
        self._prefixes: dict[bytes, bytes] = {}
        self._nodes: dict[bytes, bytes] = {}

    def take(self, fact: Fact) -> None:
        body = decode_body(fact.kind, fact.schema_v, fact.body)
        match body:
            case Node():
                self._nodes[body.node_id] = body.prefix
            case Part():
                self._prefixes[body.part_id] = self._nodes[body.node_id]
            case Copy() if fact.op == Op.ASSERT and body.state == CopyState.READY:
                self.copies.add((body.worker, body.tier, self._prefixes[body.part_id]))
