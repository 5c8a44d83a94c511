"""A worker whose spool is short of room declines requests, keeps those it has, and recovers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from engine_runs import EngineRun, ListSpool
from tiny_models import save_tiny

from pagetrail.catalog.kinds.router import Answer
from pagetrail.controlplane.cluster import wire
from pagetrail.controlplane.log.errors import HeadroomError


class BoundedSpool(ListSpool):
    """Has room for so many requests at a time, as a spool whose writer is away."""

    room = 1

    def reserve(self, size_bytes: int) -> Callable[[], None]:
        if not self.room:
            raise HeadroomError("spool headroom is short; the fact writer is away")
        self.room -= 1

        def release() -> None:
            self.room += 1

        return release


def answers(run: EngineRun) -> dict[int, Answer]:
    return {m.number: m.answer for m in run.sent if isinstance(m, wire.AnswerWire)}


def test_a_worker_without_headroom_declines_and_takes_requests_again_once_there_is_room(
    tmp_path: Path,
) -> None:
    save_tiny("llama", tmp_path)
    run = EngineRun(tmp_path, 40, spool=BoundedSpool())
    prompt = [5 + n for n in range(20)]
    try:
        run.offer(1, prompt, 4)
        run.offer(2, prompt, 4)
        run.run()
        assert answers(run) == {1: Answer.ACCEPTED, 2: Answer.DECLINED}
        assert len(run.tokens(1)) == 4
        assert run.tokens(2) == []
        spooled = len(run.spool.transactions)
        run.offer(3, prompt, 4)  # the first has ended and given its room back
        run.run()
        assert answers(run)[3] is Answer.ACCEPTED
        assert run.tokens(3) == run.tokens(1)
        assert len(run.spool.transactions) > spooled
    finally:
        run.close()
