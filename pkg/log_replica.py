"""A replica that has caught up with the log of a run's directory.

Owns the way from a log to a replica when no writer is asked: the log is read as it lies on disk,
sealed segments as whole columns (the next ones are read while some are applied), the rest by
frames.
Importing this module loads DuckDB.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa

from pagetrail.catalog.envelope import Fact
from pagetrail.catalog.fact_columns import Columns, alike, joined
from pagetrail.catalog.replica import APPLY_FACTS_MAX, CHAIN_START, Replica, open_replica
from pagetrail.controlplane.log.frames import Frame
from pagetrail.controlplane.log.manifests import SealedManifest, read_manifest
from pagetrail.controlplane.log.reader import chain_at, existing_stretches, read_log
from pagetrail.controlplane.log.sealed_columns import sealed_columns

APPLY_FACTS = 200_000
"""A commit of the replica takes whole frames until it holds this many facts."""

APPLY_SEALED_FACTS = 4_000_000
"""A commit takes whole sealed segments up to this many facts (but one at least), of which some
hundred bytes each are held in memory. Tables fill faster in few large commits than in many."""

_READERS = 2
"""Segments read at a time, beside the commit under way."""

_Segment = tuple[SealedManifest, Columns]


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
    with _memory_kept():
        for group in _groups(_sealed_from(directory, replica.position)):
            (first, _), (last, _) = group[0], group[-1]
            if first.start.chain != replica.chain:  # it stands inside the segment before
                _apply_frames(replica, read_log(directory, replica.position), first.first_seq)
            replica.apply_columns(joined([columns for _, columns in group]), last.end.chain)
    _apply_frames(replica, read_log(directory, replica.position), None)


@contextmanager
def _memory_kept() -> Iterator[None]:
    """Arrow takes its memory from malloc for a while, which keeps what one segment has left for
    the next. Arrow's own pools return it to the kernel in between, and to get it back page by page
    takes as long as to read the segment."""
    before = pa.default_memory_pool()
    pa.set_memory_pool(pa.system_memory_pool())
    try:
        yield
    finally:
        pa.set_memory_pool(before)


def _groups(segments: Iterable[_Segment]) -> Iterator[list[_Segment]]:
    """Segments that follow each other, as many as one commit takes."""
    group: list[_Segment] = []
    for segment in segments:
        if group:
            first, last = group[0], group[-1]
            full = segment[0].next_seq - first[0].first_seq > APPLY_SEALED_FACTS
            if full or segment[0].start != last[0].end or not alike(first[1], segment[1]):
                yield group
                group = []
        group.append(segment)
    if group:
        yield group


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
