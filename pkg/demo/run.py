"""The demo's course: start, talk, kill a worker, go on, fork, compare, stop, verify.

Owns the order of events. Everything it needs of the product it reaches as a user does: processes,
HTTP, the log. What came of it is judged in ``figures``.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import httpx

from pagetrail.catalog.errors import PagetrailError
from pagetrail.controlplane.log.reader import verify_log
from pagetrail.replay.verify import VerifyResult, verify
from pagetrail.up import ClusterOptions, LocalCluster

from .account import Account, read_account
from .client import TIMEOUT_S, Reply, ask
from .workload import Conversation, Workload, messages

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
    "worker.lanes=3",  # of one survivor; four long answers then have one wait
    "worker.prefill_tile=128",
    "worker.step_rows=256",
    "worker.ram_bytes=0",
    "record.alternatives=full",
    "gateway.heartbeat_ms=100",
    "gateway.expiry_ms=1500",
)
# Times and costs that no machine influences: two runs then decide the same.
DETERMINISTIC_SETTINGS = ("worker.measure_costs=false", "worker.clock=logical")
SETTLE_TIMEOUT_S = 60.0
SETTLE_POLL_S = 0.02
CHECK_S = 0.5


class Watcher(Protocol):
    """Who is told how the demo goes on."""

    def step(self, text: str) -> None:
        """Something begins."""

    def reply(self, text: str) -> None:
        """A request has ended."""


@dataclass(slots=True)
class DemoResult:
    """What happened, for the figures and the verdict."""

    directory: Path
    deterministic: bool
    replies: list[Reply] = field(default_factory=list)
    interrupted: int = 0
    unequal: list[str] = field(default_factory=list)
    settled_position: int = 0  # facts that every process had seen in the log at the end
    log_position: int = 0  # facts in the log afterwards
    account: Account = field(default_factory=Account)
    verdict: VerifyResult | None = None
    serving_s: float = 0.0


def requests_in(workload: Workload, deterministic: bool) -> int:
    """How many requests a run asks."""
    turns = [len(talk.questions) for talk in workload.conversations]
    once = sum(turns) + sum(turns[: len(turns) // 2]) + 1
    return once if deterministic else once + 2 * len(workload.long_questions)


def run_demo(
    directory: Path,
    workload: Workload,
    watcher: Watcher,
    *,
    deterministic: bool = False,
    model: str | None = None,
) -> DemoResult:
    """Run the demo in an empty directory."""
    result = DemoResult(directory, deterministic)
    settings = SETTINGS + (DETERMINISTIC_SETTINGS if deterministic else ())
    if model is not None:
        settings += (f"model.name={model}",)
    options = ClusterOptions(
        directory,
        WORKERS,
        settings,
        writer_clock="logical" if deterministic else "wall",
    )
    watcher.step("starting the writer, the gateway and two workers")
    with LocalCluster(options) as cluster:
        started_s = time.monotonic()
        asyncio.run(_watched(cluster, _talk(cluster, workload, result, watcher)))
        result.serving_s = time.monotonic() - started_s
        watcher.step("stopping the cluster")
    watcher.step("deriving every decision again from the log")
    result.verdict = verify(directory)
    result.log_position = verify_log(directory).position.next_seq
    result.account = read_account(directory)
    return result


async def _watched(cluster: LocalCluster, course: Coroutine[object, object, None]) -> None:
    """Run the course; a process that ends by itself ends it, with that process's last words."""

    async def watch() -> None:
        while True:
            cluster.check()
            await asyncio.sleep(CHECK_S)

    tasks = {asyncio.create_task(course), asyncio.create_task(watch())}
    done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    for task in done:
        task.result()


async def _talk(
    cluster: LocalCluster, workload: Workload, result: DemoResult, watcher: Watcher
) -> None:
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=cluster.url, timeout=TIMEOUT_S, limits=limits) as client:
        talker = _Talker(client, cluster.model, result, watcher)
        half = len(workload.conversations) // 2
        await talker.conversations(workload.conversations[:half])
        if not result.deterministic:
            await _kill_one(cluster, talker, workload, watcher)
        await talker.conversations(workload.conversations[half:])
        watcher.step("asking once with three samples, which fork one prompt")
        await talker.single(workload.fork, ANSWER_TOKENS, samples=3, temperature=0.8)
        # The first conversations again: their pages are gone by now, their chunks are not.
        await talker.conversations(workload.conversations[:half])
        if not result.deterministic:
            await _compare(talker, workload, result, watcher)
        result.settled_position = await settle(client)


async def settle(client: httpx.AsyncClient) -> int:
    """Wait until nothing is open, every stored chunk is published, and every process has seen the
    whole log; answers its length. Raises PagetrailError when that takes too long."""
    until_s = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < until_s:
        state = (await client.get("/v1/cluster")).json()
        if state["settled"]:
            return int(state["position"])
        await asyncio.sleep(SETTLE_POLL_S)
    raise PagetrailError(
        f"the cluster has not settled within {SETTLE_TIMEOUT_S} s; see GET /v1/cluster"
    )


class _Talker:
    """Asks, and keeps what came back."""

    def __init__(
        self,
        client: httpx.AsyncClient,
        model: str,
        result: DemoResult,
        watcher: Watcher,
    ) -> None:
        self._client = client
        self._model = model
        self._result = result
        self._watcher = watcher
        self._room = asyncio.Semaphore(1 if result.deterministic else AT_ONCE)

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
        return await self._ask(
            talk.name,
            messages(talk, [], 0),
            max_tokens,
            samples=samples,
            temperature=temperature,
            first_token=first_token,
        )

    async def _conversation(self, talk: Conversation) -> None:
        answers: list[str] = []
        for turn in range(len(talk.questions)):
            reply = await self._ask(
                f"{talk.name}, turn {turn + 1}", messages(talk, answers, turn), ANSWER_TOKENS
            )
            answers.append(reply.texts[0])

    async def _ask(
        self,
        name: str,
        said: list[dict[str, str]],
        max_tokens: int,
        *,
        samples: int = 1,
        temperature: float = 0.0,
        first_token: Callable[[], None] | None = None,
    ) -> Reply:
        async with self._room:
            reply = await ask(
                self._client,
                self._model,
                name,
                said,
                max_tokens=max_tokens,
                samples=samples,
                temperature=temperature,
                first_token=first_token,
            )
            if self._result.deterministic:
                await settle(self._client)
        self._result.replies.append(reply)
        state = f"{reply.ttft_s:.2f} s to the first token" if reply.ok else f"{reply.error}"
        self._watcher.reply(
            f"{reply.name}: {reply.prompt_tokens} tokens, {reply.cached_tokens} cached, {state}"
        )
        return reply


async def _kill_one(
    cluster: LocalCluster, talker: _Talker, workload: Workload, watcher: Watcher
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
    watcher.step(f"kill -9 of {KILLED}")
    cluster.kill(KILLED)
    await asking
    watcher.step(f"{KILLED} comes back with a new epoch")
    await asyncio.to_thread(cluster.start_worker, KILLED)


async def _compare(
    talker: _Talker, workload: Workload, result: DemoResult, watcher: Watcher
) -> None:
    """What was interrupted must read as if it had not been."""
    before = {reply.name: reply.texts[0] for reply in result.replies}
    watcher.step("asking again what was interrupted, to compare token for token")
    for talk in workload.long_questions:
        reply = await talker.single(talk, LONG_TOKENS)
        result.interrupted += 1
        if reply.texts[0] != before[talk.name]:
            result.unequal.append(talk.name)
