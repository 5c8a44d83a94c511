"""Finding where old transactions lie, beside the writer.

The writer's thread answers from memory; what is older stands in the segments, and to walk one takes
long enough to hold up everybody's acknowledgement. So such questions go to a thread with an
``Archive`` of its own. At most ``QUESTIONS_MAX`` wait; whoever comes then is told to ask again.
"""

from __future__ import annotations

import os
import queue
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from pagetrail.catalog.errors import PagetrailError
from pagetrail.controlplane.log import wire
from pagetrail.controlplane.log.archive import Archive
from pagetrail.controlplane.log.wire import AnswerSpan, Refusal

QUESTIONS_MAX = 256
"""Questions of all clients that wait to be looked up."""


@dataclass(frozen=True, slots=True)
class Question:
    """What a client asked, and what memory could answer of it.

    ``missing`` is (first client_seq, count) of what is to be found before position ``end``;
    ``kept`` are the spans behind it.
    """

    identity: bytes
    ask: wire.Resolve
    missing: tuple[int, int]
    kept: tuple[AnswerSpan, ...]
    end: int


@dataclass(frozen=True, slots=True)
class Found:
    """An answer to be sent."""

    identity: bytes
    verb: bytes
    header: bytes


class Resolver:
    """See the module. ``descriptor`` can be read as soon as ``found`` has something."""

    def __init__(self, log: Path) -> None:
        self._archive = Archive(log)
        self._questions: queue.Queue[Question | None] = queue.Queue()
        self._waiting = 0
        self._found: deque[Found] = deque()
        self.descriptor, self._wake = os.pipe()
        os.set_blocking(self.descriptor, False)
        self._thread = threading.Thread(target=self._run, name="fact-resolver", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether questions are answered."""
        return self._thread.is_alive()

    def ask(self, question: Question) -> bool:
        """Take a question; False when as many wait as may. Called by one thread, as ``found``."""
        if self._waiting >= QUESTIONS_MAX:
            return False
        self._waiting += 1
        self._questions.put(question)
        return True

    def found(self) -> list[Found]:
        """The answers that are there, each once."""
        try:
            os.read(self.descriptor, QUESTIONS_MAX)
        except BlockingIOError:
            return []
        answers = []
        while self._found:
            answers.append(self._found.popleft())
        self._waiting -= len(answers)
        return answers

    def close(self) -> None:
        """End the thread once it has finished what it is at; what waits is not answered."""
        while not self._questions.empty():
            try:
                self._questions.get_nowait()
            except queue.Empty:
                break
        self._questions.put(None)
        self._thread.join()
        os.close(self.descriptor)
        os.close(self._wake)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            self._found.append(self._answer(question))
            os.write(self._wake, b"x")

    def _answer(self, question: Question) -> Found:
        ask = question.ask
        try:
            older = self._archive.answers(
                ask.client, ask.client_epoch, *question.missing, question.end
            )
        except (PagetrailError, OSError) as error:
            refused = wire.Refused(ask.request, Refusal.BAD_RANGE, 0, str(error))
            return Found(question.identity, wire.REFUSED, wire.encode(refused))
        resolved = wire.Resolved(ask.request, (*older, *question.kept))
        return Found(question.identity, wire.RESOLVED, wire.encode(resolved))
