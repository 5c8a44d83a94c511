"""`pagetrail bench pages`: what the page owner costs on one core, beside other engines' books.

Measures the operations that a scheduler pays for on each request: the digests of a prompt's pages,
a lookup that hits all of them, taking and giving back its pages, evicting one leaf among
thousands; each also with a million pages and a hundred thousand kept prompts. A peer runs in its
own interpreter (peers_pages.py); it is named by an environment variable and, when it is not there,
its columns stay empty.
"""

from __future__ import annotations

import gc
import hashlib
import json
import os
import statistics
import subprocess
import time
from array import array
from collections.abc import Callable
from pathlib import Path

import msgspec

from pagetrail.catalog.identity import ROOT
from pagetrail.catalog.kinds.worker import (
    FinishReason,
    NodesEvicted,
    PagesAdopted,
    PagesPromised,
    PoolSpec,
    PromptKept,
    RowsAdvanced,
    StreamFinished,
)
from pagetrail.controlplane.pages.digests import page_digests
from pagetrail.controlplane.pages.index import PrefixIndex
from pagetrail.controlplane.pages.owner import PageOwner

from .table import BenchResult, BenchRow, machine_name

VLLM_VARIABLE = "PAGETRAIL_BENCH_VLLM_PYTHON"  # an interpreter that has vllm
SGLANG_VARIABLE = "PAGETRAIL_BENCH_SGLANG_PYTHON"  # one that has sglang and torch
PEER_SECONDS_MAX = 300
PAGE_TOKENS = 16
PROMPT_TOKENS = 32_768
COLUMNS = PROMPT_TOKENS // PAGE_TOKENS
LEAVES = 4_000
SMALL_PAGES = 4 * COLUMNS + 2 * LEAVES
SMALL_ROUNDS = 5
LARGE_PAGES = 1_000_000
LARGE_PROMPTS = 100_000

HASH = "page digests of a 32k-token prompt"
LOOKUP = "lookup that hits 2,048 pages"
ALLOCATE = "allocate and free 32k tokens"
EVICT = "evict one leaf of 4,000"
LARGE = ", 1M pages and 100k kept prompts"
PEERS = (
    ("vllm", VLLM_VARIABLE, ((HASH, "hash"), (LOOKUP, "lookup"), (ALLOCATE, "allocate"))),
    ("sglang", SGLANG_VARIABLE, ((LOOKUP, "lookup"), (EVICT, "evict"))),
)


def run(quick: bool) -> dict[str, object]:
    """Measure everything; ``quick`` takes fewer repetitions and a tenth of the kept prompts."""
    repetitions = 30 if quick else 200
    hash_ns, floor_ns = _hashing(repetitions)
    rows = [
        BenchRow(
            case=HASH,
            unit="us",
            ours=hash_ns / 1_000,
            peer="hashlib floor",
            theirs=floor_ns / 1_000,
            ratio=floor_ns / hash_ns,
            goal="at most 1.3 x the floor",
            met=hash_ns <= 1.3 * floor_ns,
        )
    ]
    prompts = LARGE_PROMPTS // 10 if quick else LARGE_PROMPTS
    # A shared machine has slow seconds: rounds lie apart, and their median counts.
    rounds = [_owner_costs(SMALL_PAGES, LEAVES, repetitions)]
    large = _owner_costs(LARGE_PAGES, prompts, repetitions)
    rounds += [_owner_costs(SMALL_PAGES, LEAVES, repetitions) for _ in range(SMALL_ROUNDS - 1)]
    small = {case: int(statistics.median(costs[case] for costs in rounds)) for case in large}
    for case, goal_us in ((LOOKUP, 100), (ALLOCATE, 150), (EVICT, 20)):
        rows.append(
            BenchRow(
                case=case,
                unit="us",
                ours=small[case] / 1_000,
                goal=f"under {goal_us}",
                met=small[case] < goal_us * 1_000,
            )
        )
        rows.append(
            BenchRow(
                case=case + (LARGE if not quick else ", 1M pages and 10k kept prompts"),
                unit="us",
                ours=large[case] / 1_000,
                goal="within 2 x of the small one",
                met=large[case] <= 2 * small[case],
            )
        )
    ours = {HASH: hash_ns, **small}
    for peer, variable, cases in PEERS:
        rows += _peer_rows(peer, os.environ.get(variable), cases, ours)
    result = BenchResult(bench="pages", machine=machine_name(), rows=tuple(rows))
    plain: dict[str, object] = msgspec.to_builtins(result)
    return plain


def median_ns(work: Callable[[], object], repetitions: int) -> int:
    """Median CPU time of one call, the collector off: the work is one thread's, without waiting."""
    times = []
    gc.disable()
    try:
        for _ in range(repetitions):
            start = time.thread_time_ns()
            work()
            times.append(time.thread_time_ns() - start)
    finally:
        gc.enable()
    return int(statistics.median(times))


def _hashing(repetitions: int) -> tuple[int, int]:
    """Our page digests, and the least that hashlib can do for the same chain."""
    tokens = [place * 7 % 50_000 for place in range(PROMPT_TOKENS)]
    body = array("I", tokens).tobytes()
    step = 4 * PAGE_TOKENS

    def floor() -> None:
        parent = ROOT
        for start in range(0, len(body), step):
            parent = hashlib.sha256(parent + body[start : start + step]).digest()

    ours = median_ns(lambda: page_digests(tokens, PAGE_TOKENS), repetitions)
    return ours, median_ns(floor, repetitions)


class _Book:
    """An owner with its index and the commands of a request's life."""

    def __init__(self, pages: int) -> None:
        self.owner = PageOwner((PoolSpec("kv", 0, pages, 1),), PAGE_TOKENS, 0, pages, pages)
        self.index = PrefixIndex(self.owner)
        self.stream = 0

    def hold(self, columns: int) -> int:
        """A stream that allocates columns of its own."""
        self.stream += 1
        self.owner.apply(PagesAdopted(self.stream, 0, 0))
        self.owner.apply(PagesPromised(self.stream, (columns,)))
        self.owner.apply(RowsAdvanced(((self.stream, columns * PAGE_TOKENS),)))
        return self.stream

    def free(self, stream: int) -> None:
        self.owner.apply(StreamFinished(stream, FinishReason.STOP))

    def keep(self, digests: list[bytes]) -> None:
        """A prompt that is computed, kept and left."""
        stream = self.hold(len(digests))
        self.owner.apply(PromptKept(stream, 0, 0, len(digests)))
        self.index.record(stream, digests)
        self.free(stream)

    def evict_oldest(self) -> None:
        leaf = next(n for n in self.owner.oldest_nodes() if not n.children and not n.holders)
        self.owner.apply(NodesEvicted(((leaf.number, leaf.columns),)))


def _owner_costs(pages: int, prompts: int, repetitions: int) -> dict[str, int]:
    """Nanoseconds of each case in a book of that many pages and kept prompts."""
    book = _Book(pages)
    digests = page_digests(range(PROMPT_TOKENS), PAGE_TOKENS)
    for prompt in range(prompts):
        book.keep([prompt.to_bytes(32, "big")])
    book.keep(digests)
    return {
        LOOKUP: median_ns(lambda: book.index.match(digests), repetitions),
        ALLOCATE: median_ns(lambda: book.free(book.hold(COLUMNS)), repetitions),
        EVICT: median_ns(book.evict_oldest, repetitions),
    }


def _peer_rows(
    peer: str, interpreter: str | None, cases: tuple[tuple[str, str], ...], ours: dict[str, int]
) -> list[BenchRow]:
    """Another engine's book in the same cases, from a run of its own; empty without it.

    vLLM has no call that evicts: taking a block that holds a prefix is its eviction. SGLang's
    cache hashes nothing and owns no pages.
    """
    theirs: dict[str, int] = {}
    if interpreter:
        script = Path(__file__).with_name("peers_pages.py")
        sizes = [str(size) for size in (PAGE_TOKENS, PROMPT_TOKENS, SMALL_PAGES)]
        answer = subprocess.run(
            [interpreter, "-P", str(script), peer, *sizes],
            capture_output=True,
            text=True,
            timeout=PEER_SECONDS_MAX,
            check=True,
        )
        theirs = json.loads(answer.stdout.splitlines()[-1])
    rows = []
    for case, key in cases:
        their_ns = theirs.get(key)
        rows.append(
            BenchRow(
                case=f"{case}, beside {peer}",
                unit="us",
                ours=ours[case] / 1_000,
                peer=peer,
                theirs=None if their_ns is None else their_ns / 1_000,
                ratio=None if their_ns is None else their_ns / ours[case],
            )
        )
    return rows
