"""What a reader of the live log knows and what it may take next. Pure; no socket."""

from __future__ import annotations

from dataclasses import dataclass

from pagetrail.controlplane.log import wire
from pagetrail.controlplane.log.errors import LogBehindError
from pagetrail.controlplane.log.frames import Frame


@dataclass(slots=True)
class StreamCursor:
    """Where a reader of the log stands: the next ``seq``, the chain value there, the head heard.

    ``chain`` is None until the first frame when the reader starts at a position whose chain value
    it does not know.
    """

    next_seq: int
    chain: bytes | None
    head: int = 0

    def hear(self, head: wire.Head) -> None:
        """Take note of the writer's head. ``LogBehindError`` when it lies before this reader."""
        if head.head < self.next_seq or (
            head.head == self.next_seq and self.chain not in (None, head.chain)
        ):
            raise LogBehindError(
                f"this reader holds the log up to seq {self.next_seq}, the writer of epoch "
                f"{head.writer_epoch} stands at {head.head} or has another chain value there: "
                "acknowledged facts were lost. Restore the log"
            )
        self.head = max(self.head, head.head)

    @property
    def behind(self) -> bool:
        """Whether frames exist that this reader does not have."""
        return self.head > self.next_seq

    def take(self, frame: Frame) -> bool:
        """Step over a frame if it is the next one; False for an old one or one after a gap."""
        if frame.first_seq > self.next_seq or frame.next_seq <= self.next_seq:
            return False
        if frame.first_seq == self.next_seq and self.chain not in (
            None,
            frame.header.previous_chain,
        ):
            raise LogBehindError(
                f"the frame at seq {frame.first_seq} does not continue what this reader holds: "
                "the log was replaced by another. Rebuild the reader from the log"
            )
        self.next_seq = frame.next_seq
        self.chain = frame.chain
        self.head = max(self.head, frame.next_seq)
        return True
