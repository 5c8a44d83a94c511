"""The demo's course: start, talk, kill a worker, go on, fork, compare, stop, verify.

Owns the order of events and the verdict. Everything it needs of the product it reaches as a user
does: processes, HTTP, the log.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import httpx
import msgspec

from pagetrail.replay.verify import VerifyResult, verify
from pagetrail.up import ClusterOptions, LocalCluster

from .account import SOURCES, Account, read_account
from .client import TIMEOUT_S, Reply, ask
from .workload import Conversation, Workload, make_workload, messages

WORKERS = 2
AT_ONCE = 6
ANSWER_TOKENS = 14
LONG_TOKENS = 48
KILLED = "worker-1"

# Small on purpose: one page pool holds two long conversations, so the third has to wait or evict.
SETTINGS = (
    "worker.pages=104",
    "worker.page_tokens=16",
    "worker.chunk_tokens=128",
    "worker.context=1024",
    "worker.lanes=4",
    "worker.prefill_tile=128",
    "worker.step_rows=256",
    "worker.ram_bytes=0",
    "gateway.heartbeat_ms=100",
    "gateway.expiry_ms=1500",
)
DETERMINISTIC_SETTINGS = ("worker.measure_costs=false",)

Progress = Callable[[str], None]


@dataclass(slots=True)
class DemoResult:
    """Everything the table and the exit code come from."""

    directory: Path
    replies: list[Reply] = field(default_factory=list)
    interrupted: int = 0
    unequal: list[str] = field(default_factory=list)
    account: Account = field(default_factory=Account)
    verdict: VerifyResult | None = None
    serving_s: float = 0.0
    missing: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every request ended as it should and every decision was derived again."""
        return (
            all(reply.ok for reply in self.replies)
            and not self.unequal
            and not self.missing
            and self.verdict is not None
            and self.verdict.ok
        )


def run_demo(
    directory: Path,
    seed: int,
    progress: Progress,
    *,
    deterministic: bool = False,
    model: str | None = None,
) -> DemoResult:
    """Run the demo in an empty directory."""
    result = DemoResult(directory)
    settings = SETTINGS + (DETERMINISTIC_SETTINGS if deterministic else ())
    if model is not None:
        settings += (f"model.name={model}",)
    workload = make_workload(seed)
    options = ClusterOptions(
        directory,
        WORKERS,
        settings,
        writer_clock="logical" if deterministic else "wall",
    )
    progress("starting the writer, the gateway and two workers")
    with LocalCluster(options) as cluster:
        started_s = time.monotonic()
        asyncio.run(_talk(cluster, workload, result, progress, deterministic))
        result.serving_s = time.monotonic() - started_s
        progress("stopping the cluster")
    progress("deriving every decision again from the log")
    result.verdict = verify(directory)
    result.account = read_account(directory)
    result.missing = _missing(result, deterministic)
    return result


async def _talk(
    cluster: LocalCluster,
    workload: Workload,
    result: DemoResult,
    progress: Progress,
    deterministic: bool,
) -> None:
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=cluster.url, timeout=TIMEOUT_S, limits=limits) as client:
        talker = _Talker(client, cluster.model, result, progress, 1 if deterministic else AT_ONCE)
        half = len(workload.conversations) // 2
        await talker.conversations(workload.conversations[:half])
        if not deterministic:
            await _kill_one(cluster, talker, workload, progress)
        await talker.conversations(workload.conversations[half:])
        progress("asking once with three samples, which fork one prompt")
        await talker.single(workload.fork, ANSWER_TOKENS, samples=3, temperature=0.8)
        # The first conversations again: their pages are gone by now, their chunks are not.
        await talker.conversations(workload.conversations[:half])
        if not deterministic:
            await _compare(talker, workload, result, progress)


class _Talker:
    """Asks, and keeps what came back."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        model: str,
        result: DemoResult,
        progress: Progress,
        at_once: int,
    ) -> None:
        self._client = client
        self._model = model
        self._result = result
        self._progress = progress
        self._room = asyncio.Semaphore(at_once)

    async def conversations(self, talks: tuple[Conversation, ...]) -> None:
        """All talks at once, the turns of each in order."""
        await asyncio.gather(*(self._conversation(talk) for talk in talks))

    async def single(
        self,
        talk: Conversation,
        max_tokens: int,
        *,
        samples: int = 1,
        temperature: float = 0.0,
        first_token: Callable[[], None] | None = None,
    ) -> Reply:
        """One question."""
        async with self._room:
            reply = await ask(
                self._client,
                self._model,
                talk.name,
                messages(talk, [], 0),
                max_tokens=max_tokens,
                samples=samples,
                temperature=temperature,
                first_token=first_token,
            )
        self._keep(reply)
        return reply

    async def _conversation(self, talk: Conversation) -> None:
        answers: list[str] = []
        for turn in range(len(talk.questions)):
            async with self._room:
                reply = await ask(
                    self._client,
                    self._model,
                    f"{talk.name}, turn {turn + 1}",
                    messages(talk, answers, turn),
                    max_tokens=ANSWER_TOKENS,
                )
            self._keep(reply)
            answers.append(reply.texts[0])

    def _keep(self, reply: Reply) -> None:
        self._result.replies.append(reply)
        state = f"{reply.ttft_s:.2f} s to the first token" if reply.ok else f"{reply.error}"
        self._progress(
            f"{len(self._result.replies):3d}  {reply.name}: {reply.prompt_tokens} tokens, "
            f"{reply.cached_tokens} cached, {state}"
        )


async def _kill_one(
    cluster: LocalCluster, talker: _Talker, workload: Workload, progress: Progress
) -> None:
    """Kill a worker while it decodes; its requests must end elsewhere."""
    started = asyncio.Event()
    running = 0

    def first_token() -> None:
        nonlocal running
        running += 1
        if running == len(workload.long_questions) // 2:
            started.set()

    asking = asyncio.gather(
        *(
            talker.single(talk, LONG_TOKENS, first_token=first_token)
            for talk in workload.long_questions
        )
    )
    await started.wait()
    progress(f"kill -9 of {KILLED}")
    cluster.kill(KILLED)
    await asking
    progress(f"{KILLED} comes back with a new epoch")
    await asyncio.to_thread(cluster.start_worker, KILLED)


async def _compare(
    talker: _Talker, workload: Workload, result: DemoResult, progress: Progress
) -> None:
    """What was interrupted must read as if it had not been."""
    before = {reply.name: reply.texts[0] for reply in result.replies}
    progress("asking again what was interrupted, to compare token for token")
    for talk in workload.long_questions:
        reply = await talker.single(talk, LONG_TOKENS)
        result.interrupted += 1
        if reply.texts[0] != before[talk.name]:
            result.unequal.append(talk.name)


def _missing(result: DemoResult, deterministic: bool) -> list[str]:
    """What the demo was to show and the log does not have."""
    account = result.account
    wanted = {
        "30 requests": len(result.replies) >= 30,
        "an eviction": account.evictions > 0,
        "a checkpoint": account.checkpoints > 0,
        "a restore from SSD": account.restored_rows[SOURCES[3]] > 0,
        "a fork": account.forks > 0,
    }
    if not deterministic:
        wanted |= {
            "a request that waited": account.queued > 0,
            "an eviction of several kept runs": account.evictions_of_several > 0,
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
    return Figures(
        ok=result.ok,
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
        missing=result.missing,
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
