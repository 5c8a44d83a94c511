"""Request traces: the public format of hashed blocks, read and generated.

A trace is JSON lines: ``timestamp`` (ms), ``input_length`` and ``output_length`` (tokens), and
``hash_ids``, one id for every block of ``block_tokens`` of the prompt, the last one perhaps
partial. An id stands for a block together with everything before it, so it has one parent.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.identity import ROOT, chain
from pagetrail.controlplane.cluster.messages import Prompt

BLOCK_TOKENS = 512
LINE_BYTES_MAX = 1 << 20


class TraceRequest(msgspec.Struct, frozen=True):
    """One line of a trace."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


_DECODER = msgspec.json.Decoder(TraceRequest)


def read_trace(path: Path, block_tokens: int = BLOCK_TOKENS) -> Iterator[TraceRequest]:
    """The requests of a trace file, in file order.

    Raises BadInputError, naming the line, for anything that is not such a request: lengths that
    are not positive, a number of ids that does not cover the prompt, a clock that steps back.
    """
    last_ms = 0
    try:
        handle = path.open("rb")
    except OSError as error:
        raise BadInputError(f"cannot read the trace {path}: {error.strerror}") from error
    with handle:
        for number, line in enumerate(handle, 1):
            if not line.strip():
                continue
            try:
                request = _DECODER.decode(line)
            except msgspec.MsgspecError as error:
                raise BadInputError(
                    f"{path}:{number}: not a trace request ({error}); expected timestamp, "
                    "input_length, output_length and hash_ids"
                ) from error
            blocks = -(-request.input_length // block_tokens)
            if request.input_length < 1 or request.output_length < 0:
                raise BadInputError(f"{path}:{number}: lengths must be positive")
            if len(request.hash_ids) != blocks:
                raise BadInputError(
                    f"{path}:{number}: {request.input_length} tokens are {blocks} blocks of "
                    f"{block_tokens}, but there are {len(request.hash_ids)} ids"
                )
            if request.timestamp < last_ms:
                raise BadInputError(
                    f"{path}:{number}: timestamp {request.timestamp} lies before {last_ms}"
                )
            last_ms = request.timestamp
            yield request


class TracePrompts:
    """Turns a trace's block ids into prompts with digests.

    The trace's blocks are pages and chunks alike; a block's digest chains its id to its parent's.
    ``count`` says what may be reused: ``serving`` never the last block, in which the last prompt
    token lies; ``trace`` every block, as the ids themselves count.
    """

    def __init__(self, count: str, block_tokens: int = BLOCK_TOKENS) -> None:
        if count not in ("serving", "trace"):
            raise BadInputError(f"count must be serving or trace, not {count!r}")
        self._last_is_reusable = count == "trace"
        self._block_tokens = block_tokens
        self._digests: dict[tuple[bytes, int], bytes] = {}

    def prompt(self, request: TraceRequest) -> Prompt:
        """The prompt of one request."""
        parent = ROOT
        pages = []
        for block in request.hash_ids:
            digest = self._digests.get((parent, block))
            if digest is None:
                digest = self._digests[(parent, block)] = chain(parent, (block,))
            pages.append(digest)
            parent = digest
        whole = request.input_length // self._block_tokens
        return Prompt(
            tokens=request.input_length,
            digest=parent,
            root=ROOT,
            pages=tuple(pages),
            chunks=tuple(pages[:whole]),
            adoptable=len(pages) if self._last_is_reusable else len(pages) - 1,
        )


def generate_trace(
    seed: int, requests: int, block_tokens: int = BLOCK_TOKENS
) -> Iterator[TraceRequest]:
    """A trace of the same shape as production chat: bursts, shared system prompts, turns.

    A function of its arguments alone. Conversations open in bursts under one of a few system
    prompts of very different popularity; each goes on for some turns, every turn's prompt being
    the whole conversation so far.
    """
    draw = random.Random(seed)
    next_id = 0
    clock_ms = 0

    def fresh(count: int) -> list[int]:
        nonlocal next_id
        ids = list(range(next_id, next_id + count))
        next_id += count
        return ids

    systems = [fresh(1 + draw.randrange(4)) for _ in range(6)]
    talks: list[list[int]] = []
    for number in range(requests):
        if number % 12 == 0:
            clock_ms += draw.randrange(2_000, 9_000)
        else:
            clock_ms += draw.randrange(0, 400)
        if talks and draw.random() < 0.55:
            blocks = talks.pop(draw.randrange(len(talks)))
            blocks = blocks + fresh(1 + draw.randrange(6))
        else:
            blocks = systems[min(draw.randrange(6), draw.randrange(6))] + fresh(
                1 + draw.randrange(16)
            )
        tail = draw.randrange(1, block_tokens + 1)
        prompt_ids = blocks if tail == block_tokens else [*blocks, *fresh(1)]
        input_length = len(blocks) * block_tokens + (tail if tail < block_tokens else 0)
        if draw.random() < 0.8 and len(blocks) < 200:
            talks.append(blocks)
        if len(talks) > 64:
            talks.pop(0)
        yield TraceRequest(clock_ms, input_length, draw.randrange(1, 900), tuple(prompt_ids))


def write_trace(path: Path, requests: Iterable[TraceRequest]) -> None:
    """Write requests in the public format."""
    with path.open("wb") as handle:
        for request in requests:
            handle.write(msgspec.json.encode(request) + b"\n")
