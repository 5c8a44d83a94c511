"""The writer is away under load: requests are served all the same, and the log gets everything."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
from serving import TINY_SETTINGS, WAIT_S, Oracle, completion, prompt_tokens, wait_until_settled

from pagetrail.controlplane.log.reader import log_end, read_log, verify_log
from pagetrail.engine.tokenizer import ModelTokenizer
from pagetrail.replay.verify import verify
from pagetrail.up import ClusterOptions, LocalCluster

NEW = 6
REQUESTS = 24


def test_requests_are_served_while_the_writer_is_away_and_the_log_has_them_all(
    tiny: Path, tmp_path: Path, oracle: Oracle
) -> None:
    settings = (f"model.name={tiny}", *TINY_SETTINGS)
    tokenizer = ModelTokenizer.open(tiny, json.loads((tiny / "config.json").read_text()))
    with (
        LocalCluster(ClusterOptions(tmp_path, 2, settings)) as cluster,
        httpx.Client(base_url=cluster.url, timeout=WAIT_S) as client,
    ):
        wait_until_settled(client)
        cluster.kill("writer")
        end = log_end(tmp_path)

        def ask(number: int) -> list[str]:
            prompt = prompt_tokens(number, 40 + number)
            answer = completion(client, cluster.model, prompt, max_tokens=NEW, logprobs=0)
            tokens: list[str] = answer["choices"][0]["logprobs"]["tokens"]
            return tokens

        with ThreadPoolExecutor(4) as clients:
            answers = list(clients.map(ask, range(REQUESTS)))
        for number, tokens in enumerate(answers):
            wanted = oracle.greedy(prompt_tokens(number, 40 + number), NEW)
            assert tokens == [tokenizer.token_bytes(t).decode("utf-8", "replace") for t in wanted]
        assert log_end(tmp_path) == end  # nothing of it could be written
        cluster.start_writer()
        wait_until_settled(client)
        cluster.check()
    # What each client did while the writer was away follows in the order it was done.
    numbers: dict[tuple[str, int], list[int]] = {}
    for frame in read_log(tmp_path, end):
        for run in frame.runs():
            seqs = numbers.setdefault((run.client, run.client_epoch), [])
            seqs += [transaction.client_seq for transaction in run.transactions]
    assert len(numbers) >= 4  # the writer's own, the gateway's, both workers'
    for seqs in numbers.values():
        assert seqs == list(range(seqs[0], seqs[0] + len(seqs)))
    assert verify_log(tmp_path).problem is None
    verdict = verify(tmp_path)
    assert verdict.ok, (verdict.mismatched, verdict.missing)
