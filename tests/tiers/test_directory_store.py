"""Stores on directories and their threads, with faults (cases 17, 18, 19, 23, 24)."""

from __future__ import annotations

import queue
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.identity import content_id
from pagetrail.catalog.index import StoredPart
from pagetrail.catalog.kinds.content import Tier
from pagetrail.controlplane.cluster.messages import Prompt
from pagetrail.tiers.ram import RamTier
from pagetrail.tiers.store import (
    CorruptObjectError,
    DirectoryStore,
    MissingObjectError,
    ObjectStore,
    StoreError,
)
from pagetrail.tiers.threads import ChunkArrived, ChunkStored, ReadJob, StoreJob, TierThreads

BODY = bytes(range(256)) * 16
PROMPT = Prompt(128, b"d" * 32, b"r" * 32, (), (b"c" * 32,), 0)


def read(store: DirectoryStore, key: str, body: bytes = BODY) -> bytes:
    with store.open(key, len(body), content_id(body)) as view:
        return bytes(view)


def test_what_was_put_is_read_back_and_survives_another_opening(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, "worker-0")
    store.put("ab/key.1", BODY)
    assert read(store, "ab/key.1") == BODY
    again = DirectoryStore(tmp_path, "worker-1")
    assert read(again, "ab/key.1") == BODY
    assert store.used_bytes() == again.used_bytes() == len(BODY)


def test_the_last_of_the_disk_is_left_to_others(tmp_path: Path) -> None:
    """The reserve is larger than any disk here: nothing may be stored, and nothing is."""
    store = DirectoryStore(tmp_path, "worker-0", reserve_bytes=1 << 62)
    with pytest.raises(StoreError, match=r"kept for the log \(worker.disk_reserve_bytes\)"):
        store.put("ab/key.1", BODY)
    assert not store.exists("ab/key.1")
    assert store.used_bytes() == 0


def test_case_19_a_deleted_object_is_one_miss_then_absent_and_may_be_put_again(
    tmp_path: Path,
) -> None:
    store = DirectoryStore(tmp_path, "worker-0")
    store.put("ab/key", BODY)
    (tmp_path / "ab" / "key").unlink()
    with pytest.raises(MissingObjectError, match="no object ab/key"):
        read(store, "ab/key")
    assert not store.exists("ab/key")
    assert not store.delete("ab/key")
    store.put("ab/key", BODY)
    assert read(store, "ab/key") == BODY


@pytest.mark.parametrize("damage", [b"", BODY[:-1], BODY[:-1] + b"x", BODY + b"x"])
def test_wrong_bytes_are_never_handed_out(tmp_path: Path, damage: bytes) -> None:
    store = DirectoryStore(tmp_path, "worker-0")
    store.put("ab/key", BODY)
    (tmp_path / "ab" / "key").write_bytes(damage)
    with pytest.raises(CorruptObjectError):
        read(store, "ab/key")


def test_case_23_a_key_is_written_once_and_late_other_bytes_do_not_replace_it(
    tmp_path: Path,
) -> None:
    store = DirectoryStore(tmp_path, "worker-0")
    store.put("ab/key", BODY)
    store.put("ab/key", BODY)  # the same again is no fault
    with pytest.raises(StoreError, match="holds other bytes already"):
        store.put("ab/key", BODY[::-1])
    assert read(store, "ab/key") == BODY


def test_case_17_a_put_that_was_cut_short_is_invisible_and_swept_at_the_next_start(
    tmp_path: Path,
) -> None:
    DirectoryStore(tmp_path, "worker-0")
    left = tmp_path / ".incoming" / "worker-0" / "1"
    left.write_bytes(BODY[:100])
    store = DirectoryStore(tmp_path, "worker-0")
    assert not left.exists()
    assert store.used_bytes() == 0


@pytest.mark.parametrize("key", ["", "/a", "a//b", "../a", "a/../b", "A", "a b", "a/", "k" * 201])
def test_keys_that_are_no_keys_are_refused(tmp_path: Path, key: str) -> None:
    store = DirectoryStore(tmp_path, "worker-0")
    with pytest.raises(BadInputError, match="no object key"):
        store.put(key, BODY)


def test_a_place_that_cannot_be_a_directory_is_refused_with_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(BadInputError, match="choose a writable directory"):
        DirectoryStore(tmp_path / "file" / "below", "worker-0")


# ---- host memory


def test_host_memory_keeps_to_its_bound_and_gives_up_the_least_recently_used() -> None:
    ram = RamTier(3 * len(BODY))
    for name in (b"a", b"b", b"c"):
        assert ram.put(name, BODY)
    assert ram.get(b"a") == BODY
    assert ram.put(b"d", BODY)
    assert ram.used_bytes == 3 * len(BODY)
    assert ram.get(b"b") is None
    assert ram.leading((b"c", b"d", b"b", b"a"), 0) == 2


def test_host_memory_counts_a_replaced_chunk_once_and_refuses_one_above_its_bound() -> None:
    ram = RamTier(len(BODY))
    ram.put(b"a", BODY)
    ram.put(b"a", BODY[:10])
    assert ram.used_bytes == 10
    assert not ram.put(b"b", BODY + b"x")
    assert ram.get(b"a") == BODY[:10]
    assert not RamTier(0).put(b"a", b"x")


# ---- threads


class Faulty:
    """An object store that fails by number of call, over a real one."""

    def __init__(self, store: ObjectStore, failing: set[int]) -> None:
        self._store = store
        self._failing = failing
        self._calls = 0

    def _count(self) -> None:
        self._calls += 1
        if self._calls in self._failing:
            raise StoreError("503 slow down")

    def put(self, key: str, payload: bytes | memoryview) -> None:
        self._count()
        self._store.put(key, payload)

    def open(self, key: str, size_bytes: int, content: bytes) -> AbstractContextManager[memoryview]:
        self._count()
        return self._store.open(key, size_bytes, content)

    def delete(self, key: str) -> bool:
        return self._store.delete(key)

    def exists(self, key: str) -> bool:
        return self._store.exists(key)

    def used_bytes(self) -> int:
        return self._store.used_bytes()


class Rig:
    """Tier threads over an SSD directory and a faulty object store."""

    def __init__(self, root: Path, failing: set[int], staging_bytes: int = 1 << 20) -> None:
        self.root = root
        self.ssd = DirectoryStore(root / "ssd", "worker-0")
        self.object = DirectoryStore(root / "object", "worker-0")
        self.done: queue.Queue[ChunkArrived | ChunkStored] = queue.Queue()
        self.threads = TierThreads(
            {Tier.SSD: self.ssd, Tier.OBJECT: Faulty(self.object, failing)},
            self.done.put,
            staging_bytes_max=staging_bytes,
        )

    def store(self, key: str) -> ChunkStored:
        assert self.threads.store(StoreJob("", PROMPT, 0, BODY, key))
        stored = self.done.get(timeout=30)
        assert isinstance(stored, ChunkStored)
        return stored

    def read(self, tier: int, key: str) -> ChunkArrived:
        part = StoredPart(b"p" * 32, 0, 0, content_id(BODY), len(BODY), key)
        assert self.threads.read(ReadJob(1, 0, tier, (part,)))
        arrived = self.done.get(timeout=30)
        assert isinstance(arrived, ChunkArrived)
        return arrived


RigOf = Callable[..., Rig]


@pytest.fixture
def rig_of(tmp_path: Path, request: pytest.FixtureRequest) -> RigOf:
    def make(failing: set[int], **options: int) -> Rig:
        rig = Rig(tmp_path, failing, **options)
        request.addfinalizer(rig.threads.close)
        return rig

    return make


def test_a_chunk_is_stored_in_every_tier_local_first(rig_of: RigOf) -> None:
    rig = rig_of(set())
    stored = rig.store("ab/one")
    assert stored.copies == ((Tier.SSD, "ab/one"), (Tier.OBJECT, "ab/one"))
    assert stored.content_id == content_id(BODY)
    assert rig.read(Tier.OBJECT, "ab/one").payload == (BODY,)


def test_case_18_a_put_that_fails_has_no_receipt_and_a_get_that_fails_is_a_miss(
    rig_of: RigOf,
) -> None:
    rig = rig_of({1, 2})
    assert rig.store("ab/one").copies == ((Tier.SSD, "ab/one"),)
    assert not rig.object.exists("ab/one")
    rig.object.put("ab/one", BODY)
    arrived = rig.read(Tier.OBJECT, "ab/one")
    assert (arrived.payload, arrived.corrupt) == (None, False)
    assert rig.read(Tier.OBJECT, "ab/one").payload == (BODY,)


def test_case_24_wrong_bytes_on_a_disk_are_told_apart_from_a_miss(rig_of: RigOf) -> None:
    rig = rig_of(set())
    rig.store("ab/one")
    (rig.root / "ssd" / "ab" / "one").write_bytes(BODY[::-1])
    arrived = rig.read(Tier.SSD, "ab/one")
    assert (arrived.payload, arrived.corrupt) == (None, True)
    rig.threads.drop(Tier.SSD, "ab/one")
    assert not rig.ssd.exists("ab/one")
    assert rig.read(Tier.SSD, "ab/one").corrupt is False


def test_a_store_that_keeps_failing_is_left_alone(rig_of: RigOf) -> None:
    rig = rig_of({1, 2, 3, 4, 5})
    for number in range(5):
        rig.store(f"ab/{number}")
    assert rig.threads.stats()[Tier.OBJECT].failures == 3  # the fourth and fifth were not tried
    assert rig.threads.stats()[Tier.SSD].writes == 5


def test_a_full_staging_refuses_a_chunk_and_does_not_wait(rig_of: RigOf) -> None:
    rig = rig_of(set(), staging_bytes=len(BODY) - 1)
    assert not rig.threads.store(StoreJob("", PROMPT, 0, BODY, "ab/one"))
    assert rig.threads.staged_chunks == 0


def test_a_part_that_nobody_holds_is_a_miss(rig_of: RigOf) -> None:
    rig = rig_of(set())
    assert rig.threads.read(ReadJob(1, 0, Tier.SSD, ()))
    assert rig.done.get(timeout=30).payload is None
