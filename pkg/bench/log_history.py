"""`bench log`, what a long log costs at a start: the writer's recovery, a replica's rebuild.

Recovery opens logs as a writer does: with the indexes that closed segments carry, and without them,
when every byte is walked; its floor is hashing the same bytes. The replica is filled from sealed
segments whose facts have the mix of a simulated trace, every entity being a new one; its floor is
DuckDB reading the same Parquet into tables of its own. Both replicas are files.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import duckdb
import msgspec

from pagetrail.bench.log_load import bench_fact
from pagetrail.catalog.envelope import Transaction, WireFact
from pagetrail.catalog.facts import KINDS, Role
from pagetrail.controlplane.log.committer import open_committer
from pagetrail.controlplane.log.files import OsFiles
from pagetrail.controlplane.log.reader import read_log
from pagetrail.controlplane.log.sealing import seal_log
from pagetrail.controlplane.log.transactions import encode_transactions
from pagetrail.log_replica import caught_up_replica
from pagetrail.replay.trace import generate_trace
from pagetrail.simtrace import TraceSettings, run_trace

RECOVERY_FACTS = 10_000_000
RECOVERY_GOAL_S = 5.0
REBUILD_GOAL = 1_000_000
_TWO_SEGMENTS_S = 1.5
"""A smaller log's share of the goal, but two segments are walked at any start."""
_FRAME_FACTS = 1_000
_TRACE_REQUESTS = 400
_REBUILD_ROUNDS = 3
_DIGEST_BYTES = 32

Row = dict[str, object]


class UnsyncedFiles(OsFiles):
    """Building a log to measure with waits for no disk."""

    def fdatasync(self, descriptor: int) -> None:
        """Leave the bytes to the page cache."""


def recovery_rows(directory: Path, facts: int) -> list[Row]:
    """Two rows: with indexes, and with every byte walked."""
    committer, _ = open_committer(directory, files=UnsyncedFiles())
    payload = tuple(bench_fact(number) for number in range(_FRAME_FACTS))
    for number in range(facts // _FRAME_FACTS):
        message = encode_transactions((Transaction(number, (), (), payload),))
        committer.admit("filler", 1, message)
        committer.commit()
    committer.close()
    indexed_s = _recovery_s(directory)
    for path in (directory / "log").glob("index-*"):
        path.unlink()
    walked_s = _recovery_s(directory)
    floor_s = _hashing_s(directory)
    goal_s = max(RECOVERY_GOAL_S * facts / RECOVERY_FACTS, _TWO_SEGMENTS_S)
    shutil.rmtree(directory)
    peer = "reading and hashing (SHA-256) the same bytes"
    return [
        {
            "case": f"recovery of {facts:,} facts, {_FRAME_FACTS:,} a frame, {how}",
            "unit": "s",
            "ours": round(seconds, 3),
            "peer": peer,
            "theirs": round(floor_s, 3),
            "ratio": round(floor_s / seconds, 3),
            "goal": None if goal is None else f"<= {goal}",
            "met": None if goal is None else seconds <= goal,
        }
        for how, seconds, goal in (
            ("with indexes", indexed_s, goal_s),
            ("indexes lost, every byte walked", walked_s, None),
        )
    ]


def _recovery_s(directory: Path) -> float:
    start_ns = time.perf_counter_ns()
    committer, _ = open_committer(directory)
    elapsed_s = (time.perf_counter_ns() - start_ns) / 1e9
    committer.close()
    return elapsed_s


def _hashing_s(directory: Path) -> float:
    start_ns = time.perf_counter_ns()
    for path in (directory / "log").glob("segment-*"):
        hashlib.sha256(path.read_bytes()).digest()
    return (time.perf_counter_ns() - start_ns) / 1e9


def rebuild_row(directory: Path, repeats: int) -> Row:
    """A replica filled from sealed segments, ``repeats`` simulated traces long."""
    log = directory / "log-of-many"
    facts = sealed_log(directory, repeats)
    row = rebuild_of(log, directory, facts)
    shutil.rmtree(directory)
    return row


def sealed_log(directory: Path, repeats: int) -> int:
    """Write and seal ``repeats`` traces as the log ``log-of-many``; returns how many facts."""
    trace, log = directory / "trace", directory / "log-of-many"
    trace.mkdir(parents=True)
    settings = TraceSettings(workers=2, pages=400)
    run_trace(generate_trace(1, _TRACE_REQUESTS), trace, settings)
    committer, _ = open_committer(log, files=UnsyncedFiles())
    for client, client_epoch, transactions in _repeated(trace, repeats):
        committer.admit(client, client_epoch, encode_transactions(transactions))
        committer.commit()
    committer.close()
    committer, _ = open_committer(log, files=UnsyncedFiles())  # a segment is sealed once it is left
    committer.close()
    return seal_log(log, files=UnsyncedFiles()).facts


def rebuild_of(log: Path, directory: Path, facts: int) -> Row:
    """The medians of rounds that take turns, each with new files in ``directory``."""
    ours, theirs = [], []
    for _ in range(_REBUILD_ROUNDS):
        replica, floor = directory / "replica.duckdb", directory / "floor.duckdb"
        start_ns = time.perf_counter_ns()
        caught_up_replica(log, replica).close()
        ours.append(facts / (time.perf_counter_ns() - start_ns) * 1e9)
        theirs.append(_tables_rate(log, floor, facts))
        replica.unlink()
        floor.unlink()
    rate, floor_rate = median(ours), median(theirs)
    return {
        "case": f"replica rebuilt from {facts:,} sealed facts, the mix of a simulated trace",
        "unit": "facts/s",
        "ours": round(rate),
        "peer": "DuckDB: CREATE TABLE AS SELECT * FROM read_parquet, every table, checkpoint",
        "theirs": round(floor_rate),
        "ratio": round(rate / floor_rate, 3),
        "goal": f">= {REBUILD_GOAL:,}",
        "met": rate >= REBUILD_GOAL,
    }


def _tables_rate(log: Path, database: Path, facts: int) -> float:
    start_ns = time.perf_counter_ns()
    connection = duckdb.connect(str(database))
    files: dict[str, list[str]] = {}
    for path in sorted((log / "log").glob("sealed-*/*.parquet")):
        files.setdefault(path.stem, []).append(str(path))
    for name, paths in files.items():
        connection.execute(f'CREATE TABLE "{name}" AS SELECT * FROM read_parquet(?)', [paths])
    connection.close()
    return facts / (time.perf_counter_ns() - start_ns) * 1e9


def _repeated(trace: Path, repeats: int) -> Iterator[tuple[str, int, list[Transaction]]]:
    """Runs of the trace again and again, each time in a new client epoch and of new entities."""
    runs = [
        run for frame in read_log(trace) for run in frame.runs() if not run.client.startswith("~")
    ]
    for number in range(repeats):
        for run in runs:
            yield run.client, number + 1, [_renamed(t, number) for t in run.transactions]


def _renamed(transaction: Transaction, number: int) -> Transaction:
    causes = tuple(
        msgspec.structs.replace(cause, client_epoch=number + 1) for cause in transaction.causes
    )
    facts = tuple(_renamed_fact(fact, number) for fact in transaction.facts)
    return Transaction(transaction.client_seq, causes, (), facts)


def _renamed_fact(fact: WireFact, number: int) -> WireFact:
    if KINDS[fact.kind].role is not Role.CATALOG:
        return fact
    body = _renamed_value(msgspec.msgpack.decode(fact.body), number)
    return msgspec.structs.replace(fact, body=msgspec.Raw(msgspec.msgpack.encode(body)))


def _renamed_value(value: Any, number: int) -> Any:
    """Other digests, the same for the same; everything else as it was."""
    if isinstance(value, list):
        return [_renamed_value(item, number) for item in value]
    if isinstance(value, bytes) and len(value) == _DIGEST_BYTES:
        return hashlib.sha256(number.to_bytes(4, "big") + value).digest()
    return value
