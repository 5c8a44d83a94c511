"""Which page digests lie on which worker's device, as their heartbeats told.

Owns no truth: a worker that missed a message is asked for everything again, and a stale entry only
makes a prediction worse. Digests commit to everything before them and workers keep closed prefixes,
so the longest match is found by bisection.
"""

from __future__ import annotations

from collections.abc import Iterable

from pagetrail.controlplane.cluster import wire

DIGESTS_MAX = 1 << 22


class ResidentDigests:
    """``ResidentPrefixes`` over heartbeats."""

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._kept: dict[str, set[bytes]] = {}
        self._events: dict[str, int] = {}

    def beat(self, beat: wire.Beat) -> bool:
        """Take a heartbeat's changes in; False: some were missed, ask for everything."""
        worker = beat.seen.worker
        if beat.whole:
            self._kept[worker] = set(beat.kept[:DIGESTS_MAX])
            self._events[worker] = beat.events
            return True
        known = self._events.get(worker)
        if known is None or known + len(beat.kept) + len(beat.cut) != beat.events:
            return False
        kept = self._kept[worker]
        kept.difference_update(beat.cut)
        kept.update(beat.kept)
        self._events[worker] = beat.events
        return len(kept) <= DIGESTS_MAX

    def forget(self, worker: str) -> None:
        """The worker is gone, and its device with it."""
        self._kept.pop(worker, None)
        self._events.pop(worker, None)

    def tokens(self, prompt_pages: tuple[bytes, ...], workers: Iterable[str]) -> dict[str, int]:
        """Tokens of a prompt that are resident, by worker."""
        return {
            worker: self._match(prompt_pages, self._kept.get(worker, set())) * self._page_tokens
            for worker in workers
        }

    @staticmethod
    def _match(pages: tuple[bytes, ...], kept: set[bytes]) -> int:
        low, high = 0, len(pages)
        while low < high:
            middle = (low + high + 1) // 2
            if pages[middle - 1] in kept:
                low = middle
            else:
                high = middle - 1
        return low
