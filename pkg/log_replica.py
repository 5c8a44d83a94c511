"""A replica that has caught up with the log of a run's directory.

Owns the way from frames to a replica when no writer is asked: the log is read as it lies on disk.
Importing this module loads DuckDB.
"""

from __future__ import annotations

from pathlib import Path

from pagetrail.catalog.envelope import Fact
from pagetrail.catalog.replica import APPLY_FACTS_MAX, CHAIN_START, Replica, open_replica
from pagetrail.controlplane.log.frames import Frame
from pagetrail.controlplane.log.reader import read_log

APPLY_FACTS = 50_000
"""A commit of the replica takes whole frames until it holds this many facts."""


class LogChain:
    """The chain values of a log on disk, for a replica that checks where it stands."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def chain_at(self, position: int) -> bytes | None:
        """See `catalog.replica.ChainSource`."""
        if position == 0:
            return CHAIN_START
        frame = next(read_log(self._directory, position - 1), None)
        return frame.chain if frame is not None and frame.next_seq == position else None


def caught_up_replica(directory: Path, database: Path | None) -> Replica:
    """A replica with every fact of the log in `directory`; the caller closes it.

    `database` is its file, which is kept for the next time and rebuilt when it does not fit the
    log; None holds it in memory. Raises BadInputError when there is no log or the file is held by
    another process, CorruptionError or UnknownKindError when a fact cannot be read.
    """
    chain = LogChain(directory)
    next(read_log(directory), None)  # refuse a directory without a log before a file is made
    replica = open_replica(database, chain)
    try:
        _catch_up(replica, directory)
    except BaseException:
        replica.close()
        raise
    return replica


def _catch_up(replica: Replica, directory: Path) -> None:
    facts: list[Fact] = []
    last: Frame | None = None
    for frame in read_log(directory, replica.position):
        if last is not None and _enough(len(facts), frame.header.fact_count):
            replica.apply(facts, last.chain)
            facts = []
        facts += frame.facts()
        last = frame
    if last is not None:
        replica.apply(facts, last.chain)


def _enough(held: int, more: int) -> bool:
    return held >= APPLY_FACTS or held + more > APPLY_FACTS_MAX
