"""The demo's live progress: a bar over its requests, and a line for each that ended."""

from __future__ import annotations

import time

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn


class Screen:
    """A ``Watcher`` on a terminal; without one only the lines are printed. A context manager."""

    def __init__(self, console: Console, requests: int) -> None:
        self._started_s = time.monotonic()
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", total=requests)

    def __enter__(self) -> Screen:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def step(self, text: str) -> None:
        """Something begins."""
        self._progress.update(self._task, description=text)
        self._line(text)

    def reply(self, text: str) -> None:
        """A request has ended."""
        self._progress.advance(self._task)
        self._line(text)

    def _line(self, text: str) -> None:
        elapsed_s = time.monotonic() - self._started_s
        self._progress.console.print(f"{elapsed_s:6.1f}  {text}", highlight=False, markup=False)
