"""``bench log``: the writer and its client against Redis Streams, SQLite and the bare disk.

Everything runs on one machine in one run, under the current directory, with the same payload and
with every acknowledged fact on disk. A peer that is not installed leaves its column empty. The
client processes are in ``log_load``, the peers in ``peers_log``; ``log_history`` measures what a
long log costs at a start.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from pagetrail.bench.log_history import RECOVERY_FACTS, rebuild_row, recovery_rows
from pagetrail.bench.log_load import PIPELINE_FACTS, bench_fact
from pagetrail.bench.peers_log import redis_rates, sqlite_rate
from pagetrail.bench.table import machine_name
from pagetrail.controlplane.log.client import FactClient
from pagetrail.controlplane.log.writer import start_writer_process

CLIENTS = 8
MESSAGE_FACTS = 100
WINDOW_MESSAGES = 8
REBUILT_TRACES = (16, 150)
"""A log of one small segment, most of whose rebuild is what every table costs, and one of several
segments, as a log is that somebody waits for."""

Row = dict[str, object]


def run(quick: bool) -> dict[str, object]:
    """Measure every row; ``quick`` takes about half a minute, the full run some minutes."""
    seconds = 1.5 if quick else 5.0
    directory = Path(tempfile.mkdtemp(prefix="pagetrail-bench-", dir=Path.cwd()))
    try:
        rows = [
            *_throughput(directory, seconds),
            _latency(directory / "latency", 300 if quick else 2_000),
            *recovery_rows(directory / "recovery", RECOVERY_FACTS // (10 if quick else 1)),
            *(rebuild_row(directory / "rebuild", n) for n in ((3,) if quick else REBUILT_TRACES)),
        ]
    finally:
        shutil.rmtree(directory)
    return {"bench": "log", "machine": machine_name(), "rows": rows}


def run_loads(loads: Sequence[Sequence[str]]) -> float:
    """Start one load process for each, let them go together; facts per second of all."""
    command = [sys.executable, "-m", "pagetrail.bench.log_load"]
    children = [
        subprocess.Popen(
            [*command, *load], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for load in loads
    ]
    try:
        for child in children:
            _line(child)
        for child in children:
            if child.stdin is not None:
                child.stdin.write("go\n")
                child.stdin.flush()
        results = [json.loads(_line(child)) for child in children]
    finally:
        for child in children:
            child.communicate()
    return float(sum(r["facts"] for r in results) / max(r["ns"] for r in results) * 1e9)


def _line(child: subprocess.Popen[str]) -> str:
    line = child.stdout.readline() if child.stdout is not None else ""
    if not line:
        raise RuntimeError(f"a load process ended early with code {child.wait()}: {child.args!r}")
    return line


def _throughput(directory: Path, seconds: float) -> list[Row]:
    run_directory = directory / "run"
    names = range(CLIENTS)
    with start_writer_process(run_directory) as writer:
        bare = run_loads(
            [
                [
                    *("bare", writer.endpoint, f"bare-{n}", str(seconds)),
                    *(str(MESSAGE_FACTS), str(WINDOW_MESSAGES)),
                ]
                for n in names
            ]
        )
        spooled = {
            facts: run_loads(
                [
                    [
                        *("spooled", writer.endpoint, f"spooled-{facts}-{n}", str(seconds)),
                        *(str(run_directory), str(facts)),
                    ]
                    for n in names
                ]
            )
            for facts in (1, MESSAGE_FACTS)
        }
    redis = redis_rates(directory / "redis", CLIENTS, MESSAGE_FACTS * WINDOW_MESSAGES, seconds)
    pipeline = f"redis-py {CLIENTS} clients, pipeline of {PIPELINE_FACTS} XADD"
    return [
        _rate_row(
            f"{CLIENTS} clients, {MESSAGE_FACTS} facts a message, {WINDOW_MESSAGES} in flight",
            bare,
            redis.command,
            redis.c_clients,
            1.0,
        ),
        _rate_row(
            f"{CLIENTS} clients, single appends through the spool",
            spooled[1],
            pipeline,
            redis.py_clients,
            2.0,
        ),
        _rate_row(
            f"{CLIENTS} clients, append_many of {MESSAGE_FACTS} through the spool",
            spooled[MESSAGE_FACTS],
            pipeline,
            redis.py_clients,
            None,
        ),
        _rate_row(
            f"{CLIENTS} clients, {MESSAGE_FACTS} facts a message, {WINDOW_MESSAGES} in flight",
            bare,
            "SQLite WAL, synchronous FULL, one process, 1,000 rows a transaction",
            sqlite_rate(directory / "sqlite", seconds),
            None,
        ),
    ]


def _rate_row(case: str, ours: float, peer: str, theirs: float | None, goal: float | None) -> Row:
    ratio = None if theirs is None else ours / theirs
    return {
        "case": case,
        "unit": "facts/s",
        "ours": round(ours),
        "peer": peer,
        "theirs": None if theirs is None else round(theirs),
        "ratio": None if ratio is None else round(ratio, 3),
        "goal": None if goal is None else f">= {goal} x peer",
        "met": None if goal is None or ratio is None else ratio >= goal,
    }


def _latency(directory: Path, rounds: int) -> Row:
    """One synchronous client against a write and fdatasync of the same bytes, interleaved."""
    directory.mkdir(parents=True)
    data = bytes(bench_fact(0).body)
    descriptor = os.open(directory / "floor", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    floor_ns, ours_ns = [], []
    with (
        start_writer_process(directory) as writer,
        FactClient.open(directory, "sync", writer.endpoint) as client,
    ):
        for number in range(rounds):
            start_ns = time.perf_counter_ns()
            os.write(descriptor, data)
            os.fdatasync(descriptor)
            middle_ns = time.perf_counter_ns()
            client.wait(client.append((bench_fact(number),)))
            ours_ns.append(time.perf_counter_ns() - middle_ns)
            floor_ns.append(middle_ns - start_ns)
    os.close(descriptor)
    ours, floor = (sorted(values)[rounds * 99 // 100] / 1e6 for values in (ours_ns, floor_ns))
    return {
        "case": "one synchronous client, p99 of the acknowledgement",
        "unit": "ms",
        "ours": round(ours, 3),
        "peer": "write + fdatasync of the same bytes, p99",
        "theirs": round(floor, 3),
        "ratio": round(floor / ours, 3),
        "goal": "<= 4 x peer",
        "met": ours <= 4 * floor,
    }
