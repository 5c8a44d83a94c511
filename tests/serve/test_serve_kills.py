"""Every process killed at random moments under load: nothing recorded is lost, no token changes.

Each round asks several prompts at once over HTTP streams, kills one process after a random number
of tokens has arrived, starts it again and lets the requests end. A request ends with exactly the
greedy tokens of transformers' generate, or with an error that says so. Afterwards the log is
verified: its bytes, and every decision derived again.
"""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import (
    TINY_SETTINGS,
    WAIT_S,
    Oracle,
    completion,
    prompt_tokens,
    wait_until_settled,
)

from pagetrail.controlplane.log.reader import verify_log
from pagetrail.replay.verify import verify
from pagetrail.up import ClusterOptions, LocalCluster

NEW = 40
AT_ONCE = 4
PROMPT_TOKENS = (150, 200, 260, 310)


@dataclass
class Ended:
    """What a client saw of its request."""

    prompt: list[int]
    texts: list[str] = field(default_factory=list)
    finish: str | None = None
    error: str | None = None


@dataclass
class Load:
    """Clients that stream at the same time; ``after`` fires once so many tokens have arrived."""

    url: str
    model: str
    tokens: int = 0
    after: int = 0
    fired: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, prompt: list[int]) -> Ended:
        ended = Ended(prompt)
        body = {
            "model": self.model,
            "prompt": prompt,
            "max_tokens": NEW,
            "temperature": 0,
            "ignore_eos": True,
            "logprobs": 0,
            "stream": True,
        }
        try:
            with (
                httpx.Client(base_url=self.url, timeout=WAIT_S) as client,
                client.stream("POST", "/v1/completions", json=body) as response,
            ):
                for line in response.iter_lines():
                    if line.startswith("data: {"):
                        self._take(ended, json.loads(line[6:]))
        except httpx.HTTPError as error:
            ended.error = f"{type(error).__name__}: {error}"
        self._count()  # a request that ended early must not hold the kill up
        return ended

    def _take(self, ended: Ended, event: dict[str, Any]) -> None:
        if "error" in event:
            ended.error = event["error"]["message"]
            return
        (choice,) = event["choices"]
        ended.texts += choice["logprobs"]["tokens"]
        ended.finish = choice["finish_reason"]
        self._count()

    def _count(self) -> None:
        with self.lock:
            self.tokens += 1
            if self.tokens >= self.after:
                self.fired.set()


@pytest.fixture
def cluster(tiny: Path, tmp_path: Path) -> Iterator[LocalCluster]:
    """A cluster of its own: this test ends its processes."""
    settings = (f"model.name={tiny}", *TINY_SETTINGS)
    with LocalCluster(ClusterOptions(tmp_path, 2, settings)) as running:
        yield running


def restart(cluster: LocalCluster, victim: str) -> None:
    match victim:
        case "writer":
            cluster.start_writer()
        case "gateway":
            cluster.start_gateway()
        case _:
            cluster.start_worker(victim)


def one_round(cluster: LocalCluster, victim: str, number: int, draw: random.Random) -> list[Ended]:
    prompts = [
        prompt_tokens(100 * number + place, count) for place, count in enumerate(PROMPT_TOKENS)
    ]
    load = Load(cluster.url, cluster.model, after=draw.randrange(1, AT_ONCE * NEW * 3 // 4))
    with ThreadPoolExecutor(AT_ONCE) as clients:
        asked = [clients.submit(load.ask, prompt) for prompt in prompts]
        assert load.fired.wait(WAIT_S)
        cluster.kill(victim)
        restart(cluster, victim)
        return [future.result() for future in asked]


def check(ended: list[Ended], victim: str, oracle: Oracle, text_of: Any) -> None:
    for request in ended:
        want = [text_of(token) for token in oracle.greedy(request.prompt, NEW)]
        if request.error is None:
            assert request.texts == want, victim
            assert request.finish == "length"
        else:
            assert victim == "gateway", request.error  # only its clients lose their connection
            assert request.texts == want[: len(request.texts)]


def run(cluster: LocalCluster, victims: list[str], oracle: Oracle, tiny: Path, seed: int) -> None:
    text_of = reader_of(tiny)
    draw = random.Random(seed)
    served = 1  # the one after all kills
    for number, victim in enumerate(victims):
        ended = one_round(cluster, victim, number, draw)
        check(ended, victim, oracle, text_of)
        served += sum(request.error is None for request in ended)
    with httpx.Client(base_url=cluster.url, timeout=WAIT_S) as client:
        prompt = prompt_tokens(9_999, 200)
        answer = completion(client, cluster.model, prompt, max_tokens=4, logprobs=0)
        want = [text_of(token) for token in oracle.greedy(prompt, 4)]
        assert answer["choices"][0]["logprobs"]["tokens"] == want
        settled = wait_until_settled(client)
    # Every spooled fact of every epoch has reached the log, and all of it derives again.
    log = verify_log(cluster.options.directory)
    assert log.position.next_seq >= settled["position"]
    verdict = verify(cluster.options.directory)
    assert verdict.ok, (verdict.mismatched, verdict.missing)
    for kind in ("route", "admit", "restore", "keep", "checkpoint"):
        assert verdict.rederived[kind] >= served, (kind, served)  # each was decided about


def reader_of(tiny: Path) -> Any:
    from pagetrail.engine.tokenizer import ModelTokenizer

    tokenizer = ModelTokenizer.open(tiny, json.loads((tiny / "config.json").read_text()))
    return lambda token: tokenizer.token_bytes(token).decode("utf-8", "replace")


def test_one_kill_of_each_process_loses_nothing(
    cluster: LocalCluster, oracle: Oracle, tiny: Path
) -> None:
    run(cluster, ["worker-1", "gateway", "writer"], oracle, tiny, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("victim", ["writer", "gateway", "worker-0"])
def test_six_kills_of_a_process_at_random_moments_lose_nothing(
    cluster: LocalCluster, oracle: Oracle, tiny: Path, victim: str
) -> None:
    run(cluster, [victim] * 6, oracle, tiny, seed=hash_of(victim))


def hash_of(name: str) -> int:
    return sum(name.encode())
