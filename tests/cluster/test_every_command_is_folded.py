"""Every command of a worker is folded by its view, and a fold of the commands alone is the view."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from cluster_parts import PAGE_TOKENS
from growing_parts import growing_machine

from pagetrail.catalog.facts import KINDS, Role, decode_body, encode_body, fact
from pagetrail.catalog.kinds import worker as kinds
from pagetrail.catalog.kinds.worker import (
    AdoptionUndone,
    CopiesDropped,
    CopyKept,
    CopyRestored,
    MarkArmed,
    MarkDisarmed,
    Measured,
    Metric,
    NodeDurable,
    NodesEvicted,
    PagesAdopted,
    PagesPinned,
    PagesPromised,
    PagesUnpinned,
    PromptKept,
    RamKeepBegun,
    RamKeepEnded,
    RequestDropped,
    RequestQueued,
    RouteForked,
    RowsAdvanced,
    RowsRestored,
    SnapshotDropped,
    StreamFinished,
    StreamPreempted,
    SwapBegun,
    SwapReleased,
)
from pagetrail.controlplane.view import WorkerView

ROWS = 2 * PAGE_TOKENS


def queued(stream: int, tenant: str = "") -> RequestQueued:
    digest = hashlib.sha256(b"%d" % stream).digest()
    return RequestQueued(stream, f"r{stream}", 1, tenant, 0, 0, stream, ROWS, 8, digest, bytes(32))


def begun(stream: int, node: int, columns: int, pages: int) -> list[msgspec.Struct]:
    """A stream of account 1 that has joined and was admitted."""
    return [
        queued(stream, "acme"),
        PagesAdopted(stream, node, columns, 0, 1),
        PagesPromised(stream, (pages,)),
    ]


# One life of a worker: each command at least once, each completion after what it completes.
LIFE: list[msgspec.Struct] = [
    Measured(Metric.PREFILL_NS_PER_TOKEN, 7),
    queued(1),
    RequestDropped(1, 1),
    queued(2, "acme"),
    PagesAdopted(2, 0, 0, 0, 1),
    AdoptionUndone(2),
    PagesAdopted(2, 0, 0, 0, 1),
    PagesPromised(2, (6,)),
    MarkArmed(2, 2),
    MarkArmed(2, 3),
    MarkDisarmed(2, 3),
    RowsAdvanced(((2, ROWS + 2),)),
    RouteForked(3, 2, ROWS + 1, (1,)),
    RowsAdvanced(((3, 1),)),
    PagesPinned(1, 2, 0, 2),
    PagesUnpinned(1),
    RamKeepBegun(2, 2, 2),
    PromptKept(2, 0, 0, 2),
    RamKeepEnded(2, ROWS),
    NodeDurable(1, 2),
    CopyKept(2, ROWS + 1),
    StreamFinished(3, 0),
    StreamFinished(2, 0),
    *begun(4, 1, 2, 3),
    RowsRestored(4, 2, 1),
    SwapBegun(4),
    StreamPreempted(4, True),
    PagesAdopted(4, 0, 0, 0, 1),
    PagesPromised(4, (4,)),
    RowsRestored(4, ROWS + 2, 1),
    SwapReleased(4),
    StreamPreempted(4, False),
    PagesAdopted(4, 0, 0, 0, 1),
    PagesPromised(4, (4,)),
    CopyRestored(4, 1, ROWS + 1),
    CopiesDropped((1,)),
    SnapshotDropped(1),
    StreamFinished(4, 0),
    NodesEvicted(((1, 1),)),
]


def fresh_view() -> WorkerView:
    return WorkerView(growing_machine(pages=24, snap_slots=2, quotas=(("acme", 9),)).start)


def worker_commands() -> set[type[msgspec.Struct]]:
    return {
        kind.struct
        for kind in KINDS.values()
        if kind.role is Role.COMMAND and kind.struct.__module__ == kinds.__name__
    }


def test_the_life_holds_every_command_of_a_worker() -> None:
    """Fails for a new kind of command until the life above has it."""
    assert {type(command) for command in LIFE} == worker_commands()


@pytest.mark.parametrize("stop", range(0, len(LIFE) + 1, 3))
def test_a_fold_of_recorded_bytes_from_any_keyframe_is_the_live_view_by_digest(stop: int) -> None:
    live, replayed = fresh_view(), fresh_view()
    start = live.start
    for place, command in enumerate(LIFE):
        if place == stop:
            replayed = WorkerView.decode(start, replayed.encode())
        live.apply(command)
        wire = fact(command)
        replayed.apply(decode_body(wire.kind, wire.schema_v, encode_body(command)))
        assert _digest(replayed) == _digest(live), command
        live.owner.check()
    assert live.owner.held() == (1,), "the first column of the prompt that was kept"


def test_a_command_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    """Each command a second time in a row, where it makes sense once only."""
    view = fresh_view()
    again_is_fine = (Measured, PagesPromised, RowsAdvanced, RowsRestored, CopyKept, NodeDurable)
    for command in LIFE:
        view.apply(command)
        before = view.encode()
        if isinstance(command, (*again_is_fine, NodesEvicted, PromptKept)):
            continue
        with pytest.raises(Exception, match=r"\w"):
            view.apply(command)
        assert view.encode() == before, command


def _digest(view: WorkerView) -> bytes:
    return hashlib.sha256(view.encode()).digest()
