"""`pagetrail replay verify`: does every recorded decision still come out of what was recorded?

Reads facts only. Spans between keyframes are folded in parallel processes; a span's fold must end
in the keyframe that the next one starts from, an epoch's chain in the value that the next epoch's
start fact cites. Owns the verdict; changes nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec

from pagetrail.catalog.errors import BadInputError, PagetrailError

from .fold import FINDINGS_MAX, Folder, SpanResult
from .loading import Job, Loaded

PROCESSES_MAX = 64


class VerifyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on a log. ``ok``: every decision was derived again and nothing else is amiss."""

    log: str
    ok: bool
    facts: int
    decisions: int
    rederived: dict[str, int]
    mismatched: dict[str, int]
    missing: dict[str, int]  # could not be derived: no evaluator, or the view before them is broken
    findings: list[str]
    findings_cut: int
    unattested: dict[str, int]  # by client: transactions that nothing after them attests
    spans: int
    wall_s: float
    decisions_per_s: int


def verify(directory: Path, *, processes: int | None = None) -> VerifyResult:
    """Verify the log of a run directory.

    Raises BadInputError when there is no log, CorruptionError when its bytes are damaged: replay
    begins where the log itself is sound.
    """
    started_s = time.monotonic()
    loaded = Loaded.read(directory)
    findings = list(loaded.findings)
    jobs = loaded.jobs()
    results = _run(loaded, jobs, _processes(processes, len(jobs)))
    rederived, mismatched, missing = Counter[str](), Counter[str](), Counter[str]()
    findings_cut = 0
    chains: dict[tuple[str, int], bytes] = {}
    unattested: dict[str, int] = {}
    for job, result in zip(jobs, results, strict=True):
        rederived.update(result.rederived)
        mismatched.update(result.mismatched)
        missing.update(result.missing)
        findings += result.findings
        findings_cut += result.findings_cut
        journal = loaded.journals[job[0]]
        chains[(journal.client, journal.client_epoch)] = result.end_chain
        # The start of a client's next epoch attests the end of this one.
        unattested[journal.client] = result.unattested
    findings += loaded.epoch_findings(chains)
    for journal in loaded.journals:
        if not journal.decides:
            unattested[journal.client] = len(journal.transactions) + unattested.get(
                journal.client, 0
            )
    decisions = sum(counter.total() for counter in (rederived, mismatched, missing))
    wall_s = time.monotonic() - started_s
    return VerifyResult(
        log=str(directory),
        ok=not findings,
        facts=loaded.facts,
        decisions=decisions,
        rederived=_ordered(rederived),
        mismatched=_ordered(mismatched),
        missing=_ordered(missing),
        findings=[str(finding) for finding in findings[:FINDINGS_MAX]],
        findings_cut=findings_cut + max(0, len(findings) - FINDINGS_MAX),
        unattested={client: count for client, count in sorted(unattested.items()) if count},
        spans=len(jobs),
        wall_s=round(wall_s, 3),
        decisions_per_s=int(decisions / wall_s) if wall_s else 0,
    )


def fold_span(loaded: Loaded, job: Job) -> SpanResult:
    """Fold one span."""
    place, first, last = job
    return Folder(loaded.journals[place], loaded.history).run(first, last)


def _processes(asked: int | None, jobs: int) -> int:
    if asked is not None and not 1 <= asked <= PROCESSES_MAX:
        raise BadInputError(f"processes must be from 1 to {PROCESSES_MAX}, not {asked}")
    available = len(os.sched_getaffinity(0)) if asked is None else asked
    return max(1, min(available, jobs, PROCESSES_MAX))


def _run(loaded: Loaded, jobs: list[Job], processes: int) -> list[SpanResult]:
    if processes == 1:
        return [fold_span(loaded, job) for job in jobs]
    context = multiprocessing.get_context("fork")  # children share what was read, uncopied
    children = []
    for number in range(processes):
        ours, theirs = context.Pipe(duplex=False)
        child = context.Process(target=_child, args=(loaded, jobs[number::processes], theirs))
        child.start()
        theirs.close()
        children.append((child, ours))
    results: list[SpanResult | None] = [None] * len(jobs)
    failure: str | None = None
    for number, (child, ours) in enumerate(children):
        try:
            answered = msgspec.msgpack.decode(ours.recv_bytes(), type=list[SpanResult])
            results[number::processes] = answered
        except EOFError:
            failure = f"a replay process ended with code {child.exitcode} before it answered"
        child.join()
    if failure is not None or any(result is None for result in results):
        raise PagetrailError(failure or "a replay process answered too little")
    return [result for result in results if result is not None]


def _child(loaded: Loaded, jobs: list[Job], out: Connection) -> None:
    out.send_bytes(msgspec.msgpack.encode([fold_span(loaded, job) for job in jobs]))
    out.close()


def _ordered(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items()))
