"""How far the streams of a model-free worker have come, when they grow page by page.

Only for a worker whose streams may outgrow their promise: a stream computes its prompt, then one
page of rows after the other, and asks for each before it begins. Owns the rows that each stream
has computed and is to compute, and the number of its run: what was under way when a stream gave
way comes due under an old number and counts for nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class _Progress:
    reached: int  # rows computed at most, in whatever run
    target: int
    rows: int = 0  # rows that are there
    run: int = 0
    started: bool = False


@dataclass(slots=True)
class Slices:
    """See the module."""

    page_tokens: int
    stalled: dict[int, None] = field(default_factory=dict)  # waiting for pages, in order
    _streams: dict[int, _Progress] = field(default_factory=dict)

    def begin(self, stream: int, rows: int, prompt_tokens: int, new_tokens: int) -> tuple[int, int]:
        """A stream runs from ``rows`` rows on: (number of the run, rows to compute first)."""
        progress = self._streams.get(stream)
        if progress is None:
            # The last token that is generated is never computed on.
            target = prompt_tokens + max(0, new_tokens - 1)
            progress = self._streams[stream] = _Progress(prompt_tokens, target)
        progress.rows = rows
        progress.run += 1
        return progress.run, progress.reached - rows

    def current(self, stream: int, run: int) -> bool:
        """Whether what comes due belongs to the stream's present run."""
        progress = self._streams.get(stream)
        return progress is not None and progress.run == run

    def computed(self, stream: int, rows: int) -> bool:
        """Rows were computed; whether the first token follows from them."""
        progress = self._streams[stream]
        first = not progress.started
        progress.started = True
        progress.rows += rows
        progress.reached = max(progress.reached, progress.rows)
        return first

    def next_rows(self, stream: int) -> int:
        """Rows of the next slice; 0: the stream has computed all."""
        progress = self._streams[stream]
        return min(self.page_tokens, progress.target - progress.rows)

    def run_of(self, stream: int) -> int:
        """The number of the stream's run."""
        return self._streams[stream].run

    def stop(self, stream: int) -> None:
        """What is under way of a stream counts for nothing."""
        self.stalled.pop(stream, None)
        progress = self._streams.get(stream)
        if progress is not None:
            progress.run += 1

    def forget(self, stream: int) -> None:
        """The stream has ended."""
        self.stalled.pop(stream, None)
        self._streams.pop(stream, None)
