"""The live index answers what ``rules/boundaries.dl`` says, at every position of any history."""

from __future__ import annotations

import msgspec
import pytest
from histories import History, RandomCatalog, digest, node_of, parts_of
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetrail.catalog.boundaries import Boundaries, boundaries_by_rule, recorded_by_rule
from pagetrail.catalog.envelope import Op, Run, Transaction, WireFact
from pagetrail.catalog.errors import BadInputError, CorruptionError, InvariantError
from pagetrail.catalog.identity import ROOT, node_id, salted_root
from pagetrail.catalog.index import CatalogChanges, LiveIndex
from pagetrail.catalog.kinds.content import Copy, Node, Part
from pagetrail.catalog.replica import open_replica
from pagetrail.controlplane.lookup import holdings, look_up


def by_index(index: LiveIndex, fingerprint: bytes, chain: tuple[bytes, ...]) -> Boundaries:
    lookup, entries = look_up(index, fingerprint, chain)
    found = holdings(index, entries)
    return Boundaries(lookup.known, frozenset((h.worker, h.tier, h.chunks) for h in found))


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
@settings(max_examples=4, deadline=None)
def test_the_index_equals_the_rule_at_every_position(seed: int, steps: int) -> None:
    catalog = RandomCatalog(seed, chunks=4)
    for _ in range(steps):
        catalog.step()
    history, index = catalog.history, LiveIndex()
    with open_replica(None, history) as replica:
        replica.apply(history.facts, history.chain(len(history.facts)))
        for end in history.ends[-1 :: -max(1, steps // 4)][::-1]:
            index.apply(history.between(index.position, end))
            for fingerprint, (_, *prefixes), _ in catalog.prompts[:3]:
                chain = tuple(prefixes)
                expected = boundaries_by_rule(replica, fingerprint, chain, end)
                assert by_index(index, fingerprint, chain) == expected


@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, 50), max_size=5))
@settings(max_examples=30, deadline=None)
def test_the_index_does_not_depend_on_how_the_facts_were_cut(seed: int, cuts: list[int]) -> None:
    catalog = RandomCatalog(seed)
    for _ in range(50):
        catalog.step()
    facts, whole, pieces = catalog.history.facts, LiveIndex(), LiveIndex()
    whole.apply(facts)
    for cut in sorted(min(c, len(facts)) for c in cuts):
        pieces.apply(facts[pieces.position : cut])
    pieces.apply(facts[pieces.position :])
    for fingerprint, (_, *prefixes), _ in catalog.prompts:
        for prefix in prefixes:
            assert whole.entry(fingerprint, prefix) == pieces.entry(fingerprint, prefix)


def one_chunk(groups: int) -> tuple[Node, list[Part]]:
    node = node_of(digest("f"), digest("p"), ROOT, 0)
    return node, parts_of(node.node_id, groups, size_bytes=100)


def holders(index: LiveIndex) -> list[tuple[str, int]]:
    entry = index.entry(digest("f"), digest("p"))
    assert entry is not None
    return [index.holder(bit) for bit in range(8) if entry.mask >> bit & 1]


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
@settings(max_examples=30, deadline=None)
def test_changes_that_are_read_once_fold_into_any_number_of_indexes(seed: int, steps: int) -> None:
    catalog = RandomCatalog(seed, chunks=4)
    for _ in range(steps):
        catalog.step()
    told = catalog.history.facts
    applied = LiveIndex()
    applied.apply(told)
    wires = [WireFact(one.op, one.kind, one.schema_v, msgspec.Raw(bytes(one.body))) for one in told]
    run = Run("w", 1, tuple(Transaction(n, (), (), (wire,)) for n, wire in enumerate(wires)))
    changes = CatalogChanges.of_runs(0, [run])
    for folded in (LiveIndex(), LiveIndex()):
        folded.fold(changes)
        assert folded.position == applied.position
        for fingerprint, (_, *prefixes), _ in catalog.prompts[:3]:
            chain = tuple(prefixes)
            assert by_index(folded, fingerprint, chain) == by_index(applied, fingerprint, chain)
        with pytest.raises(BadInputError, match="does not continue at"):
            folded.fold(changes)


def test_a_node_of_several_groups_is_held_only_where_every_part_is_ready() -> None:
    node, parts = one_chunk(3)
    history, index = History(), LiveIndex()
    history.say(node, *parts)
    history.say(*[Copy(p.part_id, "w0", 2, 1, "") for p in parts[:2]])
    history.say(*[Copy(p.part_id, "", 4, 1, "") for p in parts])
    index.apply(history.facts)
    assert holders(index) == [("", 4)]
    start = len(history.facts)
    history.say(Copy(parts[2].part_id, "w0", 2, 0, ""))
    history.say(Copy(parts[0].part_id, "", 4, 2, ""))
    index.apply(history.facts[start:])
    assert holders(index) == []
    start = len(history.facts)
    history.say(Copy(parts[2].part_id, "w0", 2, 1, ""))
    index.apply(history.facts[start:])
    assert holders(index) == [("w0", 2)]
    entry = index.entry(digest("f"), digest("p"))
    assert entry is not None
    assert (entry.size_bytes, entry.token_start, entry.token_end) == (303, 0, 256)
    assert entry.parent_prefix == ROOT


def test_a_node_without_parts_is_known_and_held_by_nobody() -> None:
    node, _ = one_chunk(1)
    history, index = History(), LiveIndex()
    history.say(node)
    index.apply(history.facts)
    assert holders(index) == []


def test_a_retracted_node_is_unknown_and_known_again_with_its_copies() -> None:
    node, parts = one_chunk(1)
    history, index = History(), LiveIndex()
    history.say(node, *parts, Copy(parts[0].part_id, "w0", 2, 1, ""))
    history.say(node, *parts, op=Op.RETRACT)
    index.apply(history.facts)
    assert index.entry(digest("f"), digest("p")) is None
    history.say(node, *parts)
    index.apply(history.facts[index.position :])
    assert holders(index) == [("w0", 2)]


def test_salted_state_is_invisible_under_any_other_root() -> None:
    from pagetrail.catalog.identity import chain as chain_digest

    tokens = list(range(256))
    salted = chain_digest(salted_root(b"A"), tokens)
    node = node_of(digest("f"), salted, salted_root(b"A"), 0, "A")
    history, index = History(), LiveIndex()
    part = parts_of(node.node_id, 1)[0]
    history.say(node, part, Copy(part.part_id, "", 4, 1, ""))
    index.apply(history.facts)
    assert index.entry(digest("f"), salted) is not None
    with open_replica(None, history) as replica:
        replica.apply(history.facts, history.chain(3))
        for root in (ROOT, salted_root(b"B"), salted_root(b"")):
            other = chain_digest(root, tokens)
            assert index.entry(digest("f"), other) is None
            assert boundaries_by_rule(replica, digest("f"), (other,), 3) == Boundaries(
                0, frozenset()
            )
        assert boundaries_by_rule(replica, digest("f"), (salted,), 3) == Boundaries(
            1, frozenset({("", 4, 1)})
        )


def test_ids_that_are_not_their_digests_are_refused_and_nothing_changes() -> None:
    node, parts = one_chunk(1)
    forged_node = Node(digest("forged"), *[getattr(node, f) for f in node.__struct_fields__[1:]])
    forged_part = Part(parts[0].part_id, node_id(digest("g"), digest("p")), 0, 0, digest("c"), 1)
    for forged in (forged_node, forged_part):
        history, index = History(), LiveIndex()
        history.say(node, *parts)
        history.say(forged)
        with pytest.raises(CorruptionError, match="fact 2"):
            index.apply(history.facts)
        assert index.position == 0
        assert index.entry(digest("f"), digest("p")) is None


def test_a_gap_is_refused() -> None:
    history, index = History(), LiveIndex()
    history.say(Copy(digest(1), "w", 2, 1, ""))
    history.say(Copy(digest(2), "w", 2, 1, ""))
    with pytest.raises(BadInputError, match="fact 1 does not continue at 0"):
        index.apply(history.facts[1:])
    index.apply(history.facts)
    with pytest.raises(BadInputError, match="fact 0 does not continue at 2"):
        index.apply(history.facts)
    with pytest.raises(IndexError):
        index.holder(-1)


def test_a_recorded_lookup_is_rebuilt_by_rule_from_its_edge_and_a_wrong_one_is_told() -> None:
    catalog = RandomCatalog(7, chunks=4)
    for _ in range(300):
        catalog.step()
    history, index = catalog.history, LiveIndex()
    index.apply(history.facts)
    end = len(history.facts)
    with open_replica(None, history) as replica:
        replica.apply(history.facts, history.chain(end))
        depths = set()
        for fingerprint, (root, *prefixes), _ in catalog.prompts:
            lookup, _ = look_up(index, fingerprint, prefixes)
            depths.add(lookup.known)
            recorded = (lookup.known, lookup.last, lookup.missing)
            rebuilt = recorded_by_rule(replica, fingerprint, root, recorded, end)
            assert rebuilt == by_index(index, fingerprint, tuple(prefixes))
            for wrong in (
                (lookup.known + 1, lookup.last or prefixes[0], b""),
                (max(1, lookup.known - 1), prefixes[-1], b""),
                *([(0, b"", lookup.last)] if lookup.known else []),
            ):
                if wrong == (lookup.known, lookup.last, b""):
                    continue
                with pytest.raises(InvariantError, match="by the rule"):
                    recorded_by_rule(replica, fingerprint, root, wrong, end)
        assert max(depths) >= 2
