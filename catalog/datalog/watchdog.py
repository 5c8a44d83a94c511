"""Interrupts queries that run too long, by one thread for all queries of a process.

A thread for each query would cost as much as a tenth of a small one.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache

import duckdb


@contextmanager
def interrupted_after(cursor: duckdb.DuckDBPyConnection, seconds: float) -> Iterator[None]:
    """Interrupt what ``cursor`` runs once ``seconds`` have passed, unless the block was left."""
    watchdog = _watchdog(os.getpid())
    number = watchdog.watch(cursor, seconds)
    try:
        yield
    finally:
        watchdog.forget(number)


@lru_cache(maxsize=1)
def _watchdog(_process: int) -> _Watchdog:
    """The watchdog of this process: a fork has none of its parent's threads."""
    return _Watchdog()


class _Watchdog:
    """Cursors under a deadline, and the thread that waits for the nearest one.

    The thread sleeps on when the cursor that it waits for is forgotten, so that queries that come
    and go wake it once in a limit and not at each.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: dict[int, tuple[float, duckdb.DuckDBPyConnection]] = {}
        self._next = 0
        self._wakes_at = float("inf")
        threading.Thread(target=self._watch, name="datalog-watchdog", daemon=True).start()

    def watch(self, cursor: duckdb.DuckDBPyConnection, seconds: float) -> int:
        """Put a cursor under a deadline; returns the number by which it is forgotten."""
        deadline = time.monotonic() + seconds
        with self._changed:
            self._next += 1
            self._watched[self._next] = deadline, cursor
            if deadline < self._wakes_at:
                self._changed.notify()
            return self._next

    def forget(self, number: int) -> None:
        """Nothing interrupts the cursor once this has returned."""
        with self._changed:
            self._watched.pop(number, None)

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                due = [number for number, (at, _) in self._watched.items() if at <= now]
                for number in due:
                    self._watched.pop(number)[1].interrupt()
                nearest = min((at for at, _ in self._watched.values()), default=None)
                self._wakes_at = float("inf") if nearest is None else nearest
                wait_s = None if nearest is None else min(nearest - now, threading.TIMEOUT_MAX)
                self._changed.wait(wait_s)
