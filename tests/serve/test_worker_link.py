"""A worker's link and a gateway's socket to each other, without any model."""

from __future__ import annotations

import asyncio
import queue
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import zmq

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.router import Answer, RouterStarted
from pagetrail.controlplane.cluster import wire
from pagetrail.controlplane.log.endpoints import ClientKeys, ServerKeys
from pagetrail.gateway.peers import Peers
from pagetrail.worker_link import GatewayLink

WAIT_S = 30.0
HEARTBEAT_NS = 20_000_000


def started(router_epoch: int = 1) -> RouterStarted:
    return RouterStarted("gateway", router_epoch, b"f" * 32, 16, 128, 4_096, True, (), 0, b"")


def hello(**changes: Any) -> wire.Hello:
    fields = {
        "worker": "worker-0",
        "worker_epoch": 3,
        "fingerprint": b"f" * 32,
        "model": "tiny",
        "page_tokens": 16,
        "chunk_tokens": 128,
        "chunk_bytes": 4_096,
        "context_tokens": 1_024,
    }
    return wire.Hello(**(fields | changes))


class Side:
    """A worker's side, with what it has received."""

    def __init__(self, endpoint: str, keys: ClientKeys | None = None, **changes: Any) -> None:
        self.received: queue.Queue[wire.Message] = queue.Queue()
        self.link = GatewayLink(endpoint, hello(**changes), self.received.put, keys, HEARTBEAT_NS)
        self.link.start()


async def until(peers: Peers, wanted: type[wire.Message]) -> tuple[bytes, Any]:
    """The next message of a kind; hellos on the way are answered."""
    async with asyncio.timeout(WAIT_S):
        while True:
            identity, message = await peers.receive()
            if isinstance(message, wire.Hello):
                await peers.greeted(identity, message)
            if isinstance(message, wanted):
                return identity, message


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(work())


def test_a_worker_says_hello_is_welcomed_and_shows_that_it_is_alive() -> None:
    async def work() -> None:
        peers = Peers("tcp://127.0.0.1:0", started(), 20, None)
        side = Side(peers.endpoint)
        await until(peers, wire.Alive)
        assert peers.epoch_of("worker-0") == 3
        welcome = await asyncio.to_thread(side.received.get, timeout=WAIT_S)
        assert welcome == wire.Welcome("gateway", 1, 20)
        side.link.close()
        peers.close()

    run(work)


def test_a_worker_of_another_model_is_told_why_and_stops() -> None:
    async def work() -> None:
        peers = Peers("tcp://127.0.0.1:0", started(), 20, None)
        side = Side(peers.endpoint, fingerprint=b"g" * 32)
        identity, message = await peers.receive()
        assert isinstance(message, wire.Hello)
        assert not await peers.greeted(identity, message)
        deadline = time.monotonic() + WAIT_S
        while side.link.failure is None and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert isinstance(side.link.failure, BadInputError)
        assert "start both with the same model" in str(side.link.failure)
        side.link.close()
        peers.close()

    run(work)


def test_a_gateway_that_comes_back_is_greeted_and_gets_what_waited_but_no_old_heartbeats() -> None:
    async def work() -> None:
        first = Peers("tcp://127.0.0.1:0", started(1), 20, None)
        endpoint = first.endpoint
        side = Side(endpoint)
        await until(first, wire.Alive)
        welcome = await asyncio.to_thread(side.received.get, timeout=WAIT_S)
        assert welcome.router_epoch == 1  # a socket that closes drops what it has not sent
        first.close()
        answers = [wire.AnswerWire(1, n, 1, Answer.ACCEPTED) for n in range(3)]
        await asyncio.sleep(0)  # the link may or may not have noticed; both must hold
        second = Peers(endpoint, started(2), 20, None)
        async with asyncio.timeout(WAIT_S):
            while True:
                identity, message = await second.receive()
                if isinstance(message, wire.Alive):
                    await second.alive(identity, message.worker, message.worker_epoch)
                elif isinstance(message, wire.Hello):
                    assert await second.greeted(identity, message)
                    break
        while True:
            greeting = await asyncio.to_thread(side.received.get, timeout=WAIT_S)
            if isinstance(greeting, wire.Welcome):
                break
        assert greeting.router_epoch == 2
        for answer in answers:
            side.link.send(answer)
        for answer in answers:
            assert (await until(second, wire.AnswerWire))[1] == answer
        side.link.close()
        second.close()

    run(work)


def test_an_older_epoch_of_a_worker_is_not_heard_beside_a_newer_one() -> None:
    async def work() -> None:
        peers = Peers("tcp://127.0.0.1:0", started(), 20, None)
        assert await peers.greeted(b"new", hello(worker_epoch=4))
        assert not await peers.greeted(b"old", hello(worker_epoch=3))
        assert await peers.alive(b"old", "worker-0", 3) is None
        assert peers.epoch_of("worker-0") == 4
        assert peers.silent(WAIT_S) == []
        assert peers.silent(-1.0) == ["worker-0"]
        peers.close()

    run(work)


def key_pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


@pytest.mark.parametrize("known", [True, False])
def test_only_workers_with_known_keys_are_let_in(known: bool) -> None:
    server, worker, stranger = key_pair(), key_pair(), key_pair()

    async def work() -> None:
        keys = ServerKeys(public=server[0], secret=server[1], clients=(worker[0],))
        peers = Peers("tcp://127.0.0.1:0", started(), 20, keys)
        mine = worker if known else stranger
        side = Side(peers.endpoint, ClientKeys(public=mine[0], secret=mine[1], server=server[0]))
        if known:
            await until(peers, wire.Alive)
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(1.0):
                    await peers.receive()
        side.link.close()
        peers.close()

    run(work)


def test_an_address_that_others_reach_needs_keys() -> None:
    with pytest.raises(BadInputError, match="give CURVE keys"):
        Peers("tcp://0.0.0.0:0", started(), 20, None)
    with pytest.raises(BadInputError, match="give CURVE keys"):
        GatewayLink("tcp://192.0.2.1:7303", hello(), lambda message: None, None, HEARTBEAT_NS)
