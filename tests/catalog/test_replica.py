"""A replica is the fold of a prefix of the log, at every position, or it is rebuilt."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import msgspec
import pytest
from histories import History, RandomCatalog, digest, filled, node_of, parts_of

from pagetrail.catalog.datalog.model import OPEN_SEQ
from pagetrail.catalog.envelope import Fact, Op
from pagetrail.catalog.errors import BadInputError, CorruptionError, UnknownKindError
from pagetrail.catalog.facts import KINDS, KindId, Role, decision_fact, decode_body
from pagetrail.catalog.identity import ROOT
from pagetrail.catalog.kinds.content import Copy, Tenant
from pagetrail.catalog.kinds.decision import Decision
from pagetrail.catalog.kinds.worker import RequestQueued, StreamFinished
from pagetrail.catalog.replica import Replica, open_replica
from pagetrail.catalog.replica_schema import SCHEMA

CATALOG_KINDS = [kind for kind in KINDS.values() if kind.role is Role.CATALOG]


def folded(facts: list[Fact]) -> dict[str, set[tuple]]:
    """Current rows of each catalog kind, by a plain dictionary."""
    first: dict[tuple, int] = {}
    state: dict[tuple, tuple] = {}
    for fact in facts:
        kind = KINDS[fact.kind]
        if kind.role is not Role.CATALOG:
            continue
        body = decode_body(fact.kind, fact.schema_v, fact.body)
        key = (kind.name, *(getattr(body, field) for field in kind.entity))
        first.setdefault(key, fact.seq)
        references = []
        for name in ("node", "part"):
            named = getattr(body, f"{name}_id", None)
            if named is not None and name != kind.name:
                references.append(first.setdefault((name, named), fact.seq))
        if fact.op == Op.ASSERT:
            state[key] = (first[key], *msgspec.structs.astuple(body), *references)
        else:
            state.pop(key, None)
    out: dict[str, set[tuple]] = {kind.name: set() for kind in CATALOG_KINDS}
    for key, row in state.items():
        out[key[0]].add(row)
    return out


def goal(name: str, arity: int) -> str:
    return f"?- {name}({', '.join(f'A{i}' for i in range(arity))})."


def current(replica: Replica, name: str, as_of: int | None = None) -> set[tuple]:
    arity = SCHEMA[name].arity
    table = replica.query(goal(name, arity), as_of=as_of)
    return set(zip(*(c.to_pylist() for c in table.columns), strict=True))


def fill(replica: Replica, history: History, frames: int = 1) -> None:
    """Apply what is missing, ``frames`` transactions at a time."""
    ends = [end for end in history.ends if end > replica.position]
    for end in [*ends[frames - 1 :: frames], *ends[-1:]]:
        replica.apply(history.between(replica.position, end), history.chain(end))


@pytest.mark.parametrize("frames", [1, 3, 1_000])
def test_as_of_every_position_equals_the_fold_of_that_prefix(frames: int) -> None:
    catalog = RandomCatalog(seed=frames)
    for _ in range(24):
        catalog.step()
    history = catalog.history
    history.say(Tenant("t", ROOT, 1, 2))
    with open_replica(None, history) as replica:
        fill(replica, history, frames)
        positions = history.ends if frames == 3 else history.ends[::8]
        for position in positions:
            expected = folded(history.facts[:position])
            for name in ("node", "part", "copy"):
                assert current(replica, name, position) == expected[name], (position, name)
        expected = folded(history.facts)
        for kind in CATALOG_KINDS:
            assert current(replica, kind.name) == expected[kind.name]


def test_several_facts_of_one_entity_in_one_apply_leave_each_its_span() -> None:
    history = History()
    part = digest("part")
    history.say(*[Copy(part, "w", 2, state, "x") for state in (0, 2, 0, 1)])
    history.say(Copy(part, "w", 2, 1, "x"), op=Op.RETRACT)
    history.say(Copy(part, "w", 2, 0, "y"))
    with open_replica(None, history) as replica:
        replica.apply(history.facts, history.chain(6))
        states = [replica.query("?- copy(e: E, state: S).", as_of=n).to_pylist() for n in range(7)]
        assert states == [[]] + [[{"E": 0, "S": s}] for s in (0, 2, 0, 1)] + [[]] + [
            [{"E": 0, "S": 0}]
        ]


def test_the_entity_id_is_the_seq_of_the_first_fact_that_named_it_however_it_did() -> None:
    history = History()
    node = node_of(digest("f"), digest("p"), ROOT, 0)
    part = parts_of(node.node_id, 1)[0]
    history.say(Copy(part.part_id, "w", 2, 1, ""), op=Op.RETRACT)
    history.say(Copy(digest(2), "w", 2, 1, ""), Copy(part.part_id, "w", 2, 1, ""))
    history.say(part)
    history.say(node)
    with open_replica(None, history) as replica:
        fill(replica, history)
        table = replica.query("?- copy(e: E, part_id: P, part_e: R).")
        assert [tuple(row.values()) for row in table.to_pylist()] == [
            (0, part.part_id, 0),
            (1, digest(2), 1),
        ]
        assert replica.query("?- part(e: E, node_e: N).").to_pylist() == [{"E": 0, "N": 3}]
        assert replica.query("?- node(e: E).").to_pylist() == [{"E": 3}]


def test_facts_of_every_role_are_queried_with_their_envelope_and_causes() -> None:
    history = History()
    first = history.say(filled(RequestQueued, stream=1))
    decision = filled(Decision, subject=1, as_of=-1, recorded=msgspec.Raw(b"\x90"))
    history.say(
        decision_fact(KindId.ADMIT, decision),
        filled(StreamFinished, stream=1),
        causes=[first],
        client="w1",
    )
    with open_replica(None, history) as replica:
        fill(replica, history)
        assert replica.query("?- admit(seq: S, as_of: A, recorded: R).").to_pylist() == [
            {"S": 1, "A": -1, "R": b"\x90"}
        ]
        assert replica.query('?- decision(seq: S, kind: "admit").').to_pylist() == [{"S": 1}]
        assert replica.query("?- evict(seq: S).").num_rows == 0
        assert replica.query("?- fact(seq: S, tx: T, kind: K, client: C).").to_pylist() == [
            {"S": 0, "T": 0, "K": "request_queued", "C": "w0"},
            {"S": 1, "T": 1, "K": "admit", "C": "w1"},
            {"S": 2, "T": 1, "K": "stream_finished", "C": "w1"},
        ]
        assert replica.query("?- caused_by(Tx, Before).").to_pylist() == [{"Tx": 1, "Before": 0}]
        assert replica.query("?- fact(seq: S, kind: K).", as_of=1).num_rows == 1


def test_a_gap_is_refused_and_changes_nothing() -> None:
    catalog = RandomCatalog(seed=4)
    for _ in range(10):
        catalog.step()
    history = catalog.history
    with open_replica(None, history) as replica:
        end = history.ends[4]
        replica.apply(history.between(0, end), history.chain(end))
        before = current(replica, "copy")
        for start in (0, end - 1, end + 1):
            with pytest.raises(BadInputError, match=f"does not continue at {end}"):
                replica.apply(history.between(start, len(history.facts)), history.chain(0))
        assert (replica.position, replica.chain) == (end, history.chain(end))
        assert current(replica, "copy") == before
        fill(replica, history)
        assert current(replica, "copy") == folded(history.facts)["copy"]


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        ({"kind": 9_999}, UnknownKindError),
        ({"schema_v": 99}, UnknownKindError),
        ({"body": msgspec.Raw(b"\x91\x01")}, CorruptionError),
    ],
)
def test_a_fact_that_cannot_be_read_refuses_its_whole_batch(
    spoil: dict[str, object], error: type[Exception]
) -> None:
    history = History()
    history.say(Copy(digest(1), "w", 2, 1, ""), Copy(digest(2), "w", 2, 1, ""))
    bad = [history.facts[0], msgspec.structs.replace(history.facts[1], **spoil)]
    with open_replica(None, history) as replica:
        with pytest.raises(error):
            replica.apply(bad, history.chain(2))
        assert replica.position == 0
        assert current(replica, "copy") == set()
        replica.apply(history.facts, history.chain(2))
        assert len(current(replica, "copy")) == 2


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, History]:
    """The file of a replica that was filled and closed, and its history."""
    path = tmp_path_factory.mktemp("replica") / "replica.duckdb"
    catalog = RandomCatalog(seed=6)
    for _ in range(25):
        catalog.step()
    with open_replica(path, catalog.history) as replica:
        fill(replica, catalog.history, 9)
    return path.read_bytes(), catalog.history


@pytest.fixture
def path(tmp_path: Path, closed: tuple[bytes, History]) -> Path:
    path = tmp_path / "replica.duckdb"
    path.write_bytes(closed[0])
    return path


@pytest.fixture
def history(closed: tuple[bytes, History]) -> History:
    return copy.deepcopy(closed[1])


def test_a_replica_goes_on_where_it_was_closed(path: Path, history: History) -> None:
    with open_replica(path, history) as replica:
        assert replica.rebuilt is None
        assert (replica.position, replica.chain) == (
            len(history.facts),
            history.chain(len(history.facts)),
        )
        history.say(Copy(digest("new"), "w", 2, 1, ""))
        fill(replica, history)
        assert current(replica, "copy") == folded(history.facts)["copy"]


def rebuilds(path: Path, history: History, reason: str) -> None:
    with open_replica(path, history) as replica:
        assert replica.rebuilt is not None
        assert reason in replica.rebuilt
        assert replica.position == 0
        fill(replica, history, 9)
        assert current(replica, "copy") == folded(history.facts)["copy"]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ("DELETE FROM events_copy WHERE e = (SELECT min(e) FROM events_copy)", "events_copy"),
        ("DELETE FROM facts WHERE seq = 3", "facts"),
        ("UPDATE events_copy SET location = 'elsewhere'", "events_copy"),
        (f"UPDATE events_copy SET to_seq = to_seq - 1 WHERE to_seq < {OPEN_SEQ}", "events_copy"),
        ("UPDATE events_part SET size_bytes = size_bytes + 1", "events_part"),
        ("DELETE FROM ledger WHERE table_name = 'facts'", "facts"),
        ("UPDATE position SET seq = seq + 1", "another history"),
        ("UPDATE position SET form = 'other'", "another version of pagetrail"),
        ("UPDATE position SET engine = '0.0'", "written by DuckDB 0.0"),
        ("DELETE FROM position", "0 rows instead of 1"),
        ("DROP TABLE position", "cannot be read"),
    ],
)
def test_a_replica_that_lost_or_changed_anything_is_rebuilt(
    path: Path, history: History, damage: str, reason: str
) -> None:
    with duckdb.connect(str(path)) as connection:
        connection.execute(damage)
    rebuilds(path, history, reason)


def test_a_replica_of_another_log_is_rebuilt(path: Path) -> None:
    other = RandomCatalog(seed=77)
    for _ in range(3):
        other.step()
    rebuilds(path, other.history, "another history")


def test_a_replica_held_by_another_process_is_refused_and_left_alone(
    path: Path, history: History
) -> None:
    script = (
        "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('held', flush=True); "
        "sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BadInputError, match="held by another process"):
            open_replica(path, history)
        holder.communicate()
    with open_replica(path, history) as replica:
        assert replica.rebuilt is None


def test_a_replica_open_in_this_process_is_refused_and_left_alone(
    path: Path, history: History
) -> None:
    with open_replica(path, history) as replica:
        held = current(replica, "copy")
        with pytest.raises(BadInputError, match="open in this one"):
            open_replica(path, history)
        assert current(replica, "copy") == held
    with open_replica(path, history) as replica:
        assert replica.rebuilt is None


def test_small_tables_of_a_file_are_compressed_by_all_processors(tmp_path: Path) -> None:
    """The documented size of a row group is 122,880 rows: this table would be one."""
    history = History()
    with open_replica(tmp_path / "a 'quoted' name", history) as replica:
        replica.connection.execute("CREATE TABLE rows AS SELECT * FROM range(122_880)")
        replica.connection.execute("CHECKPOINT")
        with replica.connection.cursor() as other:
            groups = other.execute(
                "SELECT count(DISTINCT row_group_id) FROM pragma_storage_info('rows')"
            ).fetchall()
    assert groups[0][0] > 4


def test_a_file_that_is_no_database_is_rebuilt(path: Path, history: History) -> None:
    path.write_bytes(b"x" * 9_000)
    rebuilds(path, history, "cannot be read")


def test_a_file_cut_or_flipped_anywhere_is_rebuilt_or_whole(path: Path, history: History) -> None:
    whole = path.read_bytes()
    for step in range(8):
        broken = bytearray(whole)
        broken[(step * 2 + 1) * len(whole) // 16] ^= 0x10
        path.write_bytes(broken)
        path.with_name(path.name + ".wal").unlink(missing_ok=True)
        with open_replica(path, history) as replica:
            fill(replica, history, 9)
            assert current(replica, "copy") == folded(history.facts)["copy"], step


def test_a_query_while_facts_arrive_sees_one_position() -> None:
    """Each transaction adds one copy in each of two tables of facts; no answer may tell."""
    history = History()
    nodes = [node_of(digest("f"), digest("p", i), ROOT, 0) for i in range(25)]
    for node in nodes:
        part = parts_of(node.node_id, 1)[0]
        history.say(node, part, Copy(part.part_id, "w", 2, 1, ""))
    with open_replica(None, history) as replica:
        text = (
            "n(count(A)) :- node(node_id: A). c(count(A)) :- copy(part_id: A). "
            "odd(X) :- n(X), not c(X). same(X) :- n(X), odd(X). same(X) :- same(Y), odd(X), odd(Y)."
            "?- odd(X)."
        )
        query = replica.compile(text)
        wrong: list[object] = []
        counted: list[int] = []
        done = threading.Event()

        def read() -> None:
            while not done.is_set():
                wrong.extend(replica.run(query).to_pylist())
                counted.append(replica.query("n(count(A)) :- node(node_id: A).").num_rows)

        reader = threading.Thread(target=read)
        reader.start()
        fill(replica, history)
        done.set()
        reader.join()
        assert wrong == []
        assert counted


def test_as_of_beyond_the_replica_is_refused() -> None:
    history = History()
    with open_replica(None, history) as replica, pytest.raises(BadInputError, match="0 to 0"):
        replica.query("?- node(node_id: N).", as_of=1)


def test_every_kind_has_its_predicate() -> None:
    with open_replica(None, History()) as replica:
        for kind in KINDS.values():
            assert replica.query(goal(kind.name, SCHEMA[kind.name].arity)).num_rows == 0
            names = [c.name for c in SCHEMA[kind.name].columns]
            assert {f.name for f in msgspec.structs.fields(kind.struct)} <= set(names)
