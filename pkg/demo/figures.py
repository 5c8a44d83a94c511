"""The demo's figures and its verdict, from what its client saw and what the log says."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec

from .account import SOURCES
from .run import DemoResult

REQUESTS_MIN = 30


def missing(result: DemoResult) -> list[str]:
    """What the demo was to show and the log does not have."""
    account = result.account
    wanted = {
        f"{REQUESTS_MIN} requests": len(result.replies) >= REQUESTS_MIN,
        "an eviction among several candidates": account.evictions_with_choice > 0,
        "a checkpoint": account.checkpoints > 0,
        "a restore from SSD": account.restored_rows[SOURCES[3]] > 0,
        "a copy-on-write fork": account.forks > 0,
        "everything that was acknowledged": result.log_position >= result.settled_position,
    }
    if not result.deterministic:
        wanted |= {
            "a request that waited": account.queued > 0,
            "a restore from the object store": account.restored_rows[SOURCES[4]] > 0,
            "a request that moved to another worker": account.moved > 0,
        }
    return [what for what, happened in wanted.items() if not happened]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """What ``--json`` prints."""

    ok: bool
    directory: str
    requests: int
    failed: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    ttft_ms: dict[str, dict[str, int]]  # by source: count, p50, p95
    decode_tokens_per_s: int
    evictions: int
    evicted_pages: int
    restored_tokens: dict[str, int]
    copies: dict[str, int]
    forks: int
    moved: int
    compared: int
    unequal: list[str]
    missing: list[str]
    facts: int
    decisions: dict[str, dict[str, int]]
    serving_s: float
    report: str


def figures(result: DemoResult, report: Path) -> Figures:
    """The result in numbers."""
    account, verdict = result.account, result.verdict
    by_source: dict[str, list[float]] = {}
    gaps: list[float] = []
    for reply in result.replies:
        if reply.ok:
            source = account.source.get(reply.request, SOURCES[0])
            by_source.setdefault(source, []).append(reply.ttft_s)
            times = reply.chunk_times_s
            gaps += [after - before for before, after in pairwise(times)]
    kinds = sorted(account.decisions)
    lacking = missing(result)
    ok = (
        all(reply.ok for reply in result.replies)
        and not result.unequal
        and not lacking
        and verdict is not None
        and verdict.ok
    )
    return Figures(
        ok=ok,
        directory=str(result.directory),
        requests=len(result.replies),
        failed=sum(not reply.ok for reply in result.replies),
        prompt_tokens=sum(reply.prompt_tokens for reply in result.replies),
        completion_tokens=sum(reply.completion_tokens for reply in result.replies),
        cached_tokens=sum(reply.cached_tokens for reply in result.replies),
        ttft_ms={source: _spread(by_source[source]) for source in SOURCES if source in by_source},
        decode_tokens_per_s=int(1 / median(gaps)) if gaps and median(gaps) else 0,
        evictions=account.evictions,
        evicted_pages=account.evicted_columns,
        restored_tokens=dict(sorted(account.restored_rows.items())),
        copies=dict(sorted(account.copies.items())),
        forks=account.forks,
        moved=account.moved,
        compared=result.interrupted,
        unequal=result.unequal,
        missing=lacking,
        facts=account.facts,
        decisions={
            kind: {
                "re-derived": verdict.rederived.get(kind, 0) if verdict else 0,
                "mismatched": verdict.mismatched.get(kind, 0) if verdict else 0,
                "missing": verdict.missing.get(kind, 0) if verdict else 0,
            }
            for kind in kinds
        },
        serving_s=round(result.serving_s, 1),
        report=str(report),
    )


def _spread(values_s: list[float]) -> dict[str, int]:
    ordered = sorted(values_s)
    return {
        "count": len(ordered),
        "p50": int(1000 * median(ordered)),
        "p95": int(1000 * ordered[min(len(ordered) - 1, len(ordered) * 95 // 100)]),
    }
