"""One restore as a machine: order, window, and the cut at the first bad chunk (cases 21, 22)."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetrail.catalog.errors import BadInputError, InvariantError
from pagetrail.controlplane.tiers.restoring import (
    ChunkToRead,
    DropLocal,
    Read,
    Restored,
    RestoreEffect,
    Restoring,
    Write,
)

CHUNK = 128


def machine(chunks: int, *, first: int = 0, goal: int | None = None, window: int = 2) -> Restoring:
    start = first // CHUNK
    return Restoring(
        stream=1,
        tier=2,
        first_token=first,
        tokens=goal if goal is not None else (start + chunks) * CHUNK,
        chunks=tuple(
            ChunkToRead(bytes([n]), (start + n) * CHUNK, (start + n + 1) * CHUNK, ())
            for n in range(chunks)
        ),
        window=window,
    )


def writes(effects: list[RestoreEffect]) -> list[tuple[int, int]]:
    return [(e.token_start, e.token_end) for e in effects if isinstance(e, Write)]


def test_reads_go_out_root_first_and_never_more_than_the_window() -> None:
    restore = machine(3)
    assert restore.begin() == [Read(0), Read(1)]
    assert restore.arrived(0, True) == [Write(0, 0, 128), Read(2)]


def test_a_chunk_that_came_early_waits_for_those_before_it() -> None:
    restore = machine(2)
    restore.begin()
    assert restore.arrived(1, True) == []
    assert restore.arrived(0, True) == [Write(0, 0, 128), Write(1, 128, 256), Restored(256)]


def test_case_21_the_second_of_three_is_gone_so_the_first_counts_and_the_rest_does_not() -> None:
    restore = machine(3, window=3)
    restore.begin()
    assert writes(restore.arrived(0, True)) == [(0, 128)]
    assert restore.arrived(1, False) == []
    assert restore.arrived(2, True) == [Restored(128)]  # verified, but beyond the gap


def test_a_chunk_whose_bytes_are_wrong_is_dropped_and_nothing_beyond_is_read() -> None:
    restore = machine(4, window=1)
    restore.begin()
    restore.arrived(0, True)
    assert restore.arrived(1, False, corrupt=True) == [DropLocal(1), Restored(128)]


def test_a_first_chunk_that_is_missing_restores_nothing() -> None:
    restore = machine(2, window=1)
    restore.begin()
    assert restore.arrived(0, False) == [Restored(0)]


def test_rows_that_are_resident_already_are_not_written_again() -> None:
    restore = machine(2, first=160, goal=300, window=2)
    restore.begin()
    assert restore.arrived(0, True) == [Write(0, 160, 256)]
    assert restore.arrived(1, True) == [Write(1, 256, 300), Restored(140)]


def test_case_22_what_comes_after_the_end_is_a_fault_not_another_chunks_bytes() -> None:
    restore = machine(1)
    restore.begin()
    restore.arrived(0, True)
    with pytest.raises(InvariantError, match="was not being read"):
        restore.arrived(0, True)


def test_a_chunk_that_was_never_asked_for_is_a_fault() -> None:
    restore = machine(3, window=1)
    restore.begin()
    with pytest.raises(InvariantError, match="chunk 2 was not being read"):
        restore.arrived(2, True)


def test_a_window_of_nothing_is_refused() -> None:
    with pytest.raises(BadInputError, match="window must be at least 1"):
        machine(1, window=0).begin()


@settings(deadline=None)
@given(
    chunks=st.integers(1, 8),
    window=st.integers(1, 5),
    bad=st.sets(st.integers(0, 7)),
    seed=st.integers(0, 2**16),
    resident=st.integers(0, CHUNK - 1),
)
def test_in_any_order_of_arrival_exactly_the_verified_prefix_is_written_once(
    chunks: int, window: int, bad: set[int], seed: int, resident: int
) -> None:
    restore = machine(chunks, first=resident, window=window)
    draw = random.Random(seed)
    effects = restore.begin()
    outstanding: list[int] = []
    written: list[tuple[int, int]] = []
    ends: list[int] = []
    while True:
        for effect in effects:
            match effect:
                case Read():
                    outstanding.append(effect.place)
                case Write():
                    written.append((effect.token_start, effect.token_end))
                case Restored():
                    ends.append(effect.rows)
        assert len(outstanding) <= window
        if not outstanding:
            break
        place = outstanding.pop(draw.randrange(len(outstanding)))
        effects = restore.arrived(place, place not in bad)
    good = min([place for place in bad if place < chunks], default=chunks)
    reached = good * CHUNK
    assert ends == [max(0, reached - resident) if good else 0]
    assert [start for start, _ in written] == [max(resident, n * CHUNK) for n in range(good)]
    assert [end for _, end in written] == [(n + 1) * CHUNK for n in range(good)]
