"""A model's layout is stated once; whoever has another one publishes nothing."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from pagetrail.catalog.envelope import CompareAndSet
from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.facts import KindId, decode_body, fact
from pagetrail.catalog.identity import ROOT, node_id, part_id
from pagetrail.catalog.index import LiveIndex
from pagetrail.catalog.kinds.content import Copy, CopyState, LayoutPart, Model, Node, Part, Tier
from pagetrail.catalog.kinds.system import Refused
from pagetrail.catalog.layout import (
    ElementType,
    Extent,
    Group,
    Slab,
    StateLayout,
    digest,
    one_group,
)
from pagetrail.catalog.publishing import layout_register, state_model, under_layout
from pagetrail.controlplane.log.client import Draft, FactClient
from pagetrail.controlplane.log.reader import read_log
from pagetrail.controlplane.log.writer import EmbeddedWriter

WAIT_S = 60.0
FINGERPRINT = sha256(b"model").digest()
SLABS = (Slab("k", 2, 64, ElementType.FP16), Slab("v", 2, 64, ElementType.FP16))
ONE = StateLayout("llama", SLABS, one_group(SLABS), 16)
TWO = StateLayout(
    "gemma",
    SLABS,
    (
        Group("global", Extent.TOKEN, ((0, 0), (1, 0))),
        Group("local", Extent.WINDOW, ((0, 1), (1, 1)), 32),
    ),
    16,
)


def statement(index: LiveIndex, layout: StateLayout, shards: int = 1) -> Draft:
    stated = state_model(index, FINGERPRINT, "m", layout, 256, shards)
    assert stated is not None
    facts, first = stated
    return Draft(facts=tuple(map(fact, facts)), compare_and_set=(first,))


def publication(layout: StateLayout, groups: int) -> Draft:
    prefix = sha256(b"prefix").digest()
    node = node_id(FINGERPRINT, prefix)
    parts = [Part(part_id(node, g, 0), node, g, 0, prefix, 10) for g in range(groups)]
    bodies = [
        Node(node, FINGERPRINT, prefix, ROOT, 0, 256, ""),
        *parts,
        *[Copy(p.part_id, "w", Tier.SSD, CopyState.READY, "k") for p in parts],
    ]
    condition = under_layout(FINGERPRINT, digest(layout))
    return Draft(facts=tuple(map(fact, bodies)), compare_and_set=(condition,))


def followed(directory: Path) -> tuple[LiveIndex, list[Refused]]:
    index, refused = LiveIndex(), []
    for frame in read_log(directory):
        index.apply(frame.facts())
        for said in frame.facts():
            if said.kind == KindId.REFUSED:
                refused.append(decode_body(said.kind, said.schema_v, said.body))
    return index, refused


def test_the_statement_names_each_part_that_a_node_must_have() -> None:
    draft = statement(LiveIndex(), TWO, shards=2)
    bodies = [decode_body(f.kind, f.schema_v, f.body) for f in draft.facts]
    model = bodies[0]
    assert isinstance(model, Model)
    assert (model.fingerprint, model.layout_digest) == (FINGERPRINT, digest(TWO))
    places = [(b.group, b.shard) for b in bodies if isinstance(b, LayoutPart)]
    assert places == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert draft.compare_and_set == (
        CompareAndSet(layout_register(FINGERPRINT), None, digest(TWO)),
    )


def test_a_publisher_with_another_layout_is_refused_by_the_writer(tmp_path: Path) -> None:
    unaware = LiveIndex()
    with EmbeddedWriter(tmp_path) as writer:
        for name, layout, groups in (("first", TWO, 2), ("second", ONE, 1)):
            client = FactClient.open(tmp_path, name, writer.endpoint)
            client.append_many([statement(unaware, layout), publication(layout, groups)])
            client.flush(WAIT_S)
            client.close()
    index, refused = followed(tmp_path)
    assert [(r.register, r.actual) for r in refused] == [
        (layout_register(FINGERPRINT), digest(TWO))
    ] * 2
    assert index.layout_digest(FINGERPRINT) == digest(TWO)
    entry = index.entry(FINGERPRINT, sha256(b"prefix").digest())
    assert entry is not None
    assert (entry.size_bytes, entry.mask) == (20, 1)
    assert state_model(index, FINGERPRINT, "m", TWO, 256) is None
    with pytest.raises(BadInputError, match="run the build that the others run"):
        state_model(index, FINGERPRINT, "m", ONE, 256)


def test_a_publication_is_refused_while_no_layout_is_stated(tmp_path: Path) -> None:
    with EmbeddedWriter(tmp_path) as writer:
        client = FactClient.open(tmp_path, "w", writer.endpoint)
        client.append_many([publication(ONE, 1)])
        client.flush(WAIT_S)
        client.close()
    index, refused = followed(tmp_path)
    assert [r.actual for r in refused] == [None]
    assert index.entry(FINGERPRINT, sha256(b"prefix").digest()) is None


def test_shards_are_bounded() -> None:
    with pytest.raises(BadInputError, match="1 to 1024 shards, not 0"):
        state_model(LiveIndex(), FINGERPRINT, "m", ONE, 256, 0)
