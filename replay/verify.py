"""`pagetrail replay verify`: does every recorded decision still come out of what was recorded?

Reads facts only. Every process reads the whole log and folds its share of the spans between
keyframes; a span's fold must end in the keyframe that the next one starts from, an epoch's chain in
the value that the next epoch's start fact cites. Owns the verdict; changes nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkProcess
from pathlib import Path

import msgspec

from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.catalog.kinds.router import RouterStarted
from pagetrail.catalog.kinds.worker import WorkerStarted
from pagetrail.controlplane.log.reader import log_end
from pagetrail.controlplane.twins import NO_TWINS, TwinBuildError, Twins, load_twins

from .epochs import Epoch
from .findings import FINDINGS_MAX, UNREADABLE, Finding
from .lookups import ByRule, LookupSample, SampledLookup, lookup_findings, lowest
from .reading import LogReading
from .spans import Span, SpanFolds

PROCESSES_MAX = 64
PROCESS_FACTS_MIN = 20_000
"""Facts for which another process pays, when their number is left to verify."""

TWINS_FACTS_MIN = 20_000
"""Facts for which compiled twins of evaluators pay, which may have to be built."""


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
    by_twin: int  # of those derived again, by the compiled twin of their evaluator
    twins_missing: str  # why there were none, where the log is long enough for them
    lookups_checked: int  # recorded look-ups that the rules were asked about
    spans: int
    wall_s: float
    decisions_per_s: int


class _Answer(msgspec.Struct):
    """What a process found in its share, or why it could not."""

    spans: list[Span]
    lookups: list[SampledLookup]
    error: str = ""


def verify(
    directory: Path,
    *,
    processes: int | None = None,
    by_rule: ByRule | None = None,
    compiled: bool = True,
) -> VerifyResult:
    """Verify the log of a run directory, up to where it ends now.

    ``by_rule``: ask the rules about a sample of the recorded look-ups too. ``compiled``: ask the
    compiled twins of evaluators first, where the log is long enough for them. Raises BadInputError
    when there is no log, CorruptionError when its bytes are damaged: replay begins where the log
    itself is sound.
    """
    started_s = time.monotonic()
    reading = LogReading(directory, until_seq=log_end(directory))
    shares = _processes(processes, reading.until_seq)
    twins, twins_missing = _twins(reading.until_seq) if compiled else (NO_TWINS, "")
    most = by_rule.most if by_rule is not None else 0
    helpers = [
        _Helper(directory, reading.until_seq, share, shares, most, twins)
        for share in range(1, shares)
    ]
    try:
        answers = [_fold(reading, 0, shares, most, twins), *(helper.answer() for helper in helpers)]
    finally:
        for helper in helpers:
            helper.stop()
    spans = [span for answer in answers for span in answer.spans]
    spans.sort(key=lambda span: (span.client, span.client_epoch, span.number))
    sampled: list[SampledLookup] = []
    if by_rule is not None:
        sampled = lowest([one for answer in answers for one in answer.lookups], most)
        with by_rule.open(directory) as replica:
            reading.findings += lookup_findings(replica, sampled)
    return _verdict(directory, reading, spans, len(sampled), twins_missing, started_s)


def _fold(reading: LogReading, share: int, shares: int, most: int, twins: Twins) -> _Answer:
    sample = LookupSample(most, reading.history)
    folds = SpanFolds(reading.history, share, shares, twins, sample.observe if most else None)
    for run in reading.runs():
        epoch = reading.epochs[(run.client, run.client_epoch)]
        if epoch.decides:
            folds.feed(epoch, run)
    return _Answer(folds.end(), sample.kept)


def _verdict(
    directory: Path,
    reading: LogReading,
    spans: list[Span],
    lookups: int,
    twins_missing: str,
    started_s: float,
) -> VerifyResult:
    findings = list(reading.findings)
    rederived, mismatched, missing = Counter[str](), Counter[str](), Counter[str]()
    findings_cut = 0
    unattested: dict[str, int] = {}
    last: dict[tuple[str, int], Span] = {}
    for span in spans:
        result = span.result
        rederived.update(result.rederived)
        mismatched.update(result.mismatched)
        missing.update(result.missing)
        findings += result.findings
        findings_cut += result.findings_cut
        last[(span.client, span.client_epoch)] = span
        # The start of a client's next epoch attests the end of this one.
        unattested[span.client] = result.unattested
    epochs = [reading.epochs[key] for key in sorted(reading.epochs)]
    findings += _epoch_findings(epochs, {key: span.result.end_chain for key, span in last.items()})
    findings += _unknown_workers(reading, spans)
    for epoch in epochs:
        if not epoch.decides:
            unattested[epoch.client] = epoch.count + unattested.get(epoch.client, 0)
    decisions = sum(counter.total() for counter in (rederived, mismatched, missing))
    wall_s = time.monotonic() - started_s
    return VerifyResult(
        log=str(directory),
        ok=not findings,
        facts=reading.facts,
        decisions=decisions,
        rederived=_ordered(rederived),
        mismatched=_ordered(mismatched),
        missing=_ordered(missing),
        findings=[str(finding) for finding in findings[:FINDINGS_MAX]],
        findings_cut=findings_cut + max(0, len(findings) - FINDINGS_MAX),
        unattested={client: count for client, count in sorted(unattested.items()) if count},
        by_twin=sum(span.result.by_twin for span in spans),
        twins_missing=twins_missing,
        lookups_checked=lookups,
        spans=len(spans),
        wall_s=round(wall_s, 3),
        decisions_per_s=int(decisions / wall_s) if wall_s else 0,
    )


def _epoch_findings(epochs: list[Epoch], chains: dict[tuple[str, int], bytes]) -> Iterator[Finding]:
    """Epochs whose start cites another end of the epoch before than the log has."""
    before: dict[str, int] = {}
    for epoch in epochs:
        if not epoch.decides:
            continue
        try:
            start = epoch.start
        except UNREADABLE:
            continue  # the fold reports it
        previous = before.get(epoch.client, 0)
        before[epoch.client] = epoch.client_epoch
        chain = chains.get((epoch.client, previous), b"")
        if not isinstance(start, WorkerStarted | RouterStarted):
            continue
        if (start.previous_epoch, start.previous_chain) != (previous, chain):
            yield Finding(
                epoch.client,
                epoch.client_epoch,
                0,
                "start",
                f"cites epoch {start.previous_epoch} as the one before; the log has epoch "
                f"{previous}"
                + (" with another history" if start.previous_epoch == previous else ""),
            )


def _unknown_workers(reading: LogReading, spans: list[Span]) -> Iterator[Finding]:
    """Worker epochs that a router observed and of which the log holds nothing."""
    told: set[tuple[str, int, str, int]] = set()
    for span in spans:
        for client_seq, worker, epoch in span.result.observed:
            name = (span.client, span.client_epoch, worker, epoch)
            if (worker, epoch) not in reading.epochs and name not in told:
                told.add(name)
                what = f"observed {worker} epoch {epoch}, of which no fact is"
                yield Finding(span.client, span.client_epoch, client_seq, "journal", what)


# ---------------------------------------------------------------- processes


def _processes(asked: int | None, facts: int) -> int:
    if asked is not None:
        if not 1 <= asked <= PROCESSES_MAX:
            raise BadInputError(f"processes must be from 1 to {PROCESSES_MAX}, not {asked}")
        return asked
    available = len(os.sched_getaffinity(0))
    return max(1, min(available, facts // PROCESS_FACTS_MIN, PROCESSES_MAX))


def _twins(facts: int) -> tuple[Twins, str]:
    """The compiled twins, or why there are none where they would pay."""
    if facts < TWINS_FACTS_MIN:
        return NO_TWINS, ""
    try:
        return load_twins(), ""
    except TwinBuildError as error:
        return NO_TWINS, str(error)


class _Helper:
    """A process that folds a share of the log's spans."""

    def __init__(
        self, directory: Path, until_seq: int, share: int, shares: int, most: int, twins: Twins
    ) -> None:
        context = multiprocessing.get_context("fork")
        self._ours, theirs = context.Pipe(duplex=False)
        self._process: ForkProcess = context.Process(
            target=_help, args=(directory, until_seq, share, shares, most, twins, theirs)
        )
        self._process.start()
        theirs.close()

    def answer(self) -> _Answer:
        """What it found. Raises PagetrailError when it failed."""
        try:
            answer = msgspec.msgpack.decode(self._ours.recv_bytes(), type=_Answer)
        except EOFError:
            self._process.join()
            raise PagetrailError(
                f"a replay process ended with code {self._process.exitcode} before it answered"
            ) from None
        if answer.error:
            raise PagetrailError(answer.error)
        return answer

    def stop(self) -> None:
        """End it, whether it has answered or not."""
        self._process.terminate()
        self._process.join()
        self._ours.close()


def _help(
    directory: Path,
    until_seq: int,
    share: int,
    shares: int,
    most: int,
    twins: Twins,
    out: Connection,
) -> None:
    try:
        answer = _fold(LogReading(directory, until_seq=until_seq), share, shares, most, twins)
    except PagetrailError as error:
        answer = _Answer([], [], str(error))
    out.send_bytes(msgspec.msgpack.encode(answer))
    out.close()


def _ordered(counter: Counter[str]) -> dict[str, int]:
    return dict(sorted(counter.items()))
