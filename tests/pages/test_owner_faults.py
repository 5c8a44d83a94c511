"""A step that fails at any device call leaves the book whole, others alone, and can be retried."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from pagetrail.catalog.kinds.worker import (
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
        self.calls = 0
        self.kinds: set[str] = set()
        self.fail_at = fail_at

    def _call(self, kind: str) -> None:
        self.kinds.add(kind)
        self.calls += 1
        if self.calls == self.fail_at:
            raise DeviceError

    def copy(self, source: int, target: int) -> None:
        self._call("copy")
        self.rows[target] = list(self.rows[source])

    def upload(self, stream: int, first: int, ids: list[int]) -> None:
        self._call("upload")
        self.tables[stream] = self.tables.get(stream, [])[:first] + ids

    def write(self, slots: list[int], values: list[object]) -> None:
        for slot, value in zip(slots, values, strict=True):
            self._call("write")
            self.rows[slot // self.page_tokens][slot % self.page_tokens] = value

    def read(self, stream: int, rows: int) -> list[object]:
        table = self.tables[stream]
        return [
            self.rows[table[row // self.page_tokens]][row % self.page_tokens] for row in range(rows)
        ]


def write_rows(owner: PageOwner, device: FaultyDevice, stream: int, values: list[object]) -> None:
    """One step of one stream as an engine does it: take, copy, upload, write, commit."""
    append = owner.reserve(stream, len(values))
    assert isinstance(append, Append)
    try:
        for source, target in append.copies:
            device.copy(source, target)
        first = owner.dirty_from(stream)
        device.upload(stream, first, owner.page_table(stream, 0, first))
        owner.uploaded(stream)
        device.write(append.slots(0), values)
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
    write_rows(owner, device, stream, tokens(stream, owner.rows(stream), count))
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
    assert device.kinds == {"copy", "upload", "write"}
