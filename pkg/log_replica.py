"""A replica that has caught up with the log of a run's directory.

Owns the way from a log to a replica when no writer is asked: the log is read as it lies on disk,
sealed segments as whole columns (the next ones are read while some are applied), the rest by
frames; one commit takes both.
Importing this module loads DuckDB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from pagetrail.catalog.envelope import Fact
from pagetrail.catalog.fact_columns import Columns, columns_of, joined
from pagetrail.catalog.replica import CHAIN_START, Replica, open_replica
from pagetrail.controlplane.log.frames import Frame
from pagetrail.controlplane.log.manifests import SealedManifest, read_manifest
from pagetrail.controlplane.log.reader import chain_at, existing_stretches, read_log
from pagetrail.controlplane.log.sealed_columns import sealed_columns

APPLY_FACTS = 4_000_000
"""A commit takes whole sealed segments and whole frames up to this many facts (but one segment at
least), of which some hundred bytes each are held in memory. Tables fill faster in few large commits
than in many."""

DECODED_FACTS = 200_000
"""Frames are decoded together until they hold this many facts."""

_READERS = 3
"""Segments read at a time, beside the commit under way."""

_Segment = tuple[SealedManifest, Columns]

_Part = tuple[Columns, bytes]
"""Facts of the log, and the chain value behind them."""


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
    for parts in _commits(_parts(directory, replica.position, replica.chain)):
        replica.apply_columns(joined([columns for columns, _ in parts]), parts[-1][1])


def _commits(parts: Iterable[_Part]) -> Iterator[list[_Part]]:
    """Parts that follow each other, as many as one commit takes."""
    held: list[_Part] = []
    for part in parts:
        if held and part[0].next_seq - held[0][0].first_seq > APPLY_FACTS:
            yield held
            held = []
        held.append(part)
    if held:
        yield held


def _parts(directory: Path, position: int, chain: bytes) -> Iterator[_Part]:
    """The log behind a position, which has this chain value, in order."""
    for manifest, columns in _sealed_from(directory, position):
        if manifest.start.chain != chain:  # inside the segment before, or one not sealed yet
            yield from _of_frames(read_log(directory, position), position, manifest.first_seq)
        yield columns, manifest.end.chain
        position, chain = manifest.next_seq, manifest.end.chain
    yield from _of_frames(read_log(directory, position), position, None)


def _sealed_from(directory: Path, position: int) -> Iterator[_Segment]:
    """Sealed segments that begin at or after a position, in order, some read ahead."""
    sealed = [
        stretch.path
        for stretch in existing_stretches(directory).items
        if stretch.sealed and stretch.first_seq >= position
    ]
    with ThreadPoolExecutor(_READERS) as readers:
        ahead: deque[Future[_Segment]] = deque()
        for path in sealed:
            ahead.append(readers.submit(_read_sealed, path))
            if len(ahead) > _READERS:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _read_sealed(path: Path) -> _Segment:
    manifest = read_manifest(path)
    return manifest, sealed_columns(path, manifest)


def _of_frames(frames: Iterator[Frame], position: int, until_seq: int | None) -> Iterator[_Part]:
    """Whole frames up to a position, many facts at a time; None: to the end."""
    facts: list[Fact] = []
    chain = b""
    for frame in frames:
        if until_seq is not None and frame.first_seq >= until_seq:
            break
        if len(facts) >= DECODED_FACTS:
            yield columns_of(facts, position), chain
            position += len(facts)
            facts = []
        facts += frame.facts()
        chain = frame.chain
    if facts:
        yield columns_of(facts, position), chain
