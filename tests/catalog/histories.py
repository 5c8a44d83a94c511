"""Histories of facts for tests: a builder, and a seeded random history of the catalog."""

from __future__ import annotations

import hashlib
import random
import typing
from collections.abc import Sequence

import msgspec

from pagetrail.catalog.envelope import Cause, Fact, Op, WireFact
from pagetrail.catalog.facts import fact
from pagetrail.catalog.identity import ROOT, node_id, part_id, salted_root
from pagetrail.catalog.kinds.content import Copy, CopyState, LayoutPart, Model, Node, Part, Tier


def digest(*what: object) -> bytes:
    return hashlib.sha256(repr(what).encode()).digest()


class History:
    """Facts in the order in which they were said; each ``say`` is one transaction."""

    def __init__(self) -> None:
        self.facts: list[Fact] = []
        self.ends = [0]
        self._client_seq: dict[str, int] = {}

    def say(
        self,
        *bodies: msgspec.Struct | WireFact,
        op: Op = Op.ASSERT,
        client: str = "w0",
        t_us: int | None = None,
        causes: Sequence[Cause] = (),
    ) -> Cause:
        tx = len(self.facts)
        client_seq = self._client_seq.get(client, 0)
        self._client_seq[client] = client_seq + 1
        for index, body in enumerate(bodies):
            wire = body if isinstance(body, WireFact) else fact(body, op=op)
            self.facts.append(
                Fact(
                    tx + index,
                    tx,
                    1_000 + 10 * tx if t_us is None else t_us,
                    1,
                    client,
                    1,
                    client_seq,
                    index,
                    tuple(causes),
                    wire.op,
                    wire.kind,
                    wire.schema_v,
                    wire.body,
                )
            )
        self.ends.append(len(self.facts))
        return Cause(client, 1, client_seq)

    def chain(self, position: int) -> bytes:
        """Stands for the log's chain value after ``position`` facts."""
        return bytes(32) if position == 0 else digest("chain", position)

    def chain_at(self, position: int) -> bytes | None:
        return self.chain(position) if position in self.ends else None

    def between(self, start: int, end: int) -> list[Fact]:
        return self.facts[start:end]


def node_of(fingerprint: bytes, prefix: bytes, parent: bytes, start: int, tenant: str = "") -> Node:
    node = node_id(fingerprint, prefix)
    return Node(node, fingerprint, prefix, parent, start, start + 256, tenant)


def parts_of(node: bytes, groups: int, size_bytes: int = 1_000) -> list[Part]:
    return [
        Part(part_id(node, g, 0), node, g, 0, digest("content", node, g), size_bytes + g)
        for g in range(groups)
    ]


class RandomCatalog:
    """Chains of two models and a salted tenant, with copies that come, fail and go."""

    def __init__(self, seed: int, chunks: int = 6) -> None:
        self.rnd = random.Random(seed)
        self.history = History()
        self.fingerprints = (digest("model", 0), digest("model", 1))
        self.prompts: list[tuple[bytes, tuple[bytes, ...], str]] = []
        for fingerprint in self.fingerprints:
            for name in range(3):
                tenant = "salted" if name == 2 else ""
                root = salted_root(b"salt") if tenant else ROOT
                prefixes = tuple(digest(root, name if k > 1 else 0, k) for k in range(chunks))
                self.prompts.append((fingerprint, (root, *prefixes), tenant))

    def step(self) -> None:
        rnd = self.rnd
        if rnd.random() < 0.06:
            self._say_layout()
            return
        fingerprint, chain, tenant = rnd.choice(self.prompts)
        k = rnd.randrange(len(chain) - 1)
        node = node_of(fingerprint, chain[k + 1], chain[k], k * 256, tenant)
        parts = parts_of(node.node_id, 1 + chain[k + 1][0] % 2)
        draw = rnd.random()
        if draw < 0.3:
            self.history.say(node, *parts)
        elif draw < 0.36:
            self.history.say(node, *parts, op=Op.RETRACT)
        elif draw < 0.4:
            self.history.say(rnd.choice(parts), op=rnd.choice((Op.ASSERT, Op.RETRACT)))
        else:
            worker, tier = rnd.choice((("w0", Tier.SSD), ("w1", Tier.SSD), ("", Tier.OBJECT)))
            state = rnd.choices(tuple(CopyState), weights=(1, 6, 1))[0]
            op = Op.RETRACT if rnd.random() < 0.15 else Op.ASSERT
            chosen = parts if rnd.random() < 0.8 else [rnd.choice(parts)]
            copies = [Copy(p.part_id, worker, tier, state, f"k{k}") for p in chosen]
            self.history.say(*copies, op=op)

    def _say_layout(self) -> None:
        """One of the models has a layout of one or two groups, stated, changed and taken back."""
        rnd = self.rnd
        layout = digest("layout", rnd.randrange(2))
        body = rnd.choice(
            (
                Model(self.fingerprints[1], "m", "llama", layout, 256),
                LayoutPart(layout, 0, 0),
                LayoutPart(layout, 1, 0),
            )
        )
        self.history.say(body, op=Op.RETRACT if rnd.random() < 0.2 else Op.ASSERT)


def filled(struct: type[msgspec.Struct], **fields: object) -> msgspec.Struct:
    """A struct with the given fields, and zero or empty values of their types in the others."""
    hints = typing.get_type_hints(struct)
    exact = typing.get_type_hints(struct, include_extras=True)
    blank = {int: 0, str: "", bool: False, msgspec.Raw: msgspec.Raw(b"\xc0")}

    def value(name: str) -> object:
        if hints[name] is not bytes:
            return blank.get(hints[name], ())
        metas = getattr(exact[name], "__metadata__", ())
        return bytes(max([meta.min_length or 0 for meta in metas], default=0))

    names = [f.name for f in msgspec.structs.fields(struct)]
    return struct(**{name: fields[name] if name in fields else value(name) for name in names})
