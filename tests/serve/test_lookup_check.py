"""The sampled check of look-ups: silent while index and rule agree, loud where they do not."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from serving import TINY_SETTINGS, completion, prompt_tokens, wait_until_settled

from pagetrail.catalog.facts import fact
from pagetrail.catalog.identity import ROOT, node_id, part_id
from pagetrail.catalog.index import Entry, LiveIndex
from pagetrail.catalog.kinds.content import Copy, CopyState, Node, Part, Tier
from pagetrail.controlplane.log.client import Draft, FactClient
from pagetrail.controlplane.log.stream import LogStream
from pagetrail.controlplane.log.writer import EmbeddedWriter
from pagetrail.controlplane.lookup import Catalog
from pagetrail.lookup_check import SAMPLES_MAX, LookupCheck, Tally
from pagetrail.up import ClusterOptions, LocalCluster

FINGERPRINT = sha256(b"model").digest()
CHAIN = tuple(sha256(b"chunk %d" % k).digest() for k in range(4))
WAIT_S = 60.0


def published(chunk: int) -> Draft:
    """A chunk with two parts, held whole by w0 and in its first part by the object store."""
    node = node_id(FINGERPRINT, CHAIN[chunk])
    parent = CHAIN[chunk - 1] if chunk else ROOT
    parts = [Part(part_id(node, g, 0), node, g, 0, CHAIN[chunk], 100) for g in range(2)]
    copies = [Copy(part.part_id, "w0", Tier.SSD, CopyState.READY, "k") for part in parts]
    copies.append(Copy(parts[0].part_id, "", Tier.OBJECT, CopyState.READY, "k"))
    said = [
        Node(node, FINGERPRINT, CHAIN[chunk], parent, chunk * 256, chunk * 256 + 256, ""),
        *parts,
        *copies,
    ]
    return Draft(facts=tuple(fact(body) for body in said))


class Forgetful:
    """The index, except that the store is said to hold every chunk whole."""

    def __init__(self, index: LiveIndex) -> None:
        self._index = index

    @property
    def position(self) -> int:
        return self._index.position

    def entry(self, fingerprint: bytes, prefix: bytes) -> Entry | None:
        entry = self._index.entry(fingerprint, prefix)
        if entry is None:
            return None
        return Entry(
            entry.parent_prefix, entry.token_start, entry.token_end, entry.size_bytes, 0b11
        )

    def holder(self, bit: int) -> tuple[str, int]:
        return self._index.holder(bit)


@contextmanager
def checked(directory: Path, every: int, *, honest: bool) -> Iterator[LookupCheck]:
    """A check beside an index of three of four chunks, over a served log."""
    index = LiveIndex()
    with EmbeddedWriter(directory) as writer:
        client = FactClient.open(directory, "w0", writer.endpoint)
        client.append_many([published(chunk) for chunk in range(3)])
        client.flush(WAIT_S)
        with LogStream(writer.endpoint, writer.publish_endpoint) as stream:
            while index.position < client.head:
                for frame in stream.poll(1.0):
                    index.apply(frame.facts())
        catalog: Catalog = index if honest else Forgetful(index)
        check = LookupCheck(
            catalog,
            FINGERPRINT,
            every,
            directory / "replicas" / "w0.duckdb",
            lambda: LogStream(writer.endpoint, writer.publish_endpoint),
        )
        yield check
        check.close()
        client.close()


def wait_for(check: LookupCheck, count: int) -> Tally:
    deadline = time.monotonic() + WAIT_S
    while check.tally.checked < count:
        assert time.monotonic() < deadline, check.tally
        time.sleep(0.02)
    return check.tally


def test_one_lookup_in_so_many_is_checked_and_agreement_is_silent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with checked(tmp_path, 3, honest=True) as check:
        check.start()
        for _ in range(4):
            for prompt in (CHAIN, CHAIN[:2], CHAIN[:1]):
                check.look(prompt)
        assert wait_for(check, 4) == Tally(checked=4)
    assert not caplog.records


def test_a_difference_is_counted_and_logged_with_both_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with checked(tmp_path, 1, honest=False) as check:
        check.start()
        check.look(CHAIN)
        assert wait_for(check, 1) == Tally(checked=1, differing=1)
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    text = record.getMessage()
    assert "the index answered 3 known, held [object store/4: 3, w0/2: 3]" in text
    assert "the rule 3 known, held [w0/2: 3]" in text


def test_samples_beyond_the_bound_are_dropped_and_counted(tmp_path: Path) -> None:
    with checked(tmp_path, 1, honest=True) as check:
        for _ in range(SAMPLES_MAX + 5):
            check.look(CHAIN)
        assert check.tally == Tally(dropped=5)
        check.start()
        assert wait_for(check, SAMPLES_MAX) == Tally(checked=SAMPLES_MAX, dropped=5)


def test_a_serving_worker_checks_its_lookups(tiny: Path, tmp_path: Path) -> None:
    settings = (f"model.name={tiny}", *TINY_SETTINGS, "worker.check_lookups=1")
    with (
        LocalCluster(ClusterOptions(tmp_path, 1, settings)) as running,
        httpx.Client(base_url=running.url, timeout=WAIT_S) as client,
    ):
        model = client.get("/v1/models").json()["data"][0]["id"]
        for _ in range(3):
            completion(client, model, prompt_tokens(1, 300), max_tokens=2)
        wait_until_settled(client)
    assert list((tmp_path / "replicas").glob("*.duckdb"))
    logs = list((tmp_path / "run").glob("*.log"))
    assert logs
    said = "".join(path.read_text() for path in logs)
    assert "the index answered" not in said
    assert "checked no more" not in said
