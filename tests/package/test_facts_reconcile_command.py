"""`pagetrail facts reconcile` on a real log: states, actions, positions, and nothing deleted."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
from click.testing import CliRunner

from pagetrail.catalog.facts import fact
from pagetrail.catalog.identity import ROOT, node_id, part_id
from pagetrail.catalog.kinds.content import Copy, CopyState, Demand, Node, Part, Tier
from pagetrail.cli import main
from pagetrail.controlplane.log.client import FactClient
from pagetrail.controlplane.log.writer import EmbeddedWriter

F = sha256(b"model").digest()
SSD = int(Tier.SSD)


def _node(name: bytes) -> tuple[Node, list[Part]]:
    prefix = sha256(name).digest()
    node = node_id(F, prefix)
    parts = [Part(part_id(node, g, 0), node, g, 0, prefix, 10 + g) for g in range(2)]
    return Node(node, F, prefix, ROOT, 0, 256, ""), parts


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writer's start (0); nodes and parts (1-6); copies (7-9); four demands (10-13)."""
    directory = tmp_path_factory.mktemp("run")
    (a, of_a), (b, of_b) = _node(b"a"), _node(b"b")
    nowhere = sha256(b"nowhere").digest()
    steps = [
        [a, *of_a, b, *of_b],
        [
            *[Copy(p.part_id, "w0", SSD, CopyState.READY, "k") for p in of_a],
            Copy(of_b[0].part_id, "w0", SSD, CopyState.COPYING, "k"),
        ],
        [
            Demand("whole", a.node_id, "w0", SSD, "alice", "t", 5, 0),
            Demand("partly", b.node_id, "w0", SSD, "bob", "", 9, 0),
            Demand("absent", nowhere, "", int(Tier.OBJECT), "bob", "", 5, 0),
            Demand("over", a.node_id, "w1", SSD, "bob", "", 5, 1),
        ],
    ]
    with (
        EmbeddedWriter(directory) as writer,
        FactClient.open(directory, "asker", writer.endpoint) as client,
    ):
        for bodies in steps:
            client.append([fact(body) for body in bodies])
            client.flush(30)
    return directory


def reconcile(log: Path, *arguments: str) -> dict[str, object]:
    answer = CliRunner().invoke(
        main, ["facts", "reconcile", str(log), "--format", "json", *arguments]
    )
    assert answer.exit_code == 0, answer.output
    found: dict[str, object] = json.loads(answer.stdout)
    return found


def test_each_demand_in_force_is_told_with_its_actions(log: Path) -> None:
    found = reconcile(log)
    assert found["position"] == 14
    shown = [
        (d["demand"], d["state"], d["owner"], [(a["action"], a["group"]) for a in d["actions"]])
        for d in found["demands"]
    ]
    assert shown == [
        ("partly", "in progress", "bob", [("capture", 1)]),
        ("absent", "unsatisfied", "bob", [("publish", -1)]),
        ("whole", "satisfied", "alice", []),
    ]


def test_an_earlier_position_and_another_time_are_answered_for(log: Path) -> None:
    assert reconcile(log, "--as-of", "10")["demands"] == []
    assert reconcile(log, "--as-of", "0") == {"position": 0, "now_us": 0, "demands": []}
    names = [d["demand"] for d in reconcile(log, "--now", "0")["demands"]]
    assert names == ["partly", "absent", "over", "whole"]


def test_the_table_names_state_place_and_action(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    answer = CliRunner().invoke(main, ["facts", "reconcile", str(log)])
    assert answer.exit_code == 0, answer.output
    (line,) = [line for line in answer.stdout.splitlines() if "partly" in line]
    assert "in progress" in line
    assert "w0/ssd" in line
    assert "capture part 6 (group 1, shard 0, 11 B)" in line
    assert "3 demands in force at position 14" in answer.stdout


def test_the_log_is_the_same_afterwards(log: Path) -> None:
    files = {path: path.read_bytes() for path in sorted(log.rglob("*")) if path.is_file()}
    reconcile(log)
    assert {path: path.read_bytes() for path in sorted(log.rglob("*")) if path.is_file()} == files


def test_a_position_beyond_the_log_and_a_directory_without_one_are_refused(
    log: Path, tmp_path: Path
) -> None:
    runner = CliRunner()
    beyond = runner.invoke(main, ["facts", "reconcile", str(log), "--as-of", "99"])
    assert beyond.exit_code != 0
    assert "as_of 99 is not a position of this replica; expected 0 to 14" in beyond.output
    assert runner.invoke(main, ["facts", "reconcile", str(tmp_path)]).exit_code != 0
