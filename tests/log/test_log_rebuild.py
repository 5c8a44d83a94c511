"""Replicas filled from sealed segments hold what replicas filled fact by fact hold."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from log_helpers import UnsyncedFiles

from pagetrail import log_replica
from pagetrail.catalog.envelope import Cause, CompareAndSet, Op, Transaction, WireFact
from pagetrail.catalog.errors import (
    BadInputError,
    CorruptionError,
    InvariantError,
    UnknownKindError,
)
from pagetrail.catalog.facts import KindId, decision_fact, fact
from pagetrail.catalog.identity import ROOT, node_id, part_id
from pagetrail.catalog.kinds.content import Copy, CopyState, Node, Part, Reuse, Tenant
from pagetrail.catalog.kinds.decision import Decision, Outcome
from pagetrail.catalog.kinds.worker import StreamFinished
from pagetrail.catalog.replica import Replica, open_replica
from pagetrail.catalog.replica_schema import STORED_TABLES
from pagetrail.controlplane.log import columns as columns_of_log
from pagetrail.controlplane.log import reader
from pagetrail.controlplane.log.clock import LogicalClock
from pagetrail.controlplane.log.committer import open_committer
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.manifests import read_manifest
from pagetrail.controlplane.log.reader import read_log
from pagetrail.controlplane.log.sealed_columns import sealed_columns
from pagetrail.controlplane.log.sealing import seal_log
from pagetrail.controlplane.log.transactions import encode_transactions
from pagetrail.log_replica import LogChain, caught_up_replica

SMALL_SEGMENTS = LogLimits(segment_bytes=2_000)


LONG_OUTCOME = msgspec.Raw(msgspec.msgpack.encode([KindId.EVICT, 5, [1, 2], "later"]))


def word(number: int) -> bytes:
    return number.to_bytes(32, "big")


def some_facts(rnd: random.Random) -> list[WireFact]:
    """Facts about few entities, so that they end, return and refer to each other."""
    node = node_id(word(1), word(rnd.randrange(6)))
    part = part_id(node, rnd.randrange(2), 0)
    op = Op.RETRACT if rnd.random() < 0.2 else Op.ASSERT
    decision = Decision(
        subject=rnd.randrange(2**40),
        evaluator=1,
        as_of=-1,
        chain=word(rnd.randrange(99))[-16:],
        recorded=msgspec.Raw(msgspec.msgpack.encode([rnd.randrange(9), b"x", None])),
        choice=msgspec.Raw(b"\x05"),
        reason=2,
        tie_break=0,
        digest=word(3),
        alternatives=msgspec.Raw(b"\xc0"),
    )
    return rnd.choices(
        [
            fact(Node(node, word(1), word(2), ROOT, 0, 256, "t"), op=op),
            fact(Part(part, node, 0, 0, word(9), rnd.randrange(10**9)), op=op),
            fact(Copy(part, f"w{rnd.randrange(2)}", 2, rnd.choice(list(CopyState)), "key"), op=op),
            fact(Tenant("müller", ROOT, 1, 2), op=op),
            decision_fact(rnd.choice([KindId.EVICT, KindId.ROUTE]), decision),
            fact(Outcome(KindId.EVICT, 5, (1, -(2**62), rnd.randrange(9)))),
            fact(StreamFinished(rnd.randrange(9), 1)),
            fact(Reuse(node, f"w{rnd.randrange(2)}", rnd.randrange(9), 256), op=op),
            # An array longer than the struct knows: read as far as known, and sealed whole.
            WireFact(
                1, KindId.TENANT, 1, msgspec.Raw(b"\x95\xa1x\xc4\x20" + ROOT + b"\x01\x02\x03")
            ),
            # The same of a kind whose fields DuckDB takes itself, from segments without such a one.
            *([WireFact(1, KindId.OUTCOME, 1, LONG_OUTCOME)] if rnd.random() < 0.1 else []),
        ],
        k=rnd.randint(1, 4),
    )


def write_log(directory: Path, seed: int, frames: int, extra: WireFact | None = None) -> None:
    rnd = random.Random(seed)
    committer, _ = open_committer(
        directory, clock=LogicalClock(), limits=SMALL_SEGMENTS, files=UnsyncedFiles()
    )
    for number in range(frames):
        causes = rnd.choice(
            [(), (Cause("a", 1, max(number - 1, 0)),), (Cause("b", 7, 1), Cause("a", 1, 0))]
        )
        changes = (CompareAndSet(b"r", None, b"v"),) if rnd.random() < 0.2 else ()
        facts = some_facts(rnd) + ([extra] if extra is not None and number == frames // 2 else [])
        message = [Transaction(number, causes, changes, tuple(facts))]
        committer.admit("a", 1, encode_transactions(message))
        committer.commit()
    committer.close()


def contents(replica: Replica) -> dict[str, list[Any]]:
    """All rows of all tables, the ledger and the position included."""
    names = [table.name for table in STORED_TABLES]
    return {
        name: sorted(replica.connection.execute(f"SELECT * FROM {name}").fetchall(), key=repr)
        for name in [*names, "ledger", "position"]
    }


def fact_by_fact(directory: Path) -> Replica:
    replica = open_replica(None, LogChain(directory))
    for frame in read_log(directory):
        replica.apply(frame.facts(), frame.chain)
    return replica


@pytest.mark.parametrize("seed", range(3))
def test_a_replica_from_sealed_segments_equals_one_filled_fact_by_fact(
    tmp_path: Path, seed: int
) -> None:
    write_log(tmp_path, seed, 30)
    with fact_by_fact(tmp_path) as slow:
        expected = contents(slow)
    assert seal_log(tmp_path, files=UnsyncedFiles()).segments > 1
    with caught_up_replica(tmp_path, None) as quick:
        assert contents(quick) == expected


def sealed_contents(directory: Path) -> dict[str, list[Any]]:
    assert seal_log(directory, files=UnsyncedFiles()).segments > 1
    with caught_up_replica(directory, None) as replica:
        return contents(replica)


@pytest.mark.parametrize(("applied", "decoded"), [(1, 1), (40, 7), (10**6, 3)])
def test_how_many_segments_and_frames_one_commit_takes_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, applied: int, decoded: int
) -> None:
    monkeypatch.setattr(log_replica, "APPLY_FACTS", applied)
    monkeypatch.setattr(log_replica, "DECODED_FACTS", decoded)
    write_log(tmp_path, 3, 40)
    with fact_by_fact(tmp_path) as slow:
        expected = contents(slow)
    with caught_up_replica(tmp_path, None) as quick:  # no segment is sealed
        assert contents(quick) == expected
    assert sealed_contents(tmp_path) == expected  # all but the last segment are


def test_segments_that_are_not_sealed_between_some_that_are_lie_in_their_commit(
    tmp_path: Path,
) -> None:
    write_log(tmp_path, 8, 60)
    with fact_by_fact(tmp_path) as slow:
        expected = contents(slow)
    aside = {path.name: path.read_bytes() for path in (tmp_path / "log").glob("segment-*")}
    seal_log(tmp_path, files=UnsyncedFiles())
    sealed = sorted((tmp_path / "log").glob("sealed-*"))
    for path in sealed[1::2]:
        shutil.rmtree(path)
        (name,) = (n for n in aside if n.startswith(path.name.replace("sealed", "segment")))
        (tmp_path / "log" / name).write_bytes(aside[name])
    assert len(sealed) > 4
    with caught_up_replica(tmp_path, None) as quick:
        assert contents(quick) == expected


def test_segments_that_were_sealed_without_statistics_are_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(columns_of_log, "_STATISTICS", ())
    write_log(tmp_path, 4, 30)
    with fact_by_fact(tmp_path) as slow:
        expected = contents(slow)
    assert sealed_contents(tmp_path) == expected


def test_a_directory_whose_name_looks_like_a_pattern_is_no_pattern(tmp_path: Path) -> None:
    directory = tmp_path / "run[1]*kind=7"
    directory.mkdir()
    (tmp_path / "run1").mkdir()  # what the pattern would find
    write_log(directory, 4, 30)
    with fact_by_fact(directory) as slow:
        expected = contents(slow)
    assert sealed_contents(directory) == expected


def test_a_directory_named_like_a_partition_adds_no_column(tmp_path: Path) -> None:
    directory = tmp_path / "kind=7"
    directory.mkdir()
    write_log(directory, 4, 30)
    with fact_by_fact(directory) as slow:
        expected = contents(slow)
    assert sealed_contents(directory) == expected


def test_a_file_that_goes_before_its_rows_are_taken_leaves_the_replica_as_it_was(
    tmp_path: Path,
) -> None:
    write_log(tmp_path, 9, 40)
    seal_log(tmp_path, files=UnsyncedFiles())
    segment = next(p for p in sorted((tmp_path / "log").glob("sealed-*")) if p.is_dir())
    manifest = read_manifest(segment)
    columns = sealed_columns(segment, manifest)
    path = next(segment.glob("facts-*"))
    aside = path.rename(tmp_path / "aside")
    with open_replica(None, LogChain(tmp_path)) as replica:
        with pytest.raises(CorruptionError, match=path.name):
            replica.apply_columns(columns, manifest.end.chain)
        assert (replica.position, contents(replica)["facts"]) == (0, [])
        aside.rename(path)
        replica.apply_columns(columns, manifest.end.chain)
        assert replica.position == manifest.next_seq


def test_a_copy_of_sealed_segments_alone_is_read_as_columns_and_no_frame_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_log(tmp_path, 6, 30)
    seal_log(tmp_path, files=UnsyncedFiles())
    (active,) = (tmp_path / "log").glob("segment-*")
    active.unlink()
    with fact_by_fact(tmp_path) as slow:
        expected = contents(slow)
    monkeypatch.setattr(reader, "stretch_frames", None)
    with caught_up_replica(tmp_path, None) as replica:
        assert contents(replica) == expected


def test_a_kill_at_any_point_of_a_rebuild_leaves_a_replica_that_is_whole_or_filled_again(
    tmp_path: Path,
) -> None:
    log = tmp_path / "run"
    write_log(log, 7, 40)
    with fact_by_fact(log) as slow:
        expected = contents(slow)
    seal_log(log, files=UnsyncedFiles())

    def rebuild(call: int, database: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, Path(__file__).with_name("replica_child_killed.py")]
        return subprocess.run(
            [*command, str(call), log, database], stdout=subprocess.PIPE, text=True, check=False
        )

    calls = int(rebuild(0, tmp_path / "whole").stdout)
    positions = set()
    # The last calls are the commit, the checkpoint's end and the close; before lie many inserts.
    for call in [3, 6, *range(8, calls - 4, calls // 3), *range(calls - 4, calls + 1)]:
        database = tmp_path / f"killed-{call}"
        assert rebuild(call, database).returncode == -signal.SIGKILL
        with open_replica(database, LogChain(log)) as replica:
            positions.add(replica.position)
        with caught_up_replica(log, database) as replica:
            assert contents(replica) == expected, call
    assert positions == {0, len(expected["facts"])}


def test_an_entity_that_is_there_twice_stops_the_apply(tmp_path: Path) -> None:
    write_log(tmp_path, 2, 30)
    frames = list(read_log(tmp_path))
    with open_replica(None, LogChain(tmp_path)) as replica:
        for frame in frames[:15]:
            replica.apply(frame.facts(), frame.chain)
        replica.connection.execute(
            "INSERT INTO entities_node SELECT node_id, e + 1 FROM entities_node"
        )
        rest = [fact for frame in frames[15:] for fact in frame.facts()]
        with pytest.raises(InvariantError, match="entities_node holds an entity twice"):
            replica.apply(rest, frames[-1].chain)


def test_a_replica_that_stands_inside_a_sealed_segment_goes_on_from_there(tmp_path: Path) -> None:
    write_log(tmp_path, 5, 30)
    database = tmp_path / "replica.duckdb"
    frames = list(read_log(tmp_path))
    with open_replica(database, LogChain(tmp_path)) as replica:
        for frame in frames[:7]:
            replica.apply(frame.facts(), frame.chain)
    with fact_by_fact(tmp_path) as slow:
        expected = contents(slow)
    seal_log(tmp_path, files=UnsyncedFiles())
    chain = LogChain(tmp_path)
    assert [chain.chain_at(frame.next_seq) for frame in frames] == [f.chain for f in frames]
    with caught_up_replica(tmp_path, database) as replica:
        assert replica.rebuilt is None
        assert contents(replica) == expected


@pytest.mark.parametrize(
    ("wrong", "error", "said"),
    [
        (WireFact(1, KindId.TENANT, 9, msgspec.Raw(b"\xc0")), UnknownKindError, "version 9"),
        (WireFact(1, 4_000, 1, msgspec.Raw(b"\xc0")), UnknownKindError, "kind 4000"),
        (WireFact(1, KindId.TENANT, 1, msgspec.Raw(b"\x91\x01")), CorruptionError, "tenant"),
        # Every field fits its column, and one is no digest.
        (
            WireFact(1, KindId.TENANT, 1, msgspec.Raw(b"\x94\xa1x\xc4\x01x\x01\x02")),
            CorruptionError,
            "tenant",
        ),
    ],
)
def test_a_fact_that_cannot_be_read_is_refused_from_the_sealed_form_as_from_frames(
    tmp_path: Path, wrong: WireFact, error: type[Exception], said: str
) -> None:
    write_log(tmp_path, 7, 12, wrong)
    with pytest.raises(error, match=said):
        caught_up_replica(tmp_path, None)
    committer, _ = open_committer(tmp_path, clock=LogicalClock(), files=UnsyncedFiles())
    committer.close()
    seal_log(tmp_path, files=UnsyncedFiles())
    with pytest.raises(error, match=said):
        caught_up_replica(tmp_path, None)


def test_columns_with_a_gap_or_from_elsewhere_change_nothing(tmp_path: Path) -> None:
    write_log(tmp_path, 9, 40)
    seal_log(tmp_path, files=UnsyncedFiles())
    first, second = (p for p in sorted((tmp_path / "log").glob("sealed-*"))[:2] if p.is_dir())
    manifest = read_manifest(first)
    columns = sealed_columns(first, manifest)
    with open_replica(None, LogChain(tmp_path)) as replica:
        with pytest.raises(BadInputError, match="do not continue at 0"):
            replica.apply_columns(sealed_columns(second, read_manifest(second)), bytes(32))
        holed = replace(columns, kinds=columns.kinds[1:])
        with pytest.raises(CorruptionError, match="each there once"):
            replica.apply_columns(holed, manifest.end.chain)
        assert replica.position == 0
        replica.apply_columns(columns, manifest.end.chain)
        assert replica.position == manifest.next_seq


def test_a_changed_file_of_a_sealed_segment_stops_the_rebuild_by_name(tmp_path: Path) -> None:
    write_log(tmp_path, 11, 40)
    seal_log(tmp_path, files=UnsyncedFiles())
    path = next((tmp_path / "log").glob("sealed-*/facts-0018-node.parquet"))
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptionError, match="facts-0018-node"):
        caught_up_replica(tmp_path, None)
