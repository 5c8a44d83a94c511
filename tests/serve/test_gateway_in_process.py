"""The gateway's HTTP side and router service in this process, over a real log and no worker."""

from __future__ import annotations

import asyncio
import json
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from pagetrail.catalog.errors import BadInputError
from pagetrail.config import Config
from pagetrail.config_load import load_config
from pagetrail.controlplane.log.writer import EmbeddedWriter
from pagetrail.engine.tokenizer import ModelTokenizer
from pagetrail.gateway.http import Served, Surface
from pagetrail.gateway.process import read_api_keys
from pagetrail.gateway.service import HEADROOM_BYTES, RouterService

SPOOL_BYTES = 32 * 1024 * 1024  # the least that is allowed


def configured(directory: Path, **settings: object) -> Config:
    given = {"run.directory": str(directory), "gateway.cluster": "tcp://127.0.0.1:0"} | {
        name.replace("__", "."): value for name, value in settings.items()
    }
    flags = {name: ("--set", str(value)) for name, value in given.items()}
    return load_config(None, {}, flags).config


@pytest.fixture(scope="module")
def served(tiny: Path) -> Served:
    config = json.loads((tiny / "config.json").read_text())
    return Served("tiny", 1_024, ModelTokenizer.open(tiny, config), 0)


Work = Callable[[httpx.AsyncClient], Awaitable[None]]


def with_gateway(
    directory: Path, served: Served, work: Work, keys: dict[str, str] | None = None, **settings: Any
) -> None:
    async def run(router: RouterService) -> None:
        await router.start()
        transport = httpx.ASGITransport(Surface(router, served, keys or {}).app())
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            await work(client)
        await router.close()

    with EmbeddedWriter(directory) as writer:
        config = configured(directory, **settings)
        router = RouterService(config, b"f" * 32, 4_096, writer.endpoint, writer.publish_endpoint)
        asyncio.run(run(router))


BODY = {"model": "tiny", "prompt": [5, 6, 7], "max_tokens": 2}


async def opened(client: httpx.AsyncClient, count: int) -> list[asyncio.Task[httpx.Response]]:
    """Requests that stay open, because no worker takes them."""
    tasks = [
        asyncio.create_task(client.post("/v1/completions", json=BODY, timeout=600))
        for _ in range(count)
    ]
    while (await client.get("/v1/cluster")).json()["open_requests"] < count:
        await asyncio.sleep(0.01)
    return tasks


async def given_up(tasks: list[asyncio.Task[httpx.Response]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_a_key_is_needed_when_keys_are_set_but_not_for_health(
    tmp_path: Path, served: Served
) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        for given in ({}, {"authorization": "Bearer wrong"}, {"authorization": "sesame"}):
            answer = await client.get("/v1/models", headers=given)
            assert answer.status_code == 401
            assert answer.json()["error"]["code"] == "invalid_api_key"
        answer = await client.get("/v1/models", headers={"authorization": "Bearer sesame"})
        assert answer.status_code == 200
        assert (await client.get("/health")).status_code == 200

    with_gateway(tmp_path, served, work, keys={"sesame": "", "other": "acme"})


def test_requests_beyond_the_limit_are_told_to_come_again(tmp_path: Path, served: Served) -> None:
    async def work(client: httpx.AsyncClient) -> None:
        tasks = await opened(client, 2)
        answer = await client.post("/v1/completions", json=BODY)
        assert answer.status_code == 503
        assert "2 requests are open" in answer.json()["error"]["message"]
        await given_up(tasks)

    with_gateway(tmp_path, served, work, gateway__requests_max=2)


def test_a_spool_without_headroom_is_a_503_with_its_reason_and_room_comes_back(
    tmp_path: Path, served: Served
) -> None:
    most = SPOOL_BYTES // HEADROOM_BYTES

    async def work(client: httpx.AsyncClient) -> None:
        # What has been spooled already takes some of the room, so the last one finds none.
        tasks = await opened(client, most - 64)
        extra = [client.post("/v1/completions", json=BODY, timeout=600) for _ in range(128)]
        asked = [asyncio.create_task(one) for one in extra]
        done, waiting = await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            answer = task.result()
            assert answer.status_code == 503
            assert "spool headroom is short" in answer.json()["error"]["message"]
        await given_up([*tasks, *waiting])
        while (await client.get("/v1/cluster")).json()["open_requests"]:
            await asyncio.sleep(0.01)
        await given_up(await opened(client, 1))

    with_gateway(
        tmp_path, served, work, gateway__requests_max=10_000, client__spool_bytes=SPOOL_BYTES
    )


@pytest.mark.parametrize(
    ("mode", "text", "words"),
    [
        (0o644, "sesame\n", "chmod 600"),
        (0o600, "\n \n", "holds 0 keys"),
        (0o600, "one\none acme\n", "line 2"),
        (0o600, "one of three\n", "line 1"),
    ],
)
def test_a_file_of_keys_that_cannot_be_used_is_refused(
    tmp_path: Path, mode: int, text: str, words: str
) -> None:
    file = tmp_path / "keys"
    file.write_text(text, encoding="utf-8")
    file.chmod(mode)
    with pytest.raises(BadInputError, match=words):
        read_api_keys(str(file))


def test_keys_are_read_one_a_line(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.touch(stat.S_IRUSR | stat.S_IWUSR)
    file.write_text("one\n two  acme \n\n", encoding="utf-8")
    assert read_api_keys(str(file)) == {"one": "", "two": "acme"}
    assert read_api_keys(None) == {}
