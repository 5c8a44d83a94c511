"""`pagetrail bench replay`: what it costs to derive recorded decisions again, and to store them.

Decisions with 64 candidates are made by the production machines, written by the production
committer and verified end to end in one process: a router over 64 workers, and a worker whose full
pool evicts for every request. The floor is reading and decoding the same log without deriving
anything. Sizes are those of the decisions' own tables in the sealed form, of segments with 4,000
decisions of the kind (1,000 when quick).
"""

from __future__ import annotations

import gc
import hashlib
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from pagetrail.catalog.envelope import Transaction
from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.facts import KindId, fact
from pagetrail.catalog.identity import ROOT, chain
from pagetrail.catalog.index import LiveIndex
from pagetrail.catalog.kinds.router import Answer, RouterStarted, WorkerObserved
from pagetrail.catalog.kinds.worker import FinishReason, Metric, PoolSpec, WorkerStarted
from pagetrail.controlplane.cluster.deciding import Decider
from pagetrail.controlplane.cluster.messages import Ended, Incoming, Offer, Prompt, Run
from pagetrail.controlplane.cluster.router import RouterMachine
from pagetrail.controlplane.cluster.router_view import RouterView
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.cluster.worker_state import PublisherState
from pagetrail.controlplane.journal import Journal
from pagetrail.controlplane.log.clock import LogicalClock
from pagetrail.controlplane.log.committer import open_committer
from pagetrail.controlplane.log.manifests import read_manifest
from pagetrail.controlplane.log.reader import read_log
from pagetrail.controlplane.log.sealing import seal_log
from pagetrail.controlplane.log.transactions import encode_transactions
from pagetrail.controlplane.policy.recorder import FULL, REFERENCE, RecordMode
from pagetrail.controlplane.policy.registry import bind
from pagetrail.controlplane.view import WorkerView
from pagetrail.replay.fold import Derivation
from pagetrail.replay.inputs import inputs_of
from pagetrail.replay.loading import Loaded
from pagetrail.replay.trace import generate_trace
from pagetrail.replay.verify import VerifyResult, verify
from pagetrail.simtrace import TraceSettings, run_trace

from .table import BenchResult, BenchRow, machine_name

CANDIDATES = 64
REPORTS = 4
"""Workers that report between two decisions of a router: many, against few."""

GOAL_PER_S = 20_000
GOAL_REFERENCE_BYTES = 100
GOAL_FULL_BYTES = 600
PAGE_TOKENS = 16
FINGERPRINT = hashlib.sha256(b"bench replay").digest()
_COMMIT_TRANSACTIONS = 500
_REPEATS = 9
"""Their median counts."""


def run(quick: bool) -> dict[str, object]:
    """Measure every row; ``quick`` takes well under a minute."""
    directory = Path(tempfile.mkdtemp(prefix="pagetrail-bench-", dir=Path.cwd()))
    decisions = 1_000 if quick else 4_000
    rows: list[BenchRow] = []
    try:
        quiet = directory / "route-quiet"
        _write(quiet, _routes(decisions, REFERENCE, reports=1))
        rows += [
            _verified(
                quiet, f"verify route decisions, {CANDIDATES} candidates, a report each", GOAL_PER_S
            )
        ]
        for kind, build in ((KindId.ROUTE, _routes), (KindId.EVICT, _evictions)):
            name = kind.name.lower()
            for mode, form, goal in (
                (REFERENCE, "reference", GOAL_REFERENCE_BYTES),
                (FULL, "full", GOAL_FULL_BYTES),
            ):
                log = directory / f"{name}-{form}"
                _write(log, build(decisions, mode))
                if mode is REFERENCE:
                    rows += _speed(log, kind)
                rows.append(_size(log, kind, form, goal))
        rows.append(_trace(directory / "trace", 300 if quick else 1_000))
    finally:
        shutil.rmtree(directory)
    result = BenchResult("replay", machine_name(), tuple(rows))
    plain: dict[str, object] = msgspec.to_builtins(result)
    return plain


# ---------------------------------------------------------------- what is measured


def _speed(log: Path, kind: KindId) -> Iterator[BenchRow]:
    name = kind.name.lower()
    goal = GOAL_PER_S if kind is KindId.ROUTE else None  # a worker's log holds other decisions too
    told = f", {REPORTS} reports each" if kind is KindId.ROUTE else ""
    yield _verified(log, f"verify {name} decisions, {CANDIDATES} candidates{told}", goal)
    inputs_ns, evaluate_ns = _parts(log, kind)
    rate = 1e9 / (inputs_ns + evaluate_ns)
    yield BenchRow(
        f"derive a {name} decision again, {CANDIDATES} candidates",
        "decisions/s a core",
        rate,
        "its evaluator alone",
        1e9 / evaluate_ns,
        evaluate_ns / (inputs_ns + evaluate_ns),
        GOAL_PER_S,
        rate >= GOAL_PER_S,
    )


def _verified(log: Path, case: str, goal: int | None) -> BenchRow:
    """Everything that verify does, by CPU time of one process; the floor by the same."""
    results: list[VerifyResult] = []
    ours_s = _cpu_s(lambda: results.append(verify(log, processes=1)))
    if not results[0].ok:
        raise InvariantError(f"the bench's own log does not verify: {results[0].findings[:3]}")
    floor_s = _cpu_s(lambda: sum(len(frame.runs()) for frame in read_log(log)))
    rate = results[0].decisions / ours_s
    return BenchRow(
        case,
        "decisions/s a core",
        rate,
        "reading and decoding it",
        results[0].decisions / floor_s,
        floor_s / ours_s,
        goal,
        None if goal is None else rate >= goal,
    )


def _parts(log: Path, kind: KindId) -> tuple[float, float]:
    """Nanoseconds of CPU a decision: its inputs, and its evaluation with the digest.

    The quarter of the decisions that went fastest counts, so that a busy machine does not.
    """
    loaded = Loaded.read(log)
    inputs_ns: list[int] = []
    evaluate_ns: list[int] = []

    def observe(seen: Derivation) -> None:
        if seen.kind is not kind:
            return
        start = time.perf_counter_ns()
        inputs = inputs_of(kind, seen.view, seen.decision, loaded.history)
        built = time.perf_counter_ns()
        seen.force.evaluator.evaluate(seen.force.weights, inputs).encoded_alternatives()
        inputs_ns.append(built - start)
        evaluate_ns.append(time.perf_counter_ns() - built)

    loaded.derive_all(observe)
    quarter = max(1, len(inputs_ns) // 4)
    return (
        sum(sorted(inputs_ns)[:quarter]) / quarter,
        sum(sorted(evaluate_ns)[:quarter]) / quarter,
    )


def _size(log: Path, kind: KindId, form: str, goal: int) -> BenchRow:
    """Sealed bytes of the decisions' own table, a decision; JSON with every term beside it."""
    committer, _ = open_committer(log, clock=LogicalClock())  # a segment is sealed once it is left
    committer.close()
    seal_log(log)
    sealed = [
        file
        for path in sorted((log / "log").glob("sealed-*"))
        if path.is_dir()
        for file in read_manifest(path).files
        if file.kind == kind
    ]
    ours = sum(file.size_bytes for file in sealed) / sum(file.rows for file in sealed)
    theirs = _json_bytes(log, kind)
    return BenchRow(
        f"{kind.name.lower()} decision with {CANDIDATES} candidates, sealed, {form} form",
        "bytes",
        ours,
        "JSON of all alternatives",
        theirs,
        theirs / ours,
        goal,
        ours < goal,
    )


def _json_bytes(log: Path, kind: KindId) -> float:
    loaded = Loaded.read(log)
    sizes: list[int] = []

    def observe(seen: Derivation) -> None:
        if seen.kind is kind and len(sizes) < 50:
            evaluation = seen.force.evaluator.evaluate(seen.force.weights, seen.inputs)
            names = [term.name for term in seen.force.evaluator.terms]
            rows = zip(*evaluation.columns, strict=True)
            told = [dict(zip(names, row, strict=True)) for row in rows]
            sizes.append(len(msgspec.json.encode(told)))

    loaded.derive_all(observe)
    return sum(sizes) / len(sizes)


def _trace(directory: Path, requests: int) -> BenchRow:
    directory.mkdir()
    run_trace(generate_trace(1, requests), directory, TraceSettings(workers=2, pages=400))
    return _verified(directory, "verify a generated trace, 2 workers with tiers, end to end", None)


def _cpu_s(work: Callable[[], object]) -> float:
    times = []
    for _ in range(_REPEATS):
        gc.collect()
        start = time.process_time()
        work()
        times.append(time.process_time() - start)
    return statistics.median(times)


# ---------------------------------------------------------------- logs of decisions


Journals = dict[str, list[Transaction]]


def _write(directory: Path, journals: Journals) -> None:
    directory.mkdir(parents=True)
    committer, _ = open_committer(directory, clock=LogicalClock())
    for client, transactions in journals.items():
        for first in range(0, len(transactions), _COMMIT_TRANSACTIONS):
            message = transactions[first : first + _COMMIT_TRANSACTIONS]
            committer.admit(client, 1, encode_transactions(message))
            committer.commit()
    committer.close()


def _routes(decisions: int, mode: RecordMode, reports: int = REPORTS) -> Journals:
    """A router over 64 workers; some report between any two requests."""
    start = RouterStarted(
        router="router",
        router_epoch=1,
        fingerprint=FINGERPRINT,
        page_tokens=PAGE_TOKENS,
        chunk_tokens=PAGE_TOKENS,
        chunk_bytes=4_096,
        reserve_output=True,
        evaluators=(bind("routing/min-ttft@1"),),
        previous_epoch=0,
        previous_chain=b"",
    )
    bound = start.evaluators
    decider = Decider(Journal("router", 1), RouterView(start), bound, mode, 1 << 30)
    decider.write([start])
    machine = RouterMachine(decider, start, LiveIndex(), _NothingResident())
    draw = random.Random(1)
    workers = [f"worker-{number:02d}" for number in range(CANDIDATES)]
    for observation in range(decisions):
        for worker in workers if not observation else draw.sample(workers, reports):
            machine.heartbeat(_report(worker, observation, draw))
        request = _request(observation, draw.randrange(100, 8_000))
        number, _ = machine.received(request, observation)
        machine.answered(number, 1, Answer.ACCEPTED)
        machine.ended(Ended(number, 1, FinishReason.LENGTH, 0, 0, 1_000_000))
    decider.keyframe()
    starts = {worker: [Transaction(0, (), (), (fact(_started(worker, 1)),))] for worker in workers}
    return {"router": decider.drain(), **starts}


class _NothingResident:
    def tokens(self, prompt_pages: tuple[bytes, ...], workers: tuple[str, ...]) -> dict[str, int]:
        return {}


def _report(worker: str, observation: int, draw: random.Random) -> WorkerObserved:
    return WorkerObserved(
        worker=worker,
        worker_epoch=1,
        observation=observation,
        fingerprint=FINGERPRINT,
        online=True,
        context_tokens=32_768,
        verify_rows=0,
        free_pages=draw.randrange(300, 2_000),
        reclaimable_pages=draw.randrange(2_000),
        queue_ns=draw.randrange(400_000_000),
        costs=tuple(20_000 for _ in Metric),
        samples=tuple(0 for _ in Metric),
    )


def _evictions(decisions: int, mode: RecordMode) -> Journals:
    """A worker whose pool is full of kept prompts, so that every request evicts."""
    start = _started("worker", 800)
    bound = start.evaluators
    decider = Decider(Journal("worker", 1), WorkerView(start), bound, mode, 1 << 30)
    decider.write([start])
    machine = WorkerMachine(decider, start, LiveIndex())
    draw = random.Random(2)
    number = 0
    while decider.decided[KindId.EVICT] < decisions:
        number += 1
        machine.offered(
            Offer(number, 1, "worker", 1, _request(number, draw.randrange(20, 160)), 0), number
        )
        for effect in machine.admit_waiting(number):
            if isinstance(effect, Run):
                rows = machine.prompt(effect.stream).tokens - effect.rows
                machine.advanced(effect.stream, rows)
                machine.done(effect.stream, FinishReason.LENGTH, PublisherState(0, -1))
    decider.keyframe()
    return {"worker": decider.drain()}


def _started(worker: str, pages: int) -> WorkerStarted:
    return WorkerStarted(
        worker=worker,
        worker_epoch=1,
        fingerprint=FINGERPRINT,
        pools=(PoolSpec("kv", 0, pages, 4_096),),
        page_tokens=PAGE_TOKENS,
        chunk_tokens=PAGE_TOKENS,
        chunk_bytes=4_096,
        checkpoint_tiers=(),
        publish_queue_max=1,
        staging_bytes_max=4_096,
        context_tokens=32_768,
        verify_rows=0,
        step_rows=32_768,
        lanes=1,
        kept_columns_max=pages,
        kept_nodes_max=pages,
        reserve_output=False,
        costs=tuple((metric, 20_000) for metric in Metric),
        evaluators=tuple(bind(name) for name in _WORKER_EVALUATORS),
        previous_epoch=0,
        previous_chain=b"",
    )


_WORKER_EVALUATORS = (
    "admission/reserve@1",
    "residency/leaf-lru@1",
    "restore/min-completion@1",
    "checkpoint/expected-value@1",
    "keep/within-limits@1",
)


def _request(number: int, tokens: int) -> Incoming:
    pages = []
    parent = ROOT
    for page in range(-(-tokens // PAGE_TOKENS)):
        parent = chain(parent, (number, page))
        pages.append(parent)
    whole = tokens // PAGE_TOKENS
    prompt = Prompt(tokens, parent, ROOT, tuple(pages), tuple(pages[:whole]), len(pages) - 1)
    return Incoming(f"request-{number}", "", 0, 0, prompt, 16)
