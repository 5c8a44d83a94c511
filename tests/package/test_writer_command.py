"""`pagetrail writer`, `facts tail`, `facts verify` and `keys` on a real log directory."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pagetrail.catalog.facts import fact
from pagetrail.catalog.kinds.content import Layout
from pagetrail.cli import main
from pagetrail.controlplane.log.client import FactClient
from pagetrail.controlplane.log.writer import EmbeddedWriter, ReadyLine

FREE_PORTS = ("--bind", "tcp://127.0.0.1:0", "--publish", "tcp://127.0.0.1:0")
PAGETRAIL = [sys.executable, "-c", "from pagetrail.cli import main; main()"]


def pagetrail(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture
def run_directory(tmp_path: Path) -> Path:
    """A run whose writer has been started twice, so its log holds two epochs."""
    directory = tmp_path / "run"
    for _ in range(2):
        with EmbeddedWriter(directory):
            pass
    return directory


def test_the_writer_prints_where_it_listens_and_ends_cleanly_on_sigterm(tmp_path: Path) -> None:
    arguments = ["writer", "--directory", str(tmp_path / "run"), "--clock", "logical"]
    process = subprocess.Popen([*PAGETRAIL, *arguments, *FREE_PORTS], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout as lines:
        ready = json.loads(lines.readline())
        assert set(ready) == set(ReadyLine.__struct_fields__)
        assert ready["endpoint"].startswith("tcp://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    (started,) = tail_objects(tmp_path / "run")
    assert started["kind"] == "writer_epoch_started"
    assert started["body"]["clock"] == "logical"


def tail_objects(directory: Path, *arguments: str) -> list[dict[str, object]]:
    answer = pagetrail("facts", "tail", "--log", str(directory), "--json", *arguments)
    assert answer.exit_code == 0, answer.output
    return [json.loads(line) for line in answer.stdout.splitlines()]


def test_a_port_in_use_ends_with_2_and_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        answer = pagetrail("writer", "--directory", str(tmp_path / "run"), "--bind", endpoint)
    assert answer.exit_code == 2
    assert answer.stderr.count("\n") == 1
    assert f"cannot listen on {endpoint}" in answer.stderr


def test_tail_prints_the_newest_facts_last(run_directory: Path) -> None:
    facts = tail_objects(run_directory)
    assert [shown["seq"] for shown in facts] == list(range(len(facts)))
    assert [shown["seq"] for shown in tail_objects(run_directory, "--lines", "1")] == [
        len(facts) - 1
    ]
    assert tail_objects(run_directory, "--from", "1", "--lines", "1")[0]["seq"] == 1
    line = pagetrail("facts", "tail", "--log", str(run_directory), "--lines", "1").stdout
    assert "+writer_epoch_started writer_epoch=2 " in line


def test_follow_prints_what_tail_prints_and_then_what_is_new(run_directory: Path) -> None:
    with EmbeddedWriter(run_directory) as writer:
        places = ("--endpoint", writer.endpoint, "--publish", writer.publish_endpoint)
        old = pagetrail("facts", "follow", *places, "--json", "--lines", "3")
        assert old.exit_code == 0, old.output
        assert [json.loads(line) for line in old.stdout.splitlines()] == tail_objects(run_directory)
        process = subprocess.Popen(
            [*PAGETRAIL, "facts", "follow", *places, "--from", "2", "--lines", "2"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process.stdout as lines:
            assert lines.readline().startswith("2 ")
            with FactClient.open(run_directory, "asker", writer.endpoint) as client:
                client.append([fact(Layout(bytes(32), b""))])
                assert lines.readline().startswith("3 ")
        assert process.wait(30) == 0


def test_a_line_of_tail_cuts_long_values_and_json_does_not(tmp_path: Path) -> None:
    layout = Layout(bytes(32), bytes(1_000))
    with (
        EmbeddedWriter(tmp_path) as writer,
        FactClient.open(tmp_path, "asker", writer.endpoint) as client,
    ):
        client.append([fact(layout)])
        client.flush(30)
    line = pagetrail("facts", "tail", "--log", str(tmp_path), "--kind", "layout").stdout
    assert "...(2002 characters)" in line
    assert len(line) < 400
    (whole,) = tail_objects(tmp_path, "--kind", "layout")
    assert whole["body"] == {"layout_digest": "00" * 32, "encoding": "00" * 1_000}


def test_tail_shows_only_the_kinds_asked_for_and_refuses_unknown_ones(run_directory: Path) -> None:
    assert tail_objects(run_directory, "--kind", "node") == []
    answer = pagetrail("facts", "tail", "--log", str(run_directory), "--kind", "evictt")
    assert answer.exit_code == 2
    assert "the nearest known kind of fact is evict" in answer.stderr


def test_verify_accepts_a_whole_log_and_ends_with_1_for_an_altered_one(run_directory: Path) -> None:
    good = pagetrail("facts", "verify", "--log", str(run_directory), "--json")
    assert good.exit_code == 0
    assert json.loads(good.stdout)["problem"] is None
    segment = min((run_directory / "log").glob("*.ptlog"))
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1  # the last byte of a frame that later ones follow
    segment.write_bytes(data)
    bad = pagetrail("facts", "verify", "--log", str(run_directory))
    assert bad.exit_code == 1
    assert "BAD: " in bad.output
    assert segment.name in bad.output


def test_a_directory_without_a_log_ends_with_2_and_one_line(tmp_path: Path) -> None:
    for name in ("tail", "verify"):
        answer = pagetrail("facts", name, "--log", str(tmp_path))
        assert answer.exit_code == 2
        assert "holds no log" in answer.stderr
        assert answer.stderr.count("\n") == 1


def test_keys_are_made_once_with_a_secret_that_only_its_owner_reads(tmp_path: Path) -> None:
    arguments = ("keys", "writer", "--directory", str(tmp_path))
    assert pagetrail(*arguments).exit_code == 0
    secret = tmp_path / "writer.key_secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert "secret" not in (tmp_path / "writer.key").read_text(encoding="utf-8").split("curve")[1]
    again = pagetrail(*arguments)
    assert again.exit_code == 2
    assert "never overwritten" in again.stderr
