"""A worker's DuckDB database: a projection of the log, contiguous, checked, always rebuildable.

Owns one database file (or memory). ``apply`` writes the rows of whole frames together with the
position and the chain value behind them, in one transaction. The file is never the truth: when it
does not open, has another form, disagrees with the log's chain, or has lost rows, it is deleted
and filled again from the log. One process may hold it; queries of other threads run beside
``apply`` and see one position each.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol

import duckdb
import pyarrow as pa

from .datalog.compiler import Query, compile_query
from .datalog.evaluate import Limits, answer, run
from .datalog.model import Type, Value
from .datalog.sql import quoted
from .envelope import Fact
from .errors import BadInputError
from .fact_columns import Columns, check_gapless, columns_of
from .replica_apply import insert
from .replica_batch import batch_of
from .replica_ledger import check_ledger, enter_rows, open_ledger
from .replica_schema import SCHEMA, ddl, form_digest
from .standing import standing_rules

APPLY_FACTS_MAX = 1_000_000
CHAIN_START = bytes(32)

_ENGINE: dict[str, str | bool | int | float | list[str]] = {"preserve_insertion_order": False}
"""Rows are found by what they hold: in any order, all processors insert at once."""

_ROW_GROUP_ROWS = 14_336
"""DuckDB compresses a row group of a table on one processor, those that are full as soon as rows
are inserted and the last, partial one at every checkpoint. Most of a replica's tables are small:
in groups of the usual 122,880 rows each would be one group, compressed while all else waits."""

_CHECKPOINT_FACTS = 200_000
"""A commit of so many facts writes the file itself, without DuckDB's log."""


class ChainSource(Protocol):
    """The log, as far as a replica needs it to check itself."""

    def chain_at(self, position: int) -> bytes | None:
        """The chain value after the first ``position`` facts (32 zero bytes at 0), or None when
        no frame ends there or the log does not reach that far."""


class Replica:
    """An open replica. ``position`` facts have been applied, and ``chain`` is the log's chain
    value there. ``rebuilt`` says why the file was started anew when opened, or is None."""

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        position: int,
        chain: bytes,
        rebuilt: str | None,
    ) -> None:
        self._connection = connection
        self.position = position
        self.chain = chain
        self.rebuilt = rebuilt

    def __enter__(self) -> Replica:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; applied facts are durable."""
        self._connection.close()

    @property
    def connection(self) -> duckdb.DuckDBPyConnection:
        """The database, for reading. Whoever reads in another thread takes a ``cursor()`` of it."""
        return self._connection

    def apply(self, facts: Sequence[Fact], chain: bytes) -> None:
        """Add the facts of one or more whole frames; ``chain`` is the chain value behind them.

        All or nothing. Raises BadInputError when they do not continue at ``position``,
        UnknownKindError or CorruptionError when one cannot be read; the replica is then as before.
        """
        if not facts:
            return
        if len(facts) > APPLY_FACTS_MAX:
            raise BadInputError(
                f"{len(facts)} facts in one apply, at most {APPLY_FACTS_MAX}; apply fewer frames"
            )
        self._apply(columns_of(facts, self.position), chain)

    def apply_columns(self, columns: Columns, chain: bytes) -> None:
        """As ``apply``, for whole frames that came as columns: set at a time, without a bound.

        Raises BadInputError when they do not continue at ``position``, CorruptionError when a
        ``seq`` of their range is missing or there twice; the replica is then as before.
        """
        if columns.first_seq != self.position:
            raise BadInputError(
                f"columns from fact {columns.first_seq} do not continue at {self.position}; apply "
                "what lies between first"
            )
        check_gapless(columns)
        self._apply(columns, chain)

    def _apply(self, columns: Columns, chain: bytes) -> None:
        if len(chain) != len(CHAIN_START):
            raise BadInputError(f"a chain value has 32 bytes, not {len(chain)}")
        batch = batch_of(columns)
        connection = self._connection
        connection.begin()
        try:
            enter_rows(connection, batch.first_seq, insert(connection, batch))
            connection.execute(
                "UPDATE position SET seq = ?, chain = ?", [batch.next_seq, bytes(chain)]
            )
            with _checkpoint(connection, batch.next_seq - batch.first_seq):
                connection.commit()
        except BaseException:
            with suppress(duckdb.TransactionException):  # a failed commit has ended it already
                connection.rollback()
            raise
        self.position, self.chain = batch.next_seq, bytes(chain)

    def compile(
        self,
        text: str,
        *,
        file: str = "<query>",
        parameters: Mapping[str, Type] | None = None,
        as_of: bool = False,
    ) -> Query:
        """Compile Datalog over the replica's predicates (``replica_schema`` lists them) and the
        standing rules."""
        return compile_query(
            text,
            SCHEMA,
            file=file,
            library=standing_rules(),
            parameters=parameters,
            as_of=as_of,
        )

    def run(
        self,
        query: Query,
        values: Mapping[str, Value] | None = None,
        *,
        inputs: Mapping[str, pa.Table] | None = None,
        as_of: int | None = None,
        ordered: bool = True,
        limits: Limits | None = None,
    ) -> pa.Table:
        """Run a compiled query; see ``datalog.run``. ``as_of`` is at most ``position``."""
        self._check_position(as_of)
        return run(
            self._connection,
            query,
            values,
            inputs=inputs,
            as_of=as_of,
            ordered=ordered,
            limits=limits,
        )

    def query(
        self,
        text: str,
        values: Mapping[str, Value] | None = None,
        *,
        file: str = "<query>",
        inputs: Mapping[str, pa.Table] | None = None,
        as_of: int | None = None,
        limits: Limits | None = None,
    ) -> pa.Table:
        """Compile and run Datalog text; see ``datalog.answer``."""
        self._check_position(as_of)
        return answer(
            self._connection,
            SCHEMA,
            text,
            values,
            file=file,
            library=standing_rules(),
            inputs=inputs,
            as_of=as_of,
            limits=limits,
        )

    def _check_position(self, as_of: int | None) -> None:
        if as_of is not None and not 0 <= as_of <= self.position:
            raise BadInputError(
                f"as_of {as_of} is not a position of this replica; expected 0 to {self.position}"
            )


def open_replica(path: str | Path | None, log: ChainSource) -> Replica:
    """Open the replica at ``path`` (None: in memory), or start it anew.

    A file that does not open, has another form, holds other rows than its ledger says, or stands
    at a position whose chain value the log does not confirm is deleted, and ``rebuilt`` of the
    result says why. The caller then applies the log from ``position`` on.
    """
    if path is None:
        return Replica(_create(":memory:"), 0, CHAIN_START, None)
    file = Path(path)
    if not file.exists():
        _remove(file)
        return Replica(_create(str(file)), 0, CHAIN_START, None)
    if not os.access(file, os.R_OK | os.W_OK):
        raise BadInputError(f"{file} cannot be read and written; give this user the right to")
    connection = None
    try:
        connection = _connect(str(file))
        reason, position, chain = _inspect(connection, log)
        if not reason:
            return Replica(connection, position, chain, None)
    except duckdb.Error as error:
        if _is_held(error):
            raise BadInputError(
                f"{file} is held by another process, or open in this one; give this one a replica "
                "file of its own"
            ) from error
        reason = f"the file cannot be read ({error})"
    if connection is not None:
        connection.close()
    _remove(file)
    return Replica(_create(str(file)), 0, CHAIN_START, reason)


def _connect(database: str) -> duckdb.DuckDBPyConnection:
    """A connection whose cursors, too, find the tables of a file by their bare names."""
    connection = duckdb.connect(":memory:", config=_ENGINE)
    if database == ":memory:":
        return connection
    try:
        # The size of row groups is an option of attaching only. A cursor starts in the first
        # database of its instance, which the file becomes when the one in memory is gone.
        connection.execute(
            f"ATTACH {quoted(database)} AS replica (ROW_GROUP_SIZE {_ROW_GROUP_ROWS})"
        )
        connection.execute("USE replica")
        connection.execute("DETACH memory")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _checkpoint(connection: duckdb.DuckDBPyConnection, facts: int) -> Iterator[None]:
    """A commit of many facts inside this is a checkpoint. Most of its rows lie in the file already;
    to log the others first, and write them when the log is given up, takes twice as long."""
    if facts < _CHECKPOINT_FACTS:
        yield
        return
    connection.execute("SET checkpoint_threshold = '1KiB'")
    try:
        yield
    finally:
        connection.execute("RESET checkpoint_threshold")


def _is_held(error: duckdb.Error) -> bool:
    """Whether another process has the file's lock, or this one has it open."""
    return "set lock" in str(error) or "file handle conflict" in str(error)


def _create(database: str) -> duckdb.DuckDBPyConnection:
    connection = _connect(database)
    connection.begin()
    connection.execute(";".join(ddl()))
    open_ledger(connection)
    connection.execute(
        "INSERT INTO position VALUES (0, ?, ?, ?)", [CHAIN_START, form_digest(), duckdb.__version__]
    )
    connection.commit()
    return connection


def _inspect(connection: duckdb.DuckDBPyConnection, log: ChainSource) -> tuple[str, int, bytes]:
    """(why the file cannot be continued, or empty; position; chain)."""
    rows = connection.execute("SELECT seq, chain, form, engine FROM position").fetchall()
    if len(rows) != 1:
        return f"its position has {len(rows)} rows instead of 1", 0, CHAIN_START
    position, chain, form, engine = rows[0]
    if form != form_digest():
        return "its tables have the form of another version of pagetrail", 0, CHAIN_START
    if engine != duckdb.__version__:
        return f"it was written by DuckDB {engine}, this is {duckdb.__version__}", 0, CHAIN_START
    if log.chain_at(position) != chain:
        return f"the log has another history at position {position}", 0, CHAIN_START
    return check_ledger(connection), position, chain


def _remove(file: Path) -> None:
    for name in (file, file.with_name(file.name + ".wal")):
        name.unlink(missing_ok=True)
