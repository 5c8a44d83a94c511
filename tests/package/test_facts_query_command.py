"""`pagetrail facts query` on a real log: forms of output, parameters, positions and refusals."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result
from pyarrow import parquet

from pagetrail.catalog.facts import fact
from pagetrail.catalog.kinds.content import Demand, Tier
from pagetrail.cli import main
from pagetrail.controlplane.log.client import FactClient
from pagetrail.controlplane.log.writer import EmbeddedWriter
from pagetrail.log_replica import LogChain, caught_up_replica

NODE = bytes(range(32))
DEMANDS = "?- demand(e: E, demand: Name, node_id: Node, priority: Priority)."


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of one writer epoch (seq 0) and three demands (seq 1 to 3), the last two the same."""
    directory = tmp_path_factory.mktemp("run")
    with (
        EmbeddedWriter(directory) as writer,
        FactClient.open(directory, "asker", writer.endpoint) as client,
    ):
        for name, priority in (("first", 7), ('it\'s, "odd"', 1), ('it\'s, "odd"', 9)):
            demand = Demand(name, NODE, "", int(Tier.OBJECT), "test", "", priority, 0)
            client.append([fact(demand)])
            client.flush(30)
    return directory


def query(log: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["facts", "query", "--log", str(log), *arguments])


def rows(log: Path, *arguments: str) -> list[dict[str, object]]:
    answer = query(log, *arguments, "--format", "json")
    assert answer.exit_code == 0, answer.output
    return [json.loads(line) for line in answer.stdout.splitlines()]


def test_json_holds_every_row_with_bytes_as_the_language_writes_them(log: Path) -> None:
    found = rows(log, DEMANDS)
    assert [(row["E"], row["Name"], row["Priority"]) for row in found] == [
        (1, "first", 7),
        (2, 'it\'s, "odd"', 9),
    ]
    assert {row["Node"] for row in found} == {f"0x{NODE.hex()}"}


def test_csv_arrow_and_table_hold_the_same_rows(log: Path) -> None:
    expected = rows(log, DEMANDS)
    read = list(csv.DictReader(io.StringIO(query(log, DEMANDS, "--format", "csv").stdout)))
    assert read == [{name: str(value) for name, value in row.items()} for row in expected]
    stream = query(log, DEMANDS, "--format", "arrow").stdout_bytes
    with pa.ipc.open_stream(stream) as reader:
        table = reader.read_all()
    assert table.column("Node").to_pylist() == [NODE, NODE]
    assert table.column("Priority").to_pylist() == [row["Priority"] for row in expected]
    assert "2 rows" in query(log, DEMANDS).stdout


def test_an_earlier_position_gives_what_held_there(log: Path) -> None:
    priorities = [
        [row["Priority"] for row in rows(log, DEMANDS, "--as-of", str(position))]
        for position in range(5)
    ]
    assert priorities == [[], [], [7], [7, 1], [7, 9]]


def test_parameters_take_the_type_of_their_text(log: Path) -> None:
    by_node = """
        found(Name) :- demand(demand: Name, node_id: $node, priority: P), P >= $least.
        ?- found(N)."""
    found = rows(log, by_node, "--param", f"node=0x{NODE.hex()}", "--param", "least=8")
    assert found == [{"N": 'it\'s, "odd"'}]
    by_name = "found(P) :- demand(demand: $name, priority: P). ?- found(P)."
    assert rows(log, by_name, "--param", "name=first") == [{"P": 7}]


def test_rules_can_come_from_a_file(log: Path, tmp_path: Path) -> None:
    file = tmp_path / "question.dl"
    file.write_text(DEMANDS, encoding="utf-8")
    assert rows(log, "--file", str(file)) == rows(log, DEMANDS)


def test_a_kept_replica_answers_the_same_and_grows_with_the_log(log: Path, tmp_path: Path) -> None:
    database = tmp_path / "kept.duckdb"
    for _ in range(2):
        assert rows(log, DEMANDS, "--replica", str(database)) == rows(log, DEMANDS)
    with caught_up_replica(log, database) as replica:
        assert replica.rebuilt is None
        assert replica.position == 4


def test_chain_values_are_known_where_a_frame_ends_and_nowhere_else(log: Path) -> None:
    chain = LogChain(log)
    values = [chain.chain_at(position) for position in range(5)]
    assert values[0] == bytes(32)
    assert len(set(values)) == 5
    assert None not in values
    assert chain.chain_at(6) is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["?- demands(X)."], "did you mean demand?"),
        (["?- demand(X)."], "demand"),
        ([DEMANDS, "--as-of", "99"], "expected 0 to 4"),
        ([], "give one of them"),
        ([DEMANDS, "--file", "/nonexistent.dl"], "give one of them"),
        (["--file", "/nonexistent.dl"], "/nonexistent.dl"),
        ([DEMANDS, "--param", "=1"], "is not NAME=VALUE"),
        ([DEMANDS, "--param", "x=1"], "no parameter $x"),
    ],
)
def test_what_cannot_be_asked_ends_with_2_and_says_why(
    log: Path, arguments: list[str], said: str
) -> None:
    answer = query(log, *arguments)
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert said in answer.stderr


def test_a_directory_without_a_log_is_refused_and_no_replica_is_made(tmp_path: Path) -> None:
    database = tmp_path / "kept.duckdb"
    answer = query(tmp_path / "nowhere", DEMANDS, "--replica", str(database))
    assert answer.exit_code == 2
    assert "holds no log" in answer.stderr
    assert not database.exists()


@pytest.mark.parametrize("form", ["parquet", "arrow", "jsonl"])
def test_export_writes_every_fact_once_and_never_over_a_file(
    log: Path, tmp_path: Path, form: str
) -> None:
    out = tmp_path / "facts"
    arguments = ["facts", "export", str(out), "--log", str(log), "--format", form]
    answer = CliRunner().invoke(main, arguments)
    assert answer.exit_code == 0, answer.output
    assert answer.stdout == f"4 facts written to {out}\n"
    if form == "jsonl":
        found = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    elif form == "arrow":
        found = pa.ipc.open_file(str(out)).read_all().to_pylist()
    else:
        found = parquet.read_table(out).to_pylist()
    assert [row["seq"] for row in found] == [0, 1, 2, 3]
    assert [row["kind_name"] for row in found] == ["writer_epoch_started"] + ["demand"] * 3
    again = CliRunner().invoke(main, arguments)
    assert again.exit_code == 2
    assert "exists" in again.stderr


def test_export_of_no_log_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "facts"
    answer = CliRunner().invoke(main, ["facts", "export", str(out), "--log", str(tmp_path)])
    assert answer.exit_code == 2
    assert "holds no log" in answer.stderr
    assert not out.exists()
