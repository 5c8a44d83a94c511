"""The catalog's history answers at every position what the live index answered there."""

from __future__ import annotations

import hashlib
import random

import msgspec
import pytest

from pagetrail.catalog.envelope import Fact, Op, WireFact
from pagetrail.catalog.facts import KindId, encode_body
from pagetrail.catalog.identity import ROOT, node_id, part_id
from pagetrail.catalog.index import LiveIndex
from pagetrail.catalog.kinds.content import Copy, CopyState, LayoutPart, Model, Node, Part
from pagetrail.replay.history import CatalogHistory

FINGERPRINT = hashlib.sha256(b"model").digest()


def _fact(seq: int, kind: KindId, body: msgspec.Struct, op: Op) -> Fact:
    return Fact(seq, seq, seq, 1, "w", 1, seq, 0, (), op, kind, 1, msgspec.Raw(encode_body(body)))


def _random_facts(seed: int, count: int) -> tuple[list[Fact], list[bytes]]:
    draw = random.Random(seed)
    prefixes = [hashlib.sha256(b"%d" % number).digest() for number in range(6)]
    facts = []
    for seq in range(count):
        place = draw.randrange(len(prefixes))
        node = node_id(FINGERPRINT, prefixes[place])
        group = draw.randrange(2)
        part = part_id(node, group, 0)
        op = Op.ASSERT if draw.random() < 0.8 else Op.RETRACT
        pick = draw.randrange(40)
        if pick == 0:
            layout = hashlib.sha256(b"layout %d" % draw.randrange(2)).digest()
            facts.append(_fact(seq, KindId.MODEL, Model(FINGERPRINT, "m", "llama", layout, 4), op))
        elif pick == 1:
            layout = hashlib.sha256(b"layout %d" % draw.randrange(2)).digest()
            facts.append(_fact(seq, KindId.LAYOUT_PART, LayoutPart(layout, group, 0), op))
        elif pick < 12:
            parent = prefixes[place - 1] if place else ROOT
            body: msgspec.Struct = Node(
                node, FINGERPRINT, prefixes[place], parent, place * 4, place * 4 + 4, ""
            )
            facts.append(_fact(seq, KindId.NODE, body, op))
        elif pick < 22:
            body = Part(part, node, group, 0, hashlib.sha256(part).digest(), 10 + group)
            facts.append(_fact(seq, KindId.PART, body, op))
        else:
            worker = f"worker-{draw.randrange(3)}"
            state = draw.choice([CopyState.READY, CopyState.READY, CopyState.COPYING])
            body = Copy(part, worker, draw.choice([2, 4]), state, "somewhere")
            facts.append(_fact(seq, KindId.COPY, body, op))
    return facts, prefixes


@pytest.mark.parametrize("seed", range(20))
def test_history_equals_the_live_index_at_every_position(seed: int) -> None:
    facts, prefixes = _random_facts(seed, 150)
    history = CatalogHistory()
    for fact in facts:
        history.add(fact.seq, WireFact(fact.op, fact.kind, fact.schema_v, fact.body))
    index = LiveIndex()
    for position in range(len(facts) + 1):
        then = history.at(position)
        for prefix in prefixes:
            now = index.entry(FINGERPRINT, prefix)
            assert then.entry(FINGERPRINT, prefix) == now
            if now is not None:
                for bit in range(now.mask.bit_length()):
                    assert then.holder(bit) == index.holder(bit)
        if position < len(facts):
            index.apply([facts[position]])
