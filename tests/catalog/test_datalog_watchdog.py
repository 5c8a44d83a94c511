"""One thread watches the limits of all queries of a process."""

from __future__ import annotations

import multiprocessing
import threading
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection

import duckdb
import pytest

from pagetrail.catalog.datalog import (
    EvaluationLimitError,
    Limits,
    Schema,
    compile_query,
    run,
)

ENDLESS = compile_query("n(X) :- X = 0. n(Y) :- n(X), Y = X + 1. ?- n(X).", Schema([]))
SMALL = compile_query("n(1). ?- n(X).", Schema([]))


def stopped(limit_s: float) -> bool:
    with duckdb.connect() as connection:
        try:
            run(connection, ENDLESS, limits=Limits(seconds=limit_s))
        except EvaluationLimitError:
            return True
    return False


def test_a_limit_that_ends_before_the_one_waited_for_is_kept_too() -> None:
    with duckdb.connect() as connection:
        run(connection, SMALL, limits=Limits(seconds=1e6))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(stopped, (0.9, 0.5, 0.1, 0.3))) == [True] * 4
    watching = [t for t in threading.enumerate() if t.name == "datalog-watchdog"]
    assert len(watching) == 1


def test_a_query_that_ended_in_time_leaves_its_connection_alone() -> None:
    with duckdb.connect() as connection:
        for _ in range(20):
            assert run(connection, SMALL, limits=Limits(seconds=0.05)).num_rows == 1
        with pytest.raises(EvaluationLimitError, match=r"stopped after 0\.1 s"):
            run(connection, ENDLESS, limits=Limits(seconds=0.1))
        assert run(connection, SMALL).num_rows == 1


def _child(answers: Connection) -> None:
    answers.send(stopped(0.2))


def test_a_forked_process_has_a_watchdog_of_its_own() -> None:
    assert stopped(0.1)
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe(duplex=False)
    child = fork.Process(target=_child, args=(there,))
    child.start()
    assert here.poll(60)
    assert here.recv()
    child.join(60)
    assert child.exitcode == 0
