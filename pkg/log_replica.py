"""A replica that has caught up with the log of a run's directory.

Owns the way from a log to a replica when no writer is asked: the log is read as it lies on disk,
sealed segments as whole columns (the next one is read while one is applied), the rest by frames.
Importing this module loads DuckDB.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pagetrail.catalog.envelope import Fact
from pagetrail.catalog.fact_columns import Columns
from pagetrail.catalog.replica import APPLY_FACTS_MAX, CHAIN_START, Replica, open_replica
from pagetrail.controlplane.log.frames import Frame
from pagetrail.controlplane.log.manifests import SealedManifest, read_manifest
from pagetrail.controlplane.log.reader import chain_at, existing_stretches, read_log
from pagetrail.controlplane.log.sealed_columns import sealed_columns

APPLY_FACTS = 200_000
"""A commit of the replica takes whole frames until it holds this many facts."""


class LogChain:
    """The chain values of a log on disk, for a replica that checks where it stands."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def chain_at(self, position: int) -> bytes | None:
        """See `catalog.replica.ChainSource`."""
        return CHAIN_START if position == 0 else chain_at(self._directory, position)


def caught_up_replica(directory: Path, database: Path | None) -> Replica:
    """A replica with every fact of the log in `directory`; the caller closes it.

    `database` is its file, which is kept for the next time and rebuilt when it does not fit the
    log; None holds it in memory. Raises BadInputError when there is no log or the file is held by
    another process, CorruptionError or UnknownKindError when a fact cannot be read.
    """
    chain = LogChain(directory)
    existing_stretches(directory)  # refuse a directory without a log before a file is made
    replica = open_replica(database, chain)
    try:
        catch_up(replica, directory)
    except BaseException:
        replica.close()
        raise
    return replica


def catch_up(replica: Replica, directory: Path) -> None:
    """Apply what the log holds from the replica's position on. Raises as `caught_up_replica`."""
    for manifest, columns in _sealed_from(directory, replica.position):
        if manifest.start.chain == replica.chain:
            replica.apply_columns(columns, manifest.end.chain)
        else:
            _apply_frames(replica, read_log(directory, replica.position), manifest.next_seq)
    _apply_frames(replica, read_log(directory, replica.position), None)


def _sealed_from(directory: Path, position: int) -> Iterator[tuple[SealedManifest, Columns]]:
    """Sealed segments that begin at or after a position, in order, one read ahead."""
    sealed = [
        stretch.path
        for stretch in existing_stretches(directory).items
        if stretch.sealed and stretch.first_seq >= position
    ]
    with ThreadPoolExecutor(1) as reader:
        ahead: Future[tuple[SealedManifest, Columns]] | None = None
        for path in [*sealed, None]:
            coming = None if path is None else reader.submit(_read_sealed, path)
            if ahead is not None:
                yield ahead.result()
            ahead = coming


def _read_sealed(path: Path) -> tuple[SealedManifest, Columns]:
    manifest = read_manifest(path)
    return manifest, sealed_columns(path, manifest)


def _apply_frames(replica: Replica, frames: Iterator[Frame], until_seq: int | None) -> None:
    """Apply whole frames up to a position, many facts at a time; None: to the end."""
    facts: list[Fact] = []
    last: Frame | None = None
    for frame in frames:
        if until_seq is not None and frame.first_seq >= until_seq:
            break
        if last is not None and _enough(len(facts), frame.header.fact_count):
            replica.apply(facts, last.chain)
            facts = []
        facts += frame.facts()
        last = frame
    if last is not None:
        replica.apply(facts, last.chain)


def _enough(held: int, more: int) -> bool:
    return held >= APPLY_FACTS or held + more > APPLY_FACTS_MAX
