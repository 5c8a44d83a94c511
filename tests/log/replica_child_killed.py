"""Rebuilds a replica over a connection that kills the process at one exact call.

Arguments: ``K DIRECTORY DATABASE``. K counts calls of the connection from 1. Prints how many calls
there were when it comes to an end.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import duckdb

from pagetrail import log_replica
from pagetrail.catalog import replica


class KillingConnection:
    """Ends the process, as ``kill -9`` does, before the k-th call."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, call: int) -> None:
        self._connection = connection
        self._call = call
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        self.calls += 1
        if self.calls == self._call:
            os.kill(os.getpid(), signal.SIGKILL)
        return getattr(self._connection, name)


def main() -> None:
    call, directory, database = sys.argv[1:]
    connect = duckdb.connect
    made: list[KillingConnection] = []

    def connected(*args: Any, **named: Any) -> KillingConnection:
        made.append(KillingConnection(connect(*args, **named), int(call)))
        return made[-1]

    duckdb.connect = connected  # type: ignore[assignment]
    replica._CHECKPOINT_FACTS = 1  # as for a log that is worth to be killed in
    log_replica.caught_up_replica(Path(directory), Path(database)).close()
    print(made[0].calls)


if __name__ == "__main__":
    main()
