"""A sample of a worker's look-ups, asked again of the rules.

The live index answers look-ups on the request path; ``rules/boundaries.dl`` says what it must
answer. One look-up in so many is repeated in the deciding thread and queued; another thread
follows the log on its own, keeps a replica of it, and asks the rule at the same position. A
difference is counted and logged with both answers; nothing of it reaches the request.

Owns its stream, its replica (a file that is started anew with the worker, because it is only a
projection) and its thread. Never blocks the deciding thread: when too many samples wait, the next
ones are counted and dropped. What ends the check is logged, and the worker serves on.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pagetrail.catalog.boundaries import Boundaries, boundaries_by_rule
from pagetrail.catalog.replica import APPLY_FACTS_MAX, Replica, open_replica
from pagetrail.controlplane.log.frames import Frame
from pagetrail.controlplane.lookup import Catalog, holdings, look_up

SAMPLES_MAX = 64
POLL_S = 0.2
_LOG = logging.getLogger(__name__)


class Stream(Protocol):
    """Contiguous frames from the start of the log; belongs to the thread that opened it."""

    def poll(self, timeout_s: float) -> list[Frame]:
        """The next frames; empty when none came within the time."""

    def close(self) -> None:
        """Let go of it."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A look-up and what the index answered at its position."""

    position: int
    prompt: tuple[bytes, ...]
    answer: Boundaries


@dataclass(frozen=True, slots=True)
class Tally:
    """How the samples fared so far. ``dropped``: too many were waiting."""

    checked: int = 0
    differing: int = 0
    dropped: int = 0


def boundaries_of(catalog: Catalog, fingerprint: bytes, prompt: Sequence[bytes]) -> Boundaries:
    """What the deciders find of a prompt, in the form in which the rule answers."""
    lookup, entries = look_up(catalog, fingerprint, prompt)
    held = holdings(catalog, entries)
    return Boundaries(lookup.known, frozenset((h.worker, h.tier, h.chunks) for h in held))


class LookupCheck:
    """See the module. ``look`` is called from the deciding thread, the rest from the owner's."""

    def __init__(
        self,
        catalog: Catalog,
        fingerprint: bytes,
        every: int,
        replica_file: Path,
        open_stream: Callable[[], Stream],
    ) -> None:
        """One look-up in ``every`` (at least 1) is checked."""
        self._catalog = catalog
        self._fingerprint = fingerprint
        self._every = every
        self._file = replica_file
        self._open_stream = open_stream
        self._seen = 0
        self._dropped = 0
        self._checked = 0
        self._differing = 0
        self._samples: queue.Queue[Sample] = queue.Queue(SAMPLES_MAX)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lookup-check", daemon=True)

    @property
    def tally(self) -> Tally:
        """Counts since the start."""
        return Tally(self._checked, self._differing, self._dropped)

    def start(self) -> None:
        """Begin to follow the log."""
        self._thread.start()

    def look(self, prompt: Sequence[bytes]) -> None:
        """A prompt is about to be looked up: repeat it when it is its turn."""
        self._seen += 1
        if self._seen % self._every or not prompt:
            return
        answer = boundaries_of(self._catalog, self._fingerprint, prompt)
        try:
            self._samples.put_nowait(Sample(self._catalog.position, tuple(prompt), answer))
        except queue.Full:
            self._dropped += 1

    def close(self) -> None:
        """Check what waits as far as the log has come, and stop."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    # ---- the checking thread

    def _run(self) -> None:
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._file.unlink(missing_ok=True)
            stream = self._open_stream()
            try:
                with open_replica(self._file, _Unconfirmed()) as replica:
                    replica.connection.execute("SET threads = 1")
                    self._follow(stream, replica)
            finally:
                stream.close()
        except Exception:  # a check that cannot go on is no reason to stop serving
            _LOG.exception("look-ups are checked no more; the worker serves on")

    def _follow(self, stream: Stream, replica: Replica) -> None:
        waiting: Sample | None = None
        while True:
            last_round = self._stopping.is_set()
            for frames in _bounded(stream.poll(0.0 if last_round else POLL_S)):
                facts = [fact for frame in frames for fact in frame.facts()]
                replica.apply(facts, frames[-1].chain)
            while waiting is not None or not self._samples.empty():
                waiting = waiting or self._samples.get_nowait()
                if waiting.position > replica.position:
                    break
                self._check(waiting, replica)
                waiting = None
            if last_round:
                return

    def _check(self, sample: Sample, replica: Replica) -> None:
        by_rule = boundaries_by_rule(replica, self._fingerprint, sample.prompt, sample.position)
        self._checked += 1
        if by_rule == sample.answer:
            return
        self._differing += 1
        _LOG.error(
            "look-up of %d chunks ending in %s at position %d: the index answered %s, the rule "
            "%s (difference %d in %d checked); the decisions that rest on it are suspect: run "
            "`pagetrail replay verify`, and restart the worker to rebuild its index",
            len(sample.prompt),
            sample.prompt[-1].hex()[:16],
            sample.position,
            _text(sample.answer),
            _text(by_rule),
            self._differing,
            self._checked,
        )


class _Unconfirmed:
    """A replica that was started anew has nothing that the log would have to confirm."""

    def chain_at(self, position: int) -> bytes | None:
        return None


def _bounded(frames: list[Frame]) -> list[list[Frame]]:
    """Frames in groups that one apply may take."""
    groups: list[list[Frame]] = []
    held = 0
    for frame in frames:
        held += frame.header.fact_count
        if not groups or held > APPLY_FACTS_MAX:
            groups.append([])
            held = frame.header.fact_count
        groups[-1].append(frame)
    return groups


def _text(boundaries: Boundaries) -> str:
    held = ", ".join(
        f"{worker or 'object store'}/{tier}: {chunks}"
        for worker, tier, chunks in sorted(boundaries.held)
    )
    return f"{boundaries.known} known, held [{held}]"
