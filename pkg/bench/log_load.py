"""Load processes of ``bench log``: each is one client, ours or a peer's, told when to start.

A child prints ``ready``, waits for a line on its standard input, works for the given time, and
prints one JSON line with what it got acknowledged. Run as
``python -m pagetrail.bench.log_load ROLE ARGUMENTS``. They measure; they decide nothing.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import msgspec

from pagetrail.catalog.envelope import Transaction, WireFact
from pagetrail.controlplane.log import wire
from pagetrail.controlplane.log.client import Draft, FactClient
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.transactions import encode_transactions

BENCH_KIND = 9_000
PIPELINE_FACTS = 100


def bench_fact(number: int) -> WireFact:
    """A fact of about 60 bytes: two integers, a digest, three small fields and a name."""
    values = [1, 1, bytes([number % 256]) * 32, 3, 1, 7, 1_700_000_000_000_000, 12_345, "w01"]
    return WireFact(1, BENCH_KIND, 1, msgspec.Raw(msgspec.msgpack.encode(values)))


def bare_messages(endpoint: str, name: str, seconds: float, facts: int, window: int) -> int:
    """Messages of ``facts`` facts by a bare socket, ``window`` in flight: the writer's own speed.

    As redis-benchmark does, it keeps the client's own work out of the figure: a message is
    encoded by patching its number into a prepared one.
    """
    import zmq

    payload = tuple(bench_fact(n) for n in range(facts))
    prefix, suffix = encode_transactions((Transaction(0, (), (), payload),)).split(b"\x00", 1)
    header = wire.encode(wire.Append(1, name, 1))
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.linger = 0
        socket.connect(endpoint)
        sent = done = 0
        end_ns = time.monotonic_ns() + int(seconds * 1e9)
        while time.monotonic_ns() < end_ns or done < sent:
            while sent - done < window and time.monotonic_ns() < end_ns:
                number = msgspec.msgpack.encode(sent)
                socket.send_multipart([wire.APPEND, header, prefix + number + suffix])
                sent += 1
            if done < sent:
                verb, answer = socket.recv_multipart()
                if verb != wire.ACKNOWLEDGED:
                    raise RuntimeError(f"the writer answered {verb!r} {answer!r}")
                done += 1
        return done * facts


def spooled_appends(endpoint: str, name: str, seconds: float, directory: str, facts: int) -> int:
    """Appends through the client and its spool, ``facts`` at a time, at most a window ahead."""
    limits = LogLimits()
    fact = bench_fact(0)
    drafts = [Draft(facts=(fact,))] * facts
    ahead = limits.window_transactions
    with FactClient.open(directory, name, endpoint, limits=limits) as client:
        appended = 0
        end_ns = time.monotonic_ns() + int(seconds * 1e9)
        while time.monotonic_ns() < end_ns:
            if appended - client.acked_through > ahead:
                time.sleep(0.001)
                continue
            for _ in range(max(64 // facts, 1)):
                if facts == 1:
                    client.append((fact,))
                else:
                    client.append_many(drafts)
                appended += facts
        client.flush(60)
        return appended


def redis_pipeline(port: str, name: str, seconds: float) -> int:
    """XADD through redis-py's pipeline, a hundred at a time."""
    import redis

    connection = redis.Redis(port=int(port))
    body = bytes(bench_fact(0).body)
    appended = 0
    end_ns = time.monotonic_ns() + int(seconds * 1e9)
    while time.monotonic_ns() < end_ns:
        pipeline = connection.pipeline(transaction=False)
        for _ in range(PIPELINE_FACTS):
            pipeline.xadd(name, {"f": body})
        pipeline.execute()
        appended += PIPELINE_FACTS
    return appended


def _work(argv: list[str]) -> Callable[[], int]:
    role, target, name, seconds, *rest = argv
    if role == "bare":
        return lambda: bare_messages(target, name, float(seconds), int(rest[0]), int(rest[1]))
    if role == "spooled":
        return lambda: spooled_appends(target, name, float(seconds), rest[0], int(rest[1]))
    if role == "redis":
        return lambda: redis_pipeline(target, name, float(seconds))
    raise SystemExit(f"unknown role {role!r}; expected bare, spooled or redis")


def main(argv: list[str]) -> None:
    work = _work(argv)
    print("ready", flush=True)
    sys.stdin.readline()
    start_ns = time.monotonic_ns()
    facts = work()
    print(json.dumps({"facts": facts, "ns": time.monotonic_ns() - start_ns}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
