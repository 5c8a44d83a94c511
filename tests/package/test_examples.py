"""The examples about logs run as they stand, and their settings are settings."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pagetrail.cli import main

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("examples") / "run"
    arguments = "sim trace --generate 80 --workers 2 --pages 100 --log"
    answer = CliRunner().invoke(main, [*arguments.split(), str(directory)])
    assert answer.exit_code == 0, answer.output
    return directory


def script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_every_example_is_in_the_table() -> None:
    table = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    names = {path.name for path in EXAMPLES.iterdir() if path.is_file()} - {"README.md"}
    assert names == {name for name in names if f"[{name}]({name})" in table}


def test_rules_answer_about_a_run(run_directory: Path) -> None:
    module: dict[str, Any] = runpy.run_path(str(EXAMPLES / "ask_the_log.py"))
    tables = module["ask"](run_directory)
    whole, half = (
        {(row["Client"], row["Kind"]): row["Decisions"] for row in tables[name].to_pylist()}
        for name in ("decisions", "decisions of the first half")
    )
    assert whole["router", "route"] == 80
    assert set(half) <= set(whole)
    assert all(0 < count <= whole[key] for key, count in half.items())
    assert sum(half.values()) < sum(whole.values())
    assert tables["chunks on several workers"].column_names == ["Node", "Workers"]
    answer = script("ask_the_log.py", str(run_directory))
    assert answer.returncode == 0, answer.stderr
    assert "evictions regretted within a minute: " in answer.stdout


def test_decisions_are_checked_and_the_last_eviction_explained(run_directory: Path) -> None:
    answer = script("check_decisions.py", str(run_directory))
    assert answer.returncode == 0, answer.stderr
    assert "route: 80 derived again, 0 otherwise" in answer.stdout
    assert "\nevict worker-" in answer.stdout
    assert "; derived again" in answer.stdout


@pytest.mark.parametrize("name", ["ask_the_log.py", "check_decisions.py", "chat.py"])
def test_without_arguments_each_says_how_it_is_called(name: str) -> None:
    answer = script(name)
    assert answer.returncode == 1
    assert f"python {name} " in answer.stderr


def test_the_settings_are_accepted() -> None:
    command = ["config", "show", "--config", str(EXAMPLES / "two-workers.toml")]
    answer = CliRunner().invoke(main, command)
    assert answer.exit_code == 0, answer.output
    assert "2048" in answer.output


def test_a_chat_with_nobody_says_what_to_do() -> None:
    answer = script("chat.py", "http://127.0.0.1:1", "hello")
    assert answer.returncode == 1
    assert "is `pagetrail up` running there?" in answer.stderr
