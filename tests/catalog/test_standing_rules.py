"""Each file of standing rules, against a small history worked out by hand."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from histories import History, digest, filled, node_of, parts_of

from pagetrail.catalog.boundaries import boundaries_by_rule
from pagetrail.catalog.datalog import explain
from pagetrail.catalog.envelope import Op
from pagetrail.catalog.facts import KindId, decision_fact
from pagetrail.catalog.identity import ROOT
from pagetrail.catalog.index import LiveIndex
from pagetrail.catalog.kinds.content import (
    Copy,
    Demand,
    Layout,
    LayoutPart,
    Model,
    RetentionLease,
    RetentionRoot,
    Reuse,
    Tenant,
    Tier,
)
from pagetrail.catalog.kinds.decision import Decision
from pagetrail.catalog.kinds.worker import (
    NodesEvicted,
    PagesAdopted,
    PromptKept,
    RequestQueued,
    StreamFinished,
)
from pagetrail.catalog.replica import Replica, open_replica
from pagetrail.catalog.standing import rule_texts, standing_rules

F = digest("f")
SSD, OBJECT = int(Tier.SSD), int(Tier.OBJECT)
COPYING, READY, FAILED = 0, 1, 2


class World:
    """A chain of chunks a <- b <- c with two parts each, and a replica over what is said."""

    def __init__(self) -> None:
        self.history = History()
        self.replica = open_replica(None, self.history)
        prefixes = [ROOT, digest("a"), digest("b"), digest("c")]
        self.nodes = [
            node_of(F, prefixes[k + 1], prefixes[k], 256 * k, "t" if k == 2 else "")
            for k in range(3)
        ]
        self.a, self.b, self.c = 0, 3, 6  # entity ids: each node is followed by its two parts
        self.parts = [parts_of(n.node_id, 2, 512 * 1024) for n in self.nodes]
        for node, parts in zip(self.nodes, self.parts, strict=True):
            self.history.say(node, *parts)

    def copy(self, node: int, part: int, worker: str, tier: int, state: int = READY) -> Copy:
        return Copy(self.parts[node // 3][part].part_id, worker, tier, state, "key")

    def part(self, node: int, part: int) -> int:
        return node + 1 + part

    def id(self, node: int) -> bytes:
        return self.nodes[node // 3].node_id

    def ask(self, goal: str, **values: object) -> set[tuple]:
        history, replica = self.history, self.replica
        if replica.position < len(history.facts):
            rest = history.facts[replica.position :]
            replica.apply(rest, history.chain(len(history.facts)))
        table = replica.query(f"?- {goal}.", values)
        return set(zip(*(c.to_pylist() for c in table.columns), strict=True))


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.replica.close()


def test_every_file_says_in_two_comment_lines_what_it_is_and_all_compile() -> None:
    assert {"garbage", "boundaries", "why", "tenants"} <= rule_texts().keys()
    for name, text in rule_texts().items():
        lines = text.splitlines()
        assert all(line.startswith("% ") for line in lines[:2]), name
        assert all(len(line) <= 100 for line in lines), name
    replica: Replica = open_replica(None, History())
    for predicate, arity in {r.predicate: len(r.head) for r in standing_rules()}.items():
        query = replica.compile(f"?- {predicate}({', '.join(f'A{i}' for i in range(arity))}).")
        assert query.tables == (), f"{predicate} takes more than one statement"
        assert "-- answer" in str(explain(replica.connection, query))


def test_current_copies(world: World) -> None:
    world.history.say(
        world.copy(world.a, 0, "w0", SSD),
        world.copy(world.a, 1, "w0", SSD, COPYING),
        world.copy(world.a, 0, "", OBJECT, FAILED),
        Copy(digest("unbound"), "w0", SSD, READY, ""),
    )
    assert world.ask("current_copy(N, P, W, T, S)") == {
        (world.a, world.part(world.a, 0), "w0", SSD, READY),
        (world.a, world.part(world.a, 1), "w0", SSD, COPYING),
        (world.a, world.part(world.a, 0), "", OBJECT, FAILED),
    }
    assert world.ask("copies_in_state(N, T, S, C)") == {
        (world.a, SSD, READY, 1),
        (world.a, SSD, COPYING, 1),
        (world.a, OBJECT, FAILED, 1),
    }


def test_complete_nodes(world: World) -> None:
    world.history.say(
        world.copy(world.a, 0, "w0", SSD),
        world.copy(world.a, 1, "w1", SSD),
        world.copy(world.b, 0, "w0", SSD),
        world.copy(world.c, 0, "w0", SSD),
        world.copy(world.c, 1, "w0", SSD),
    )
    assert world.ask("complete(N)") == {(world.a,), (world.c,)}
    assert world.ask("complete_at(N, W, T)") == {(world.c, "w0", SSD)}


def test_reconciliation(world: World) -> None:
    def demand(name: str, node: bytes, expires_us: int) -> Demand:
        return Demand(name, node, "w0", SSD, "owner", "", 7, expires_us)

    done, partly, lost, void = 9, 10, 11, 13
    world.history.say(
        demand("done", world.id(world.a), 0),
        demand("partly", world.id(world.b), 100),
        demand("lost", world.id(world.c), 100),
        demand("expired", world.id(world.c), 50),
        demand("void", digest("unknown"), 0),
        *[world.copy(world.a, k, "w0", SSD) for k in (0, 1)],
        world.copy(world.b, 0, "w0", SSD, COPYING),
        world.copy(world.b, 1, "", OBJECT),
    )
    assert world.ask("satisfied(D)", now_us=50) == {(done,)}
    assert world.ask("unsatisfied(D)", now_us=50) == {(partly,), (lost,), (void,)}
    assert world.ask("in_progress(D)", now_us=50) == {(partly,)}
    assert world.ask("action(A, D, P, W, T, R)", now_us=50) == {
        ("copy", partly, world.part(world.b, 1), "w0", SSD, 7),
        ("capture", lost, world.part(world.c, 0), "w0", SSD, 7),
        ("capture", lost, world.part(world.c, 1), "w0", SSD, 7),
    }
    assert world.ask("unpublished(D, N)", now_us=50) == {(void, void)}
    assert world.ask("unsatisfied(D)", now_us=100) == {(void,)}


def test_garbage(world: World) -> None:
    world.history.say(world.copy(world.c, 0, "w0", SSD), world.copy(world.a, 0, "w0", SSD))
    everything = {(world.a,), (world.b,), (world.c,)}
    assert world.ask("garbage(N)", now_us=0) == everything
    world.history.say(RetentionLease("l", world.id(world.b), "o", 100))
    assert world.ask("garbage(N)", now_us=99) == {(world.c,)}
    assert world.ask("garbage(N)", now_us=100) == everything
    world.history.say(Demand("d", world.id(world.a), "", OBJECT, "o", "", 1, 0))
    assert world.ask("garbage(N)", now_us=100) == {(world.b,), (world.c,)}
    assert world.ask("garbage_copy(P, W, T, L)", now_us=100) == {
        (world.part(world.c, 0), "w0", SSD, "key")
    }
    world.history.say(RetentionRoot("history", world.id(world.c)))
    assert world.ask("garbage(N)", now_us=100) == set()
    world.history.say(*world.parts[2], op=Op.RETRACT)
    assert world.ask("orphan_copy(P, W, T, L)") == {(world.part(world.c, 0), "w0", SSD, "key")}


def test_why(world: World) -> None:
    history = world.history
    start = len(history.facts)
    seen = history.say(filled(RequestQueued, stream=1))
    decision = decision_fact(KindId.ADMIT, filled(Decision, subject=1))
    made = history.say(decision, filled(PagesAdopted, stream=1), causes=[seen], client="w1")
    history.say(filled(StreamFinished, stream=1), causes=[made], client="w2")
    assert world.ask("decision_saw(D, F, K)") == {(start + 1, start, "request_queued")}
    assert world.ask("decision_caused(D, F, K)") == {
        (start + 1, start + 2, "pages_adopted"),
        (start + 1, start + 3, "stream_finished"),
    }
    assert world.ask("led_to(B, T)") == {
        (start, start + 1),
        (start + 1, start + 3),
        (start, start + 3),
    }


def test_regretted_evictions(world: World) -> None:
    history = world.history

    def prompt(stream: int, what: str, t_us: int, columns: int) -> None:
        queued = filled(RequestQueued, stream=stream, prompt_digest=digest(what))
        history.say(queued, t_us=t_us)
        history.say(filled(PagesAdopted, stream=stream, columns=columns), t_us=t_us + 1)
        history.say(filled(PromptKept, stream=stream), t_us=t_us + 2)

    prompt(1, "hot", 1_000, 0)
    prompt(2, "cold", 2_000, 0)
    evicted = len(history.facts)
    history.say(filled(NodesEvicted), t_us=3_000)
    prompt(3, "hot", 4_000, 0)
    prompt(4, "cold", 4_500, 3)
    prompt(5, "hot", 9_000, 0)
    goal = "regretted_eviction(E, W, P, S)"
    assert world.ask(goal, horizon_us=999) == set()
    assert world.ask(goal, horizon_us=1_000) == {(evicted, "w0", 1, 3)}
    assert world.ask(goal, horizon_us=6_000) == {(evicted, "w0", 1, 3), (evicted, "w0", 1, 5)}


def test_lost_copies(world: World) -> None:
    world.history.say(world.copy(world.a, 0, "w0", SSD), world.copy(world.a, 0, "", OBJECT))
    world.history.say(world.copy(world.b, 0, "w0", SSD), world.copy(world.b, 1, "w0", SSD, COPYING))
    world.history.say(world.copy(world.a, 0, "w0", SSD), op=Op.RETRACT)
    world.history.say(world.copy(world.b, 0, "w0", SSD, FAILED))
    assert world.ask("lost_copy(P, W, T)") == {
        (world.part(world.a, 0), "w0", SSD),
        (world.part(world.b, 0), "w0", SSD),
    }
    assert world.ask("lost_part(N, P)") == {(world.b, world.part(world.b, 0))}


def test_tenants(world: World) -> None:
    world.history.say(
        world.copy(world.a, 0, "w0", SSD),
        world.copy(world.a, 0, "w1", SSD),
        world.copy(world.a, 1, "w0", SSD, COPYING),
        world.copy(world.c, 0, "w0", SSD),
        Tenant("t", digest("root"), 0, 512 * 1024 - 1),
        Tenant("u", digest("other"), 0, 1),
    )
    half = 512 * 1024
    assert world.ask("tenant_bytes(T, B)") == {("", 2 * half), ("t", half)}
    assert world.ask("tenant_share(T, S)") == {("", 666_666), ("t", 333_333)}
    assert world.ask("quota_breach(T, B, Q)") == {("t", half, half - 1)}


class LaidOut:
    """A model whose layout has two groups, and one node that is published part by part."""

    def __init__(self) -> None:
        self.history, self.layout = History(), digest("layout")
        self.node = node_of(F, digest("a"), ROOT, 0)
        self.parts = parts_of(self.node.node_id, 3)  # the third is of no group of the layout
        self.history.say(
            Model(F, "m", "gemma", self.layout, 256),
            Layout(self.layout, b"encoding"),
            LayoutPart(self.layout, 0, 0),
            LayoutPart(self.layout, 1, 0),
        )
        self.e = len(self.history.facts)

    def ready(self, *parts: int) -> None:
        copies = [Copy(self.parts[p].part_id, "w0", SSD, READY, "k") for p in parts]
        self.history.say(*[self.parts[p] for p in parts], *copies)

    def seen(self) -> tuple[bool, bool, bool, bool]:
        """Whether the node is whole by ``complete``, ``complete_at``, ``boundary``, the index."""
        facts, end = self.history.facts, len(self.history.facts)
        index = LiveIndex()
        index.apply(facts)
        entry = index.entry(F, digest("a"))
        assert entry is not None
        with open_replica(None, self.history) as replica:
            replica.apply(facts, self.history.chain(end))
            held = boundaries_by_rule(replica, F, (digest("a"),), end).held
            return (
                replica.query("?- complete(Node).").num_rows == 1,
                replica.query("?- complete_at(Node, W, T).").num_rows == 1,
                held == {("w0", SSD, 1)},
                entry.mask != 0,
            )


def test_the_layout_demands_the_parts_whatever_happens_to_be_published() -> None:
    world = LaidOut()
    world.history.say(world.node)
    world.ready(0)
    assert world.seen() == (False, False, False, False)
    world.ready(1)
    assert world.seen() == (True, True, True, True)
    world.history.say(world.parts[1], op=Op.RETRACT)
    assert world.seen() == (False, False, False, False)


def test_parts_of_another_layout_make_no_node_whole_and_are_named() -> None:
    world = LaidOut()
    world.history.say(world.node)
    world.ready(0, 2)
    assert world.seen() == (False, False, False, False)
    with open_replica(None, world.history) as replica:
        replica.apply(world.history.facts, world.history.chain(len(world.history.facts)))
        foreign = replica.query("?- foreign_part(Node, Part).").to_pylist()
        assert foreign == [{"Node": world.e, "Part": world.e + 2}]
        assert replica.query("?- unbound_part(Node, G, S).").to_pylist() == [
            {"Node": world.e, "G": 1, "S": 0}
        ]
    world.ready(1)
    assert world.seen() == (True, True, True, True)


def test_a_layout_that_is_stated_late_decides_over_nodes_already_there() -> None:
    world = LaidOut()
    world.history = History()
    world.history.say(world.node)
    world.ready(0)
    assert world.seen() == (True, True, True, True)
    world.history.say(
        Model(F, "m", "gemma", world.layout, 256),
        LayoutPart(world.layout, 0, 0),
        LayoutPart(world.layout, 1, 0),
    )
    assert world.seen() == (False, False, False, False)


def test_ways_to_find_nodes(world: World) -> None:
    stated = 1_000  # log time of the first transaction; the others are 10 us apart by position
    world.history.say(Model(F, "m", "llama", digest("layout"), 256))
    world.history.say(Model(digest("g"), "other", "llama", digest("layout"), 256))
    world.history.say(Demand("d", world.id(world.b), "", OBJECT, "alice", "t", 1, 0))
    world.history.say(RetentionLease("l", world.id(world.c), "bob", 0))
    world.history.say(
        Reuse(world.id(world.a), "w0", 3, 768), Reuse(world.id(world.a), "w1", 3, 768)
    )
    a, b, c = world.a, world.b, world.c
    assert world.ask('node_of_model("m", N)') == {(a,), (b,), (c,)}
    assert world.ask('node_of_model("other", N)') == set()
    assert world.ask(f"child({a}, N)") == {(b,)}
    assert world.ask(f"below({a}, N)") == {(b,), (c,)}
    assert world.ask("node_at(N)", fingerprint=F, prefix=digest("b")) == {(b,)}
    assert world.ask("holds_token(N)", token=256) == {(b,)}
    assert world.ask('node(e: N, tenant: "t")') == {(c,)}
    assert world.ask('wanted_by("alice", N, Why)') == {(b, "demand")}
    assert world.ask('wanted_by("bob", N, Why)') == {(c, "lease")}
    assert world.ask("stated_at(N, T)") == {(a, stated), (b, stated + 30), (c, stated + 60)}
    assert world.ask("stated_between(N)", from_us=stated + 1, to_us=stated + 60) == {(b,)}
    assert world.ask("reused(N, H, T)") == {(a, 6, 1536)}
    assert world.ask("never_reused(N)") == {(b,), (c,)}
