"""Which rows of the machines' tables a run goes through, and which rows docs/serving.md has.

Watches the production machines from outside: their states before and after each event are compared.
A row is (machine, state, event, next state), in the words of docs/serving.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pagetrail.catalog.kinds.router import Answer, WorkerObserved
from pagetrail.catalog.kinds.worker import FinishReason
from pagetrail.controlplane.cluster.messages import Answered, Close, Offer, Verdict
from pagetrail.controlplane.cluster.router import ATTEMPTS_MAX, RouterMachine
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.log.committer import Committer
from pagetrail.controlplane.log.errors import FencedError, WriterStoppedError
from pagetrail.controlplane.log.sequencer import NotTaken
from pagetrail.controlplane.log.wire import Refusal
from pagetrail.controlplane.tiers.breaker import Breaker
from pagetrail.controlplane.tiers.restoring import Restoring

Row = tuple[str, str, str, str]
SERVING = Path(__file__).parents[2] / "docs" / "serving.md"
NONE = "-"
_DONE = (FinishReason.STOP, FinishReason.LENGTH)


def documented() -> set[Row]:
    """The rows of the tables under ``## Machines``, each table under its machine's name."""
    text = SERVING.read_text(encoding="utf-8")
    part = text.split("\n## Machines\n", 1)[1].split("\n## ", 1)[0]
    rows: set[Row] = set()
    for section in part.split("\n### ")[1:]:
        machine = section.splitlines()[0].strip().lower()
        for line in section.splitlines():
            cells = [cell.strip() for cell in line.split("|")[1:-1]]
            if len(cells) == 4 and cells[0] not in ("state", "---"):
                rows.add((machine, cells[0], cells[1], cells[2]))
    return rows


class Rows:
    """Rows that were gone through since ``watch``."""

    def __init__(self) -> None:
        self.seen: set[Row] = set()
        self._inside = False

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Watch every machine until the patch is undone."""
        for name in ("received", "answered", "ended", "expired", "cancelled", "retry_waiting"):
            self._around(patch, RouterMachine, name, self._router)
        self._around(patch, RouterMachine, "listed", self._listed)
        self._around(patch, RouterMachine, "heartbeat", self._heartbeat)
        for name in _WORKER_EVENTS:
            self._around(patch, WorkerMachine, name, self._worker)
        for name in ("ask", "succeeded", "failed"):
            self._around(patch, Breaker, name, self._breaker)
        for name in ("begin", "arrived"):
            self._around(patch, Restoring, name, self._restoring)
        for name in ("start", "admit", "commit"):
            self._around(patch, Committer, name, self._writer)

    def add(self, machine: str, state: str, event: str, after: str) -> None:
        self.seen.add((machine, state, event, after))

    def _around(
        self,
        patch: pytest.MonkeyPatch,
        owner: type,
        name: str,
        watcher: Callable[[str, Any, tuple[Any, ...], Callable[[], Any]], Any],
    ) -> None:
        original = getattr(owner, name)

        def watched(machine: Any, *arguments: Any, **named: Any) -> Any:
            if self._inside:  # a step of the event that is being watched
                return original(machine, *arguments, **named)
            self._inside = owner in (RouterMachine, WorkerMachine)
            try:
                given = (*arguments, *named.values())
                return watcher(name, machine, given, lambda: original(machine, *arguments, **named))
            finally:
                self._inside = False

        patch.setattr(owner, name, watched)

    # ---- router and discovery

    def _router(
        self, name: str, machine: RouterMachine, arguments: tuple[Any, ...], call: Callable[[], Any]
    ) -> Any:
        before = {live.number: (live.phase.name, live.attempt) for live in machine._open.values()}
        if name == "expired":
            known = machine._heartbeats.get(arguments[0])
            current = known is not None and known.worker_epoch == arguments[1]
            self.add(
                "discovery",
                "KNOWN" if known is not None else "UNKNOWN",
                "expired" if current or known is None else "an older epoch expired",
                "UNKNOWN" if current or known is None else "KNOWN",
            )
        answer = call()
        effects = answer[1] if name == "received" else answer
        after = {live.number: (live.phase.name, live.attempt) for live in machine._open.values()}
        closed = {
            effect.number: _closed(Verdict(effect.verdict))
            for effect in effects
            if isinstance(effect, Close)
        }
        if name == "received":
            self._routed(NONE, 1, after, closed, answer[0], "received")
        elif name == "retry_waiting":
            for number, (phase, attempt) in before.items():
                if phase == "RECEIVED":
                    self._routing(attempt, after, closed, number)
        elif name == "expired":
            for number in before:
                if before[number] != after.get(number):
                    self._routed(*before[number], after, closed, number, "its worker expired")
        else:
            self._one(name, arguments, before, after, closed)
        return answer

    def _one(
        self,
        name: str,
        arguments: tuple[Any, ...],
        before: dict[int, tuple[str, int]],
        after: dict[int, tuple[str, int]],
        closed: dict[int, str],
    ) -> None:
        """An event of one request."""
        number = arguments[0].number if name == "ended" else arguments[0]
        if number not in before:
            if name != "cancelled":
                self.add("router", "closed", "a word of any attempt", "closed")
            return
        state, attempt = before[number]
        if name == "cancelled":
            self.add("router", state, "cancelled", closed[number])
            return
        of = arguments[0].attempt if name == "ended" else arguments[1]
        if of != attempt or state == "RECEIVED":
            self.add("router", state, "a word of an older attempt", state)
        elif name == "ended" and arguments[0].reason in _DONE:
            self.add("router", state, "ended, done", closed[number])
        elif name == "ended":
            self._routed(state, attempt, after, closed, number, "ended, not done")
        elif state == "ASSIGNED":
            self.add("router", state, "answered again", "ASSIGNED")
        elif arguments[2] is Answer.ACCEPTED:
            self.add("router", state, "accepted", after[number][0])
        else:
            event = "declined" if arguments[2] is Answer.DECLINED else "timed out"
            self._routed(state, attempt, after, closed, number, event)

    def _routed(
        self,
        state: str,
        attempt: int,
        after: dict[int, tuple[str, int]],
        closed: dict[int, str],
        number: int,
        event: str,
    ) -> None:
        self.add("router", state, event, "RECEIVED")
        self._routing(attempt, after, closed, number)

    def _routing(
        self,
        attempt: int,
        after: dict[int, tuple[str, int]],
        closed: dict[int, str],
        number: int,
    ) -> None:
        """What became of a request that was to be routed."""
        if number not in closed:
            phase = after[number][0]
            event = "a worker can take it" if phase == "OFFERED" else "none can now"
            self.add("router", "RECEIVED", event, phase)
        elif attempt >= ATTEMPTS_MAX:
            self.add("router", "RECEIVED", "its attempts are used up", closed[number])
        else:
            self.add("router", "RECEIVED", "none ever can", closed[number])

    def _listed(
        self, name: str, machine: RouterMachine, arguments: tuple[Any, ...], call: Callable[[], Any]
    ) -> Any:
        effects = call()
        missing = any(isinstance(effect, Offer) for effect in effects)
        event = "a list without an attempt of it" if missing else "a list of all its attempts"
        self.add("discovery", "KNOWN", event, "KNOWN")
        if missing:
            self.add("router", "ASSIGNED", "missing in its worker's list", "ASSIGNED")
        return effects

    def _heartbeat(
        self, name: str, machine: RouterMachine, arguments: tuple[Any, ...], call: Callable[[], Any]
    ) -> Any:
        seen: WorkerObserved = arguments[0]
        known = machine._heartbeats.get(seen.worker)
        counted = call()
        if known is None:
            self.add("discovery", "UNKNOWN", "a report", "KNOWN")
        elif not counted:
            self.add("discovery", "KNOWN", "an older report", "KNOWN")
        elif known.worker_epoch != seen.worker_epoch:
            self.add("discovery", "KNOWN", "a report of a newer epoch", "KNOWN")
        else:
            self.add("discovery", "KNOWN", "a newer report", "KNOWN")
        return counted

    # ---- worker

    def _worker(
        self, name: str, machine: WorkerMachine, arguments: tuple[Any, ...], call: Callable[[], Any]
    ) -> Any:
        live = machine._state.live
        before = {stream: (one.state.name, one.ran) for stream, one in live.items()}
        effects = call()
        after = {stream: one.state.name for stream, one in live.items()}
        if name == "offered":
            self._offered(before, after, effects)
            return effects
        if (
            name == "cancelled"
            and arguments not in {(one.number, one.attempt) for one in live.values()}
            and before.keys() == after.keys()
        ):
            self.add("worker", NONE, "cancelled before it was offered", NONE)
        for stream, (state, ran) in before.items():
            now = after.get(stream, NONE)
            if now != state or (name == "kept_in_ram" and stream == arguments[0]):
                self.add("worker", state, _event(name, state, now, ran), now)
        return effects

    def _offered(self, before: dict[int, Any], after: dict[int, str], effects: list[Any]) -> None:
        answer = next(effect.answer for effect in effects if isinstance(effect, Answered))
        if len(after) > len(before):
            self.add("worker", NONE, "offered", "WAITING")
        elif answer is Answer.DECLINED:
            self.add("worker", NONE, "offered, refused", NONE)
        elif len(effects) > 1:
            self.add("worker", NONE, "offered again, has ended", NONE)
        else:
            self.add("worker", "any", "offered again", "any")

    # ---- tiers

    def _breaker(
        self, name: str, breaker: Breaker, arguments: tuple[Any, ...], call: Callable[[], Any]
    ) -> Any:
        answer = call()
        if name == "ask":
            event = "asked, let through" if answer[1] else "asked, refused"
            self.add("breaker", breaker.state.name, event, answer[0].state.name)
        else:
            self.add("breaker", breaker.state.name, name, answer.state.name)
        return answer

    def _restoring(
        self, name: str, machine: Restoring, arguments: tuple[Any, ...], call: Callable[[], Any]
    ) -> Any:
        before = _restore_state(machine) if name == "arrived" else NONE
        effects = call()
        event = "begin"
        if name == "arrived":
            corrupt = len(arguments) > 2 and arguments[2]
            event = "verified" if arguments[1] else "wrong" if corrupt else "missing"
        self.add("restore", before, event, _restore_state(machine))
        return effects

    # ---- writer

    def _writer(
        self, name: str, machine: Committer, arguments: tuple[Any, ...], call: Callable[[], Any]
    ) -> Any:
        state = "STOPPED" if machine._stopped is not None else "SERVING"
        if name == "start":
            self.add("writer", NONE, "started", "SERVING")
            return call()
        if name == "admit":
            known, newest = machine.expected(arguments[0], arguments[1])
            answer = call()
            if isinstance(answer, NotTaken):
                event = "a gap" if answer.reason is Refusal.GAP else "an epoch before"
            else:
                repeated = machine.expected(arguments[0], arguments[1])[0] == known
                event = "sent again" if repeated else "the next transactions"
                if not repeated and newest < arguments[1]:
                    event = "a new epoch"
            self.add("writer", state, event, state)
            return answer
        try:
            frame = call()
        except FencedError:
            self.add("writer", state, "commit, fenced", "STOPPED")
            raise
        except WriterStoppedError:
            self.add("writer", state, "commit, the disk fails", "STOPPED")
            raise
        self.add("writer", state, "commit" if frame is not None else "commit, nothing new", state)
        return frame


_WORKER_EVENTS = {
    "offered": "offered",
    "cancelled": "cancelled",
    "admit_waiting": "admitted",
    "starved": "starved",
    "restored": "restored",
    "grow": "preempted",
    "swapped_out": "swapped out",
    "done": "done",
    "kept_in_ram": "kept in RAM",
    "captured": "captured",
    "closed": "stopped",
}


def _event(name: str, state: str, now: str, ran: bool) -> str:
    if name == "admit_waiting":
        return "refused" if now == NONE else "admitted again" if ran else "admitted"
    return _WORKER_EVENTS[name]


def _closed(verdict: Verdict) -> str:
    if verdict in (Verdict.COMPLETED, Verdict.CANCELLED):
        return verdict.name
    return "FAILED"


def _restore_state(machine: Restoring) -> str:
    if machine._over:
        return "OVER"
    return "CUT" if machine._cut < len(machine.chunks) else "READING"
