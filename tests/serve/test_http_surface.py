"""The HTTP surface over real processes, with the clients that people use."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from serving import (
    TEXT,
    WAIT_S,
    Oracle,
    completion,
    prompt_tokens,
    state,
    wait_until_settled,
)

from pagetrail.catalog.facts import KindId, decode_body
from pagetrail.catalog.kinds.router import RequestClosed
from pagetrail.catalog.kinds.worker import FinishReason, StreamFinished
from pagetrail.controlplane.log.reader import read_log
from pagetrail.engine.tokenizer import ModelTokenizer
from pagetrail.up import LocalCluster

CHAT = [{"role": "user", "content": "What may I do under this License?"}]


@pytest.fixture
def client(cluster: LocalCluster) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=cluster.url, timeout=WAIT_S) as opened:
        yield opened


@pytest.fixture
def ai(cluster: LocalCluster) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0)


def events(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, whose last must be [DONE]."""
    lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def tokens_of(answer: dict[str, Any], choice: int = 0) -> list[str]:
    found: list[str] = answer["choices"][choice]["logprobs"]["tokens"]
    return found


def refused(response: httpx.Response, status: int, *words: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    for word in words:
        assert word in error["message"]
    return error


# ---- shapes


def test_a_chat_stream_begins_with_the_role_and_ends_with_reason_usage_and_done(
    cluster: LocalCluster, client: httpx.Client
) -> None:
    body = {
        "model": cluster.model,
        "messages": CHAT,
        "max_tokens": 5,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    with client.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        first, *content, last = events(response)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert [chunk["choices"][0]["finish_reason"] for chunk in content] == [None] * 4 + ["length"]
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 5
    assert {chunk["object"] for chunk in (first, *content, last)} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in (first, *content, last)}) == 1
    whole = client.post("/v1/chat/completions", json=body | {"stream": False}).json()
    streamed = "".join(chunk["choices"][0]["delta"]["content"] for chunk in content)
    assert whole["choices"][0]["message"] == {"role": "assistant", "content": streamed}


def test_the_openai_client_chats_streams_and_lists_models(
    cluster: LocalCluster, ai: openai.OpenAI
) -> None:
    answer = ai.chat.completions.create(
        model=cluster.model,
        messages=CHAT,
        max_tokens=4,
        temperature=0,  # type: ignore[arg-type]
    )
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage is not None
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    parts = ai.chat.completions.create(
        model=cluster.model,
        messages=CHAT,  # type: ignore[arg-type]
        max_tokens=4,
        temperature=0,
        stream=True,
    )
    text = "".join(part.choices[0].delta.content or "" for part in parts)
    assert text == answer.choices[0].message.content
    (model,) = ai.models.list().data
    assert model.id == cluster.model
    assert model.max_model_len == 1024  # type: ignore[attr-defined]


def test_health_version_and_one_model_answer(cluster: LocalCluster, client: httpx.Client) -> None:
    health = client.get("/health")
    assert (health.status_code, health.content) == (200, b"")
    assert client.get("/version").json()["version"]
    assert client.get(f"/v1/models/{cluster.model}").json()["id"] == cluster.model


# ---- what is generated


def test_greedy_tokens_equal_transformers_generate_for_token_id_prompts(
    cluster: LocalCluster, client: httpx.Client, oracle: Oracle, tokenizer: ModelTokenizer
) -> None:
    prompt = prompt_tokens(1, 150)
    answer = completion(client, cluster.model, prompt, max_tokens=12, logprobs=0)
    want = oracle.greedy(prompt, 12)
    assert tokens_of(answer) == [text_of(tokenizer, token) for token in want]


def text_of(tokenizer: ModelTokenizer, token: int) -> str:
    return tokenizer.token_bytes(token).decode("utf-8", "replace")


@pytest.fixture(scope="module")
def tokenizer(tiny: Any) -> ModelTokenizer:
    config = json.loads((tiny / "config.json").read_text())
    return ModelTokenizer.open(tiny, config)


def test_three_samples_branch_off_one_prompt_and_the_first_is_the_only_ones_own(
    cluster: LocalCluster, client: httpx.Client
) -> None:
    prompt = prompt_tokens(2, 100)
    options = {"max_tokens": 6, "temperature": 1.0, "seed": 11}
    three = completion(client, cluster.model, prompt, n=3, **options)
    assert [choice["index"] for choice in three["choices"]] == [0, 1, 2]
    assert three["usage"]["completion_tokens"] == 18
    assert len({choice["text"] for choice in three["choices"]}) == 3
    for place, choice in enumerate(three["choices"]):
        alone = completion(client, cluster.model, prompt, **(options | {"seed": 11 + place}))
        assert alone["choices"][0]["text"] == choice["text"]


def test_a_seed_repeats_and_another_seed_differs(
    cluster: LocalCluster, client: httpx.Client
) -> None:
    options = {"max_tokens": 10, "temperature": 1.2}
    one, again, other = (
        completion(client, cluster.model, "under the", seed=seed, **options)["choices"][0]["text"]
        for seed in (5, 5, 6)
    )
    assert one == again != other


def test_a_stop_string_is_left_out_and_named(cluster: LocalCluster, client: httpx.Client) -> None:
    free = completion(client, cluster.model, "Licensed under", max_tokens=12)["choices"][0]["text"]
    stop = free[4:6]
    answer = completion(client, cluster.model, "Licensed under", max_tokens=12, stop=[stop])
    (choice,) = answer["choices"]
    assert choice["text"] == free[: free.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)


def test_chat_log_probabilities_carry_bytes_and_the_best_first(
    cluster: LocalCluster, client: httpx.Client
) -> None:
    body = {
        "model": cluster.model,
        "messages": CHAT,
        "max_tokens": 3,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": True,
        "top_logprobs": 2,
    }
    answer = client.post("/v1/chat/completions", json=body).json()
    content = answer["choices"][0]["logprobs"]["content"]
    assert len(content) == 3
    for entry in content:
        assert len(entry["top_logprobs"]) == 2
        assert entry["top_logprobs"][0]["logprob"] == entry["logprob"]  # greedy takes the best
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]


def test_echo_gives_the_prompts_own_log_probabilities_with_a_null_first(
    cluster: LocalCluster, client: httpx.Client, oracle: Oracle
) -> None:
    prompt = prompt_tokens(3, 140)
    completion(client, cluster.model, prompt, max_tokens=1)  # so that a prefix could be reused
    answer = completion(client, cluster.model, prompt, max_tokens=4, echo=True, logprobs=1)
    logprobs = answer["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == 144
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    generated = oracle.greedy(prompt, 4)
    want = oracle.logprobs(prompt + generated)
    assert logprobs["token_logprobs"][1:] == pytest.approx(want, abs=2e-4)
    assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


def test_a_repeated_prompt_is_cached_but_not_across_salts(
    cluster: LocalCluster, client: httpx.Client
) -> None:
    prompt = prompt_tokens(4, 200)

    def cached(salt: str | None) -> int:
        options = {} if salt is None else {"cache_salt": salt}
        answer = completion(client, cluster.model, prompt, max_tokens=2, **options)
        wait_until_settled(client)
        found: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    assert [cached("one"), cached("two"), cached(None)] == [0, 0, 0]
    assert [cached("one"), cached("two"), cached(None)] == [192, 192, 192]


# ---- what is refused


def test_an_unknown_model_is_a_404_that_names_the_one_there_is(
    cluster: LocalCluster, client: httpx.Client, ai: openai.OpenAI
) -> None:
    error = refused(
        client.post("/v1/completions", json={"model": "gpt-9", "prompt": "x"}),
        404,
        "gpt-9",
        cluster.model,
    )
    assert error["code"] == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        ai.models.retrieve("gpt-9")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"prompt": [5] * 1024}, ["1024 tokens", "context is 1024", "shorten"]),
        ({"prompt": [5] * 1000, "max_tokens": 25}, ["at most 24"]),
        ({"prompt": [5, 99_999]}, ["outside the vocabulary"]),
        ({"prompt": []}, ["prompt must be"]),
        ({"temperature": 3.5}, ["temperature must lie in"]),
        ({"top_p": 0}, ["top_p"]),
        ({"top_k": -2}, ["top_k"]),
        ({"n": 0}, ["n"]),
        ({"max_tokens": 0}, ["max_tokens"]),
        ({"logprobs": 21}, ["logprobs"]),
        ({"logit_bias": {"600": 1.0}}, ["logit_bias names token 600", "0 to 511"]),
        ({"stop_token_ids": [-1]}, ["stop_token_ids names token -1"]),
        ({"stop": [""]}, ["stop takes up to"]),
        ({"priority": 10**30}, ["priority"]),
        ({"suffix": "x"}, ["suffix is not supported"]),
        ({"stream": True, "echo": True}, ["without echo"]),
        ({"cache_salt": ""}, ["cache_salt"]),
    ],
)
def test_what_cannot_be_used_is_a_400_that_says_what(
    cluster: LocalCluster, client: httpx.Client, changes: dict[str, Any], words: list[str]
) -> None:
    body = {"model": cluster.model, "prompt": "x"} | changes
    refused(client.post("/v1/completions", json=body), 400, *words)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model": 3}', b"\xff\xfe"])
def test_a_body_that_is_no_request_is_a_400(client: httpx.Client, body: bytes) -> None:
    refused(client.post("/v1/chat/completions", content=body), 400)


def test_nothing_that_was_refused_has_hurt_the_cluster(
    cluster: LocalCluster, client: httpx.Client
) -> None:
    cluster.check()
    completion(client, cluster.model, "still there", max_tokens=2)


# ---- leaving early


def test_a_client_that_goes_away_ends_its_request_and_the_abort_is_a_fact(
    cluster: LocalCluster, client: httpx.Client
) -> None:
    body = {
        "model": cluster.model,
        "prompt": prompt_tokens(6, 60),
        "max_tokens": 900,
        "ignore_eos": True,
        "stream": True,
    }
    with client.stream("POST", "/v1/completions", json=body) as response:
        request = response.headers["x-request-id"]
        next(response.iter_lines())
    wait_until_settled(client)
    assert state(client)["open_requests"] == 0
    closed, finished = reasons_of(cluster, request)
    assert closed == FinishReason.CANCELLED
    assert finished == [FinishReason.CANCELLED]


def reasons_of(cluster: LocalCluster, request: str) -> tuple[int | None, list[int]]:
    """How the router closed a request, and how its streams finished at workers."""
    number, closed, finished = None, None, []
    streams = set()
    for frame in read_log(cluster.options.directory):
        for fact in frame.facts():
            if fact.kind not in (
                KindId.REQUEST_RECEIVED,
                KindId.REQUEST_CLOSED,
                KindId.REQUEST_QUEUED,
                KindId.STREAM_FINISHED,
            ):
                continue
            body: Any = decode_body(fact.kind, fact.schema_v, fact.body)
            if getattr(body, "request", None) == request:
                if fact.kind == KindId.REQUEST_RECEIVED:
                    number = body.number
                else:
                    streams.add((fact.client, fact.client_epoch, body.stream))
            elif isinstance(body, RequestClosed) and body.number == number:
                closed = body.reason
            elif (
                isinstance(body, StreamFinished)
                and (fact.client, fact.client_epoch, body.stream) in streams
            ):
                finished.append(body.reason)
    return closed, finished


def test_a_client_that_hangs_up_without_a_stream_is_noticed_too(
    cluster: LocalCluster, client: httpx.Client
) -> None:
    body = {
        "model": cluster.model,
        "prompt": prompt_tokens(7, 60),
        "max_tokens": 900,
        "ignore_eos": True,
    }
    with pytest.raises(httpx.ReadTimeout):
        client.post("/v1/completions", json=body, timeout=0.3)
    deadline = time.monotonic() + WAIT_S
    while state(client)["open_requests"]:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    wait_until_settled(client)


def test_requests_beyond_the_pages_wait_and_all_end_as_they_would_alone(
    cluster: LocalCluster, client: httpx.Client, oracle: Oracle, tokenizer: ModelTokenizer
) -> None:
    prompts = [prompt_tokens(20 + n, 600 + n) for n in range(5)]
    body = {
        "model": cluster.model,
        "prompt": prompts,
        "max_tokens": 6,
        "temperature": 0,
        "ignore_eos": True,
        "logprobs": 0,
    }
    answer = client.post("/v1/completions", json=body).json()
    for place, prompt in enumerate(prompts):
        want = [text_of(tokenizer, token) for token in oracle.greedy(prompt, 6)]
        assert tokens_of(answer, place) == want


def test_text_prompts_of_a_document_are_served(cluster: LocalCluster, client: httpx.Client) -> None:
    answer = completion(client, cluster.model, [TEXT[:400], TEXT[400:900]], max_tokens=2)
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert answer["usage"]["completion_tokens"] == 4


def test_the_chat_example_prints_what_the_gateway_answers(
    cluster: LocalCluster, client: httpx.Client
) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "chat.py"
    question = "What may I do?"
    answer = subprocess.run(
        [sys.executable, str(example), cluster.url, question],
        capture_output=True,
        text=True,
        check=True,
        timeout=WAIT_S,
    )
    asked = [{"role": "user", "content": question}]
    body = {"model": cluster.model, "messages": asked, "max_tokens": 64, "temperature": 0}
    whole = client.post("/v1/chat/completions", json=body).json()
    assert answer.stdout.rstrip("\n") == whole["choices"][0]["message"]["content"].rstrip("\n")
