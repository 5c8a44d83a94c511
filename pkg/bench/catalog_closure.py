"""The closures of `pagetrail bench catalog`: all pairs of long chains, and all from one node."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import duckdb
import pyarrow as pa

from pagetrail.catalog.datalog import Column, Query, Relation, Schema, Type, compile_query
from pagetrail.catalog.datalog import run as run_query

from .table import BenchRow

CHAIN_LENGTH = 64
PEER_SECONDS_MAX = 300
NEMO_VARIABLE = "PAGETRAIL_BENCH_NEMO_PYTHON"
RULES = "tc(X, Y) :- edge(X, Y). tc(X, Y) :- tc(X, Z), edge(Z, Y)."
RIGHT = "tc(X, Y) :- edge(X, Y). tc(X, Y) :- edge(X, Z), tc(Z, Y)."
HAND_FROM = """
WITH RECURSIVE reached(b) AS (
  SELECT b FROM edge WHERE a = $start UNION
  SELECT e.b FROM reached r JOIN edge e ON e.a = r.b)
SELECT b FROM reached"""


def closure_rows(edges: int) -> list[BenchRow]:
    """Measure over about ``edges`` edges in chains of 64 nodes."""
    chains = edges // (CHAIN_LENGTH - 1)
    pairs = [
        (chain * CHAIN_LENGTH + link, chain * CHAIN_LENGTH + link + 1)
        for chain in range(chains)
        for link in range(CHAIN_LENGTH - 1)
    ]
    schema = Schema(
        [Relation("edge", (Column("a", Type.INT), Column("b", Type.INT)), "edge", (("a", "b"),))]
    )
    connection = duckdb.connect()
    connection.execute("SET threads = 1")
    connection.register("rows", pa.table(list(zip(*pairs, strict=True)), ["a", "b"]))
    connection.execute("CREATE TABLE edge AS SELECT * FROM rows")
    return [
        *_all_pairs(connection, compile_query(RULES, schema), pairs),
        _from_one(connection, compile_query(f"{RIGHT} ?- tc($start, Y).", schema), len(pairs)),
    ]


def _all_pairs(
    connection: duckdb.DuckDBPyConnection, query: Query, pairs: list[tuple[int, int]]
) -> list[BenchRow]:
    ours, answer = _cpu_s(connection, query, {})
    chains = len(pairs) // (CHAIN_LENGTH - 1)
    expected = chains * CHAIN_LENGTH * (CHAIN_LENGTH - 1) // 2
    _counted("ours", answer.num_rows, expected)
    clingo = sys.executable if importlib.util.find_spec("clingo") is not None else None
    case = f"closure of {len(pairs):,} edges in chains, {expected:,} rows as a table"
    rows = []
    for engine, peer, python in (
        ("clingo", "clingo, grounding and reading the atoms", clingo),
        ("nemo", f"Nemo, reasoning and reading the rows ({NEMO_VARIABLE})", _nemo_python()),
    ):
        theirs = None if python is None else _peer_s(engine, python, pairs, expected)
        goal = engine == "clingo"
        rows.append(
            BenchRow(
                case=case,
                unit="s",
                ours=ours,
                peer=peer,
                theirs=theirs,
                ratio=None if theirs is None else theirs / ours,
                goal=8.0 if goal else None,
                met=None if theirs is None or not goal else theirs / ours >= 8,
            )
        )
    return rows


def _from_one(connection: duckdb.DuckDBPyConnection, query: Query, edges: int) -> BenchRow:
    """Recursion written the wrong way round for this question: demand has to turn it."""
    ours, answer = min(
        (_cpu_s(connection, query, {"start": 0}) for _ in range(3)), key=lambda one: one[0]
    )
    _counted("ours", answer.num_rows, CHAIN_LENGTH - 1)
    hand_s = []
    for _ in range(3):
        start = time.process_time()
        connection.execute(HAND_FROM, {"start": 0}).fetchnumpy()
        hand_s.append(time.process_time() - start)
    hand = min(hand_s)
    return BenchRow(
        case=f"what one of {edges:,} edges leads to, right-recursive rule",
        unit="ms",
        ours=ours * 1e3,
        peer="hand-written recursive SQL that starts there",
        theirs=hand * 1e3,
        ratio=hand / ours,
    )


def _cpu_s(
    connection: duckdb.DuckDBPyConnection, query: Query, values: dict[str, int | str | bytes]
) -> tuple[float, pa.Table]:
    start = time.process_time()
    answer = run_query(connection, query, values, ordered=False)
    return time.process_time() - start, answer


def _counted(who: str, rows: int, expected: int) -> None:
    if rows != expected:
        raise RuntimeError(f"{who}: the closure has {rows} rows, expected {expected}")


def _nemo_python() -> str | None:
    """The interpreter that has Nemo's Python package, as the environment names it."""
    python = os.environ.get(NEMO_VARIABLE)
    return python if python and Path(python).exists() else None


def _peer_s(engine: str, python: str, pairs: list[tuple[int, int]], expected: int) -> float:
    answer = subprocess.run(
        [python, str(Path(__file__).with_name("peers_catalog.py"))],
        input=json.dumps({"engine": engine, "edges": pairs}),
        capture_output=True,
        text=True,
        timeout=PEER_SECONDS_MAX,
        check=True,
    )
    found = json.loads(answer.stdout)
    _counted(engine, found["rows"], expected)
    seconds: float = found["seconds"]
    return seconds
