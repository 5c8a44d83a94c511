"""The requests of a simulated run: conversations that go on, under a few system prompts."""

from __future__ import annotations

import hashlib

from pagetrail.catalog.identity import ROOT

from ..messages import Incoming, Prompt
from .timeline import Draw

BLOCK_TOKENS = 16  # of a page
CHUNK_BLOCKS = 2
PROMPT_BLOCKS_MAX = 16
TALKS_MAX = 24
OUTPUT_TOKENS_MAX = 2 * BLOCK_TOKENS
IMPATIENT_PERCENT = 6  # clients that go away
BOUNDLESS_PERCENT = 1  # clients that ask for more than any worker's context
BOUNDLESS_TOKENS = 1 << 20


class Workload:
    """Draws one request after another."""

    def __init__(self, draw: Draw) -> None:
        self._draw = draw
        self._talks: list[list[int]] = []
        self._next_block = 1

    def gap_us(self, requests_per_s: int) -> int:
        """How long until the next request comes."""
        every_us = 1_000_000 // requests_per_s
        return self._draw.between(every_us // 2, every_us * 3 // 2)

    def patience_us(self) -> int:
        """When the client goes away; 0: it stays to the end."""
        if self._draw.below(100) >= IMPATIENT_PERCENT:
            return 0
        return self._draw.between(1_000, 300_000)

    def next(self, request: str) -> Incoming:
        """The next request."""
        return Incoming(
            request=request,
            tenant="",
            priority=self._draw.below(2),
            deadline_us=0,
            prompt=self._prompt(),
            max_new_tokens=(
                BOUNDLESS_TOKENS
                if self._draw.below(100) < BOUNDLESS_PERCENT
                else self._draw.between(1, OUTPUT_TOKENS_MAX)
            ),
        )

    def _prompt(self) -> Prompt:
        """A conversation goes on, or a new one opens under one of three system prompts."""
        if self._talks and self._draw.below(100) < 60:
            blocks = self._talks.pop(self._draw.below(len(self._talks)))
        else:
            blocks = [-1 - self._draw.below(3)] * 2
        for _ in range(self._draw.between(1, 4)):
            blocks = [*blocks, self._next_block]
            self._next_block += 1
        if len(blocks) < PROMPT_BLOCKS_MAX:
            self._talks.append(blocks)
        if len(self._talks) > TALKS_MAX:
            self._talks.pop(0)
        parent, digests = ROOT, []
        for block in blocks:
            parent = _chained(parent, block)
            digests.append(parent)
        tail = self._draw.between(1, BLOCK_TOKENS - 1)
        return Prompt(
            tokens=len(blocks) * BLOCK_TOKENS + tail,
            digest=_chained(parent, -tail),
            root=ROOT,
            pages=tuple(digests),
            chunks=tuple(digests[CHUNK_BLOCKS - 1 :: CHUNK_BLOCKS]),
            adoptable=len(digests),
        )


def _chained(parent: bytes, block: int) -> bytes:
    """A digest that commits to everything before, as those of real prompts do."""
    return hashlib.sha256(b"%b%d" % (parent, block)).digest()
