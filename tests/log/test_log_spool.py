"""The spool: every failure point, torn ends, bounds, headroom; no writer needed."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path

import msgspec
import pytest
from log_helpers import FaultyFiles, UnsyncedFiles, fact

from pagetrail.catalog.envelope import CompareAndSet, WireFact
from pagetrail.catalog.errors import BadInputError, CorruptionError, PagetrailError
from pagetrail.controlplane.log.client import Draft, FactClient
from pagetrail.controlplane.log.errors import HeadroomError, SpoolFullError
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.spool import Spool
from pagetrail.controlplane.log.transactions import decode_transactions

NOWHERE = "tcp://127.0.0.1:9"
SMALL = LogLimits(
    spool_bytes=4_000, spool_file_bytes=500, message_bytes=300, spool_sync_after_ns=10**12
)


def fill(client: FactClient, payload_bytes: int) -> int:
    """Append until the spool is full; how many fitted."""
    for appended in range(10_000):
        try:
            client.append([fact(appended, bytes(payload_bytes))])
        except SpoolFullError:
            return appended
    raise AssertionError("the spool never filled")


def spooled(directory: Path, client: str = "c") -> dict[int, list[int]]:
    """Epoch -> client_seq of all that a fresh open finds in the spool, in order."""
    spool = Spool.open(directory / "spool" / client, SMALL, UnsyncedFiles())
    found = {}
    for epoch in spool.epochs()[:-1]:
        reader = spool.reader(epoch, spool.start_of(epoch))
        seqs: list[int] = []
        while (batch := reader.read(200, 10)) is not None:
            seqs += [t.client_seq for t in decode_transactions(batch.payload)]
        reader.close()
        found[epoch] = seqs
    spool.close()
    return found


def test_what_was_appended_is_found_by_the_next_epoch_in_order(tmp_path: Path) -> None:
    for _ in range(3):
        with FactClient.open(tmp_path, "c", NOWHERE, limits=SMALL) as client:
            for number in range(10):
                client.append([fact(number)])
    assert spooled(tmp_path) == {epoch: list(range(10)) for epoch in (1, 2, 3)}


def test_epochs_rise_even_when_nothing_was_appended(tmp_path: Path) -> None:
    epochs = []
    for _ in range(3):
        with FactClient.open(tmp_path, "c", NOWHERE) as client:
            epochs.append(client.client_epoch)
    assert epochs == [1, 2, 3]


def test_one_client_name_has_one_process(tmp_path: Path) -> None:
    with (
        FactClient.open(tmp_path, "c", NOWHERE),
        pytest.raises(BadInputError, match="locked"),
    ):
        FactClient.open(tmp_path, "c", NOWHERE)


def test_a_record_cut_at_any_byte_is_dropped_and_the_ones_before_it_stay(tmp_path: Path) -> None:
    limits = LogLimits(spool_sync_after_ns=10**12)
    with FactClient.open(tmp_path / "original", "c", NOWHERE, limits=limits) as client:
        sizes = []
        for number in range(4):
            client.append([fact(number)])
            (path,) = (tmp_path / "original" / "spool" / "c").glob("*.ptspool")
            sizes.append(path.stat().st_size)
    data = path.read_bytes()
    for size in range(len(data) + 1):
        directory = tmp_path / f"cut-{size}"
        target = directory / "spool" / "c"
        target.mkdir(parents=True)
        (target / path.name).write_bytes(data[:size])
        whole = sum(size >= end for end in sizes)
        assert spooled(directory) == ({1: list(range(whole))} if whole else {})


def test_damage_before_the_last_record_is_refused_and_left_alone(tmp_path: Path) -> None:
    with FactClient.open(tmp_path, "c", NOWHERE) as client:
        for number in range(3):
            client.append([fact(number)])
        (path,) = (tmp_path / "spool" / "c").glob("*.ptspool")
        before_last = path.stat().st_size
        client.append([fact(3)])
    data = path.read_bytes()
    for place in range(before_last):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        with pytest.raises(CorruptionError, match=path.name):
            FactClient.open(tmp_path, "c", NOWHERE)
        assert path.read_bytes() == damaged


def test_a_missing_spool_file_is_refused(tmp_path: Path) -> None:
    with FactClient.open(tmp_path, "c", NOWHERE, limits=SMALL) as client:
        for number in range(40):
            client.append([fact(number)])
    files = sorted((tmp_path / "spool" / "c").glob("*.ptspool"))
    assert len(files) > 3
    files[1].unlink()
    with pytest.raises(CorruptionError, match=files[2].name):
        FactClient.open(tmp_path, "c", NOWHERE, limits=SMALL)


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failing_file_call_at_any_point_never_loses_or_doubles_what_was_returned(
    tmp_path: Path, number: int
) -> None:
    for fail_at in range(1, 40):
        directory = tmp_path / str(fail_at)
        returned: list[int] = []
        try:
            client = FactClient.open(
                directory, "c", NOWHERE, limits=SMALL, files=FaultyFiles(fail_at, number)
            )
        except OSError:
            assert not list((directory / "spool").glob("c/*.ptspool"))
            continue
        for value in range(25):
            try:
                returned.append(client.append([fact(value)]).client_seq)
            except SpoolFullError:
                assert client.next_position.client_seq == len(returned)
        with contextlib.suppress(PagetrailError, OSError):
            client.close()
        assert spooled(directory) == ({1: returned} if returned else {})


def test_a_full_spool_refuses_and_changes_nothing(tmp_path: Path) -> None:
    with FactClient.open(tmp_path, "c", NOWHERE, limits=SMALL) as client:
        appended = fill(client, 50)
        used = client.spool_used_bytes
        assert used <= SMALL.spool_bytes
        with pytest.raises(SpoolFullError):
            client.append([fact(1, bytes(100))])
        assert (client.spool_used_bytes, client.next_position.client_seq) == (used, appended)
    assert spooled(tmp_path) == {1: list(range(appended))}


def test_headroom_is_kept_for_the_request_that_reserved_it(tmp_path: Path) -> None:
    with FactClient.open(tmp_path, "c", NOWHERE, limits=SMALL) as client:
        mine = client.reserve(2_000)
        with pytest.raises(HeadroomError, match="retry later"):
            client.reserve(2_001)
        fill(client, 100)
        for _ in range(8):
            client.append([fact(1, bytes(100))], headroom=mine)
        assert 0 < mine.left_bytes < 2_000
        mine.release()
        mine.release()
        assert mine.left_bytes == 0
        client.reserve(SMALL.spool_bytes - client.spool_used_bytes).release()


def test_append_many_is_all_or_nothing(tmp_path: Path) -> None:
    with FactClient.open(tmp_path, "c", NOWHERE, limits=SMALL) as client:
        drafts = [Draft(facts=(fact(n, bytes(40)),)) for n in range(10)]
        positions = client.append_many(drafts)
        assert [p.client_seq for p in positions] == list(range(10))
        bad = [*drafts[:3], Draft(facts=())]
        with pytest.raises(BadInputError):
            client.append_many(bad)
        with pytest.raises(SpoolFullError):
            client.append_many(drafts * 10)
        assert client.next_position.client_seq == 10
    assert spooled(tmp_path) == {1: list(range(10))}


@pytest.mark.parametrize(
    ("facts", "registers"),
    [
        ([WireFact(1, 99, 1, fact(1).body), WireFact(1, 3, 1, fact(1).body)], ()),
        ([fact(1)], (CompareAndSet(b"r", None, b"1"), CompareAndSet(b"r", None, b"2"))),
        ([fact(1)], (CompareAndSet(b"r" * 5_000, None, b"1"),)),
    ],
)
def test_what_the_writer_would_refuse_is_never_spooled(
    tmp_path: Path, facts: list[WireFact], registers: tuple[CompareAndSet, ...]
) -> None:
    with FactClient.open(tmp_path, "c", NOWHERE) as client:
        with pytest.raises(BadInputError):
            client.append(facts, compare_and_set=registers)
        assert client.spool_used_bytes == 0


@pytest.mark.parametrize("body", [b"", b"\x01\x02", b"\x92\x01", b"\xc1"])
def test_bodies_that_are_not_one_value_are_never_spooled(tmp_path: Path, body: bytes) -> None:
    with (
        FactClient.open(tmp_path, "c", NOWHERE) as client,
        pytest.raises(BadInputError, match="body"),
    ):
        client.append([WireFact(1, 99, 1, msgspec.Raw(body))])


def test_plain_endpoints_beyond_this_machine_are_refused(tmp_path: Path) -> None:
    for endpoint in ("tcp://10.0.0.1:5000", "tcp://example.org:1", "tcp://0.0.0.0:5", "tcp://*:5"):
        with pytest.raises(BadInputError, match="CURVE"):
            FactClient.open(tmp_path, "c", endpoint)
    with pytest.raises(BadInputError, match="endpoint"):
        FactClient.open(tmp_path, "c", "127.0.0.1:5000")
