"""Entities are told apart by what their columns hold, whatever their digests look like."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from pagetrail.catalog import replica_naming
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.replica_naming import Incoming, grouped
from pagetrail.catalog.replica_schema import KIND_TABLES

Columns = dict[str, list[bytes] | list[str] | list[int]]


def incoming(kind: KindId, first_seq: int, columns: Columns, chunks: int) -> Incoming:
    tables = KIND_TABLES[kind]
    assert tables.catalog is not None
    rows = pa.table(
        {"seq": range(first_seq, first_seq + len(next(iter(columns.values())))), **columns}
    )
    size = -(-rows.num_rows // chunks)
    return Incoming(
        tables,
        tables.catalog,
        pa.concat_tables([rows.slice(n * size, size) for n in range(chunks)]),
    )


def numbered(values: list[object]) -> list[int]:
    """Each value's number, by a dictionary: in the order in which they are first met."""
    numbers: dict[object, int] = {}
    return [numbers.setdefault(value, len(numbers)) for value in values]


def random_digest(rnd: random.Random) -> bytes:
    return rnd.randbytes(32)


def counted_digest(rnd: random.Random) -> bytes:
    return rnd.randrange(300).to_bytes(32, "big")


def digest_of_two_halves(rnd: random.Random) -> bytes:
    """Its words cancel each other out, so that all fall on one place."""
    return rnd.randbytes(16) * 2


def short_name(rnd: random.Random) -> bytes:
    return rnd.randbytes(rnd.randrange(4))


@pytest.mark.parametrize("chunks", [1, 3])
@pytest.mark.parametrize("make", [random_digest, counted_digest, digest_of_two_halves, short_name])
def test_mentions_are_grouped_as_a_dictionary_groups_them(
    make: Callable[[random.Random], bytes], chunks: int
) -> None:
    rnd = random.Random(make.__name__)
    names = [make(rnd) for _ in range(200)]
    parts = [rnd.choice(names) for _ in range(700)]
    copies = [rnd.choice(names) for _ in range(900)]
    workers = [rnd.choice(["w1", "w2", ""]) for _ in copies]
    tiers = [rnd.randrange(3) for _ in copies]
    groups = grouped(
        [
            incoming(KindId.PART, 5_000, {"node_id": parts, "part_id": parts}, chunks),
            incoming(
                KindId.COPY, 9_000, {"part_id": copies, "worker": workers, "tier": tiers}, chunks
            ),
        ]
    )
    mentions = parts + copies
    numbers = numbered([*mentions])
    part = groups["part"]
    assert part.codes.tolist() == numbers
    assert part.place.tolist() == [numbers.index(n) for n in range(max(numbers) + 1)]
    seqs = [*range(5_000, 5_700), *range(9_000, 9_900)]
    assert part.first.tolist() == [seqs[place] for place in part.place]
    assert groups["node"].codes.tolist() == numbered([*parts])
    copy = groups["copy"]
    assert copy.codes.tolist() == numbered([*zip(copies, workers, tiers, strict=True)])


def test_digests_that_fall_on_one_place_in_every_round_are_told_apart_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replica_naming, "_FACTORS", (np.uint64(1), np.uint64(1)))
    names = [number.to_bytes(32, "little") for number in range(50)]  # the upper bits are all 0
    rows = [names[n * 7 % 50] for n in range(120)]
    group = grouped([incoming(KindId.NODE, 0, {"node_id": rows}, 1)])["node"]
    assert group.codes.tolist() == numbered([*rows])


def test_numbers_far_apart_are_grouped_as_near_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: Columns = {
        "part_id": [bytes([n % 5]) * 32 for n in range(60)],
        "worker": [f"w{n % 7}" for n in range(60)],
        "tier": [n % 3 for n in range(60)],
    }
    near = grouped([incoming(KindId.COPY, 0, rows, 1)])["copy"]
    monkeypatch.setattr(replica_naming, "_SPARSE", 0)
    far = grouped([incoming(KindId.COPY, 0, rows, 1)])["copy"]
    assert (
        near.codes.tolist() == far.codes.tolist() == numbered([*zip(*rows.values(), strict=True)])
    )
