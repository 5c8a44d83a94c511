"""The peers of ``bench log``: Redis Streams with every append on disk, and SQLite in WAL mode.

A peer runs as its own users run it: redis-server from the system's packages, driven by its own C
benchmark and by redis-py; SQLite as Python ships it. A missing peer gives None.
"""

from __future__ import annotations

import shutil
import socket
import sqlite3
import subprocess
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from pagetrail.bench.log_load import bench_fact

_START_TIMEOUT_S = 20.0
_SQLITE_ROWS = 1_000


@dataclass(frozen=True, slots=True)
class RedisRates:
    """Facts per second with C clients and with redis-py; ``command`` is the C clients'."""

    command: str
    c_clients: float | None
    py_clients: float | None


def redis_rates(directory: Path, clients: int, pipeline: int, seconds: float) -> RedisRates:
    """XADD of the bench's payload, ``pipeline`` in flight for each of ``clients``."""
    command = ["redis-benchmark", "-c", str(clients), "-P", str(pipeline), "-q"]
    shown = f"redis-server appendfsync always: {' '.join(command)} XADD s * f BODY"
    server = shutil.which("redis-server")
    if server is None or shutil.which("redis-benchmark") is None:
        return RedisRates(shown, None, None)
    directory.mkdir(parents=True)
    port = _free_port()
    place = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
    durable = ["--appendonly", "yes", "--appendfsync", "always", "--save", ""]
    process = subprocess.Popen([server, *place, *durable], stdout=subprocess.DEVNULL)
    try:
        _await_port(port)
        c_clients = _redis_benchmark([*command, "-p", str(port)], seconds)
        py_clients = None
        if find_spec("redis") is not None:
            from pagetrail.bench.log import run_loads

            py_clients = run_loads(
                [["redis", str(port), f"s-{n}", str(seconds)] for n in range(clients)]
            )
    finally:
        process.terminate()
        process.wait()
    return RedisRates(shown, c_clients, py_clients)


def sqlite_rate(directory: Path, seconds: float) -> float:
    """Rows per second of one process that commits a thousand rows at a time, synchronous FULL."""
    directory.mkdir(parents=True)
    body = bytes(bench_fact(0).body)
    connection = sqlite3.connect(directory / "facts.db", isolation_level=None)
    connection.execute("pragma journal_mode = wal")
    connection.execute("pragma synchronous = full")
    connection.execute("create table facts (seq integer primary key, body blob)")
    rows = [(body,)] * _SQLITE_ROWS
    written = 0
    start_ns = time.monotonic_ns()
    while time.monotonic_ns() - start_ns < seconds * 1e9:
        connection.execute("begin")
        connection.executemany("insert into facts (body) values (?)", rows)
        connection.execute("commit")
        written += _SQLITE_ROWS
    elapsed_ns = time.monotonic_ns() - start_ns
    connection.close()
    return written / elapsed_ns * 1e9


def _redis_benchmark(command: list[str], seconds: float) -> float | None:
    """Two runs: a short one to size the second to about ``seconds``."""
    body = "x" * len(bytes(bench_fact(0).body))
    rate = None
    requests = 50_000
    for _ in range(2):
        done = subprocess.run(
            [*command, "-n", str(requests), "XADD", "s", "*", "f", body],
            capture_output=True,
            text=True,
            check=True,
        )
        at = done.stdout.rfind(" requests per second")
        if at < 0:
            return None
        rate = float(done.stdout[:at].split()[-1])
        requests = max(int(rate * seconds), requests)
    return rate


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await_port(port: int) -> None:
    deadline_ns = time.monotonic_ns() + int(_START_TIMEOUT_S * 1e9)
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic_ns() > deadline_ns:
                raise
            time.sleep(0.05)
