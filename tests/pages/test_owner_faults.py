"""A step that fails at any device call leaves the book whole, others alone, and can be retried."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from pagetrail.catalog.kinds.worker import (
    MarkArmed,
    MarkDisarmed,
    PagesAdopted,
    PagesPinned,
    PagesPromised,
    PagesUnpinned,
    PoolSpec,
    PromptKept,
    RouteForked,
    RowsAdvanced,
    RowsRestored,
)
from pagetrail.controlplane.pages.appends import Append
from pagetrail.controlplane.pages.owner import PageOwner
from pagetrail.controlplane.pages.state import OwnerState


class DeviceError(Exception):
    pass


class FaultyDevice:
    """Counts what is asked of a device and fails at the k-th call; 0: never.

    It holds the contents of every page, so that a write to a page which another stream reads, or
    a copy that was forgotten, shows.
    """

    def __init__(self, pages: int, page_tokens: int, fail_at: int) -> None:
        self.rows: list[list[object]] = [[None] * page_tokens for _ in range(pages)]
        self.tables: dict[int, list[int]] = {}
        self.page_tokens = page_tokens
        self.saved: dict[int, list[object]] = {}
        self.calls = 0
        self.kinds: set[str] = set()
        self.fail_at = fail_at

    def _call(self, kind: str) -> None:
        self.kinds.add(kind)
        self.calls += 1
        if self.calls == self.fail_at:
            raise DeviceError

    def take(self, pages: list[int]) -> None:
        """Memory behind pages that a stream is about to write."""
        for _ in pages:
            self._call("take")

    def save(self, slot: int, stream: int, rows: int) -> None:
        """The state after a stream's first rows, into a snapshot slot."""
        self._call("save")
        self.saved[slot] = self.read(stream, rows)

    def copy(self, source: int, target: int) -> None:
        self._call("copy")
        self.rows[target] = list(self.rows[source])

    def upload(self, stream: int, first: int, ids: list[int]) -> None:
        self._call("upload")
        self.tables[stream] = self.tables.get(stream, [])[:first] + ids

    def write(self, slots: list[int], values: list[object], kind: str = "write") -> None:
        for slot, value in zip(slots, values, strict=True):
            self._call(kind)
            self.rows[slot // self.page_tokens][slot % self.page_tokens] = value

    def read(self, stream: int, rows: int) -> list[object]:
        table = self.tables[stream]
        return [
            self.rows[table[row // self.page_tokens]][row % self.page_tokens] for row in range(rows)
        ]


def write_rows(
    owner: PageOwner, device: FaultyDevice, stream: int, values: list[object], kind: str = "write"
) -> None:
    """One step of one stream as an engine does it: take, copy, upload, write, commit."""
    append = owner.reserve(stream, len(values))
    assert isinstance(append, Append)
    try:
        device.take(owner.page_table(stream, 0)[owner.route(stream).columns :])
        for source, target in append.copies:
            device.copy(source, target)
        first = owner.dirty_from(stream)
        device.upload(stream, first, owner.page_table(stream, 0, first))
        owner.uploaded(stream)
        device.write(append.slots(0), values, kind)
    except DeviceError:
        owner.abort(append)
        raise
    owner.commit(append, len(values))


def tokens(stream: int, first: int, count: int) -> list[object]:
    return [(stream, row) for row in range(first, first + count)]


def advance(owner: PageOwner, device: FaultyDevice, stream: int, count: int) -> None:
    write_rows(owner, device, stream, tokens(stream, owner.rows(stream), count))
    owner.apply(RowsAdvanced(owner.committed()))


def restore(owner: PageOwner, device: FaultyDevice, stream: int, count: int) -> None:
    write_rows(owner, device, stream, tokens(stream, owner.rows(stream), count), "restore")
    owner.apply(RowsRestored(stream, count, 2))


def capture(owner: PageOwner, device: FaultyDevice, stream: int, count: int) -> None:
    """Read rows out under a lease, which is returned whatever happens."""
    columns = -(-count // device.page_tokens)
    owner.apply(PagesPinned(1, stream, 0, columns))
    try:
        for page in owner.page_table(stream, 0)[:columns]:
            device.copy(page, page)
    finally:
        owner.apply(PagesUnpinned(1))


def scenario(owner: PageOwner, device: FaultyDevice) -> list[Callable[[], None]]:
    """Prompts, a fork that copies, a restore, a capture: every kind of device call."""
    return [
        lambda: advance(owner, device, 1, 6),
        lambda: advance(owner, device, 2, 9),
        lambda: owner.apply(RouteForked(3, 1, 6)),
        lambda: owner.apply(PagesPromised(3, (3,))),
        lambda: advance(owner, device, 3, 5),
        lambda: capture(owner, device, 2, 9),
        lambda: owner.apply(PromptKept(2, 0, 0, 3)),
        lambda: advance(owner, device, 2, 2),
        lambda: restore(owner, device, 1, 4),
        lambda: advance(owner, device, 1, 3),
    ]


def started(fail_at: int) -> tuple[PageOwner, FaultyDevice]:
    owner = PageOwner((PoolSpec("kv", 0, 24, 1),), 4, 0, 16, 16)
    for stream in (1, 2):
        owner.apply(PagesAdopted(stream, 0, 0))
        owner.apply(PagesPromised(stream, (6,)))
    return owner, FaultyDevice(24, 4, fail_at)


def undisturbed() -> tuple[bytes, dict[int, list[object]], int]:
    owner, device = started(0)
    for step in scenario(owner, device):
        step()
    return owner.encode(), contents(owner, device), device.calls


def contents(owner: PageOwner, device: FaultyDevice) -> dict[int, list[object]]:
    return {stream: device.read(stream, owner.rows(stream)) for stream in sorted(device.tables)}


def without_command_count(state: bytes) -> OwnerState:
    """A state without command numbers: a retried capture takes a lease twice."""
    read = msgspec.msgpack.decode(state, type=OwnerState)
    nodes = tuple(
        msgspec.structs.replace(node, last_access=0, previous_access=0) for node in read.nodes
    )
    return msgspec.structs.replace(read, commands=0, nodes=nodes)


@pytest.mark.parametrize("fail_at", range(1, undisturbed()[2] + 1))
def test_a_device_call_that_fails_changes_nothing_and_a_retry_succeeds(fail_at: int) -> None:
    state, expected, _ = undisturbed()
    owner, device = started(fail_at)
    failed = 0
    for step in scenario(owner, device):
        before, held = contents(owner, device), owner.held()
        free = owner.free()
        try:
            step()
        except DeviceError:
            failed += 1
            owner.check()
            assert (owner.held(), owner.free()) == (held, free)
            after = contents(owner, device)
            assert {stream: after[stream] for stream in before} == before
            step()
        owner.check()
    assert failed == 1
    assert contents(owner, device) == expected
    assert without_command_count(owner.encode()) == without_command_count(state)


def test_the_scenario_makes_every_kind_of_device_call() -> None:
    owner, device = started(0)
    for step in scenario(owner, device):
        step()
    assert device.kinds == {"take", "copy", "upload", "write", "restore"}


# ---------------------------------------------------------------- snapshots


def snapshot(owner: PageOwner, device: FaultyDevice, stream: int) -> None:
    """Arm the next page edge, compute up to it, save the state there; else disarm it again."""
    column = owner.rows(stream) // device.page_tokens + 1
    if not owner.free_slots():
        raise AssertionError("a slot has leaked")
    owner.apply(MarkArmed(stream, column))
    try:
        advance(owner, device, stream, column * device.page_tokens - owner.rows(stream))
        device.save(owner.route(stream).marks[column], stream, owner.rows(stream))
    except DeviceError:
        owner.apply(MarkDisarmed(stream, column))
        raise


def snapshots(owner: PageOwner, device: FaultyDevice) -> list[Callable[[], None]]:
    return [
        lambda: advance(owner, device, 1, 3),
        lambda: snapshot(owner, device, 2),
        lambda: snapshot(owner, device, 2),
        lambda: advance(owner, device, 1, 2),
    ]


def with_slots(fail_at: int) -> tuple[PageOwner, FaultyDevice]:
    owner = PageOwner((PoolSpec("kv", 0, 24, 1),), 4, 0, 16, 16, snap_slots=2)
    for stream in (1, 2):
        owner.apply(PagesAdopted(stream, 0, 0))
        owner.apply(PagesPromised(stream, (6,)))
    return owner, FaultyDevice(24, 4, fail_at)


def calls_with_slots() -> int:
    owner, device = with_slots(0)
    for step in snapshots(owner, device):
        step()
    assert "save" in device.kinds
    return device.calls


@pytest.mark.parametrize("fail_at", range(1, calls_with_slots() + 1))
def test_a_snapshot_that_fails_gives_its_slot_back_and_a_later_one_succeeds(fail_at: int) -> None:
    owner, device = with_slots(fail_at)
    failed = 0
    for step in snapshots(owner, device):
        free, before = owner.free_slots(), contents(owner, device)
        try:
            step()
        except DeviceError:
            failed += 1
            owner.check()
            assert owner.free_slots() == free
            after = contents(owner, device)
            assert all(after[stream][: len(rows)] == rows for stream, rows in before.items())
            step()
        owner.check()
    assert failed == 1
    marks = dict(owner.route(2).marks)
    assert len(marks) == 2
    assert owner.free_slots() == 0
    for column, slot in marks.items():
        assert device.saved[slot] == tokens(2, 0, column * 4)
    columns = max(marks)
    owner.apply(PromptKept(2, 0, 0, columns))
    node = owner.node(owner.next_node - 1)
    assert owner.resume_point(node.number, columns) == (node.number, columns)
