"""The command line: exit codes, one line for bad input, JSON, and quick imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import pagetrail
from pagetrail.cli import main


def test_help_names_every_command_and_every_command_has_help() -> None:
    top = CliRunner().invoke(main, ["--help"])
    assert top.exit_code == 0
    with main.make_context("pagetrail", ["config"], resilient_parsing=True) as ctx:
        for name in main.list_commands(ctx):
            assert name in top.output
            answer = CliRunner().invoke(main, [name, "--help"])
            assert answer.exit_code == 0, answer.output


def test_version_is_the_package_s() -> None:
    assert pagetrail.__version__ in CliRunner().invoke(main, ["--version"]).output


def test_config_show_prints_each_value_with_its_source(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text("[worker]\nlanes = 3\n", encoding="utf-8")
    answer = CliRunner().invoke(
        main,
        ["config", "show", "--json", "--config", str(file), "--set", "gateway.port=81"],
        env={"PAGETRAIL_WRITER__CLOCK": "logical"},
    )
    assert answer.exit_code == 0, answer.output
    shown = json.loads(answer.output)
    assert shown["worker.lanes"] == {"value": 3, "source": f"file {file}"}
    assert shown["gateway.port"] == {"value": 81, "source": "flag --set"}
    assert shown["writer.clock"] == {
        "value": "logical",
        "source": "environment PAGETRAIL_WRITER__CLOCK",
    }
    assert shown["worker.pages"]["source"] == "default"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["config", "show", "--set", "worker.pagez=1"], "nearest known setting is worker.pages"),
        (["config", "show", "--set", "worker.pages"], "expected SECTION.KEY=VALUE"),
        (["config", "show", "--config", "/nonexistent/x.toml"], "No such file"),
        (["bench", "catalogue"], "the nearest known bench is catalog"),
        (["docs", "generate", "--directory", "/nonexistent"], "is no directory"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(arguments: list[str], said: str) -> None:
    answer = CliRunner().invoke(main, arguments)
    assert answer.exit_code == 2
    assert answer.stdout == ""
    assert answer.stderr.count("\n") == 1
    assert said in answer.stderr


def test_a_stale_document_is_named_and_ends_with_1(tmp_path: Path) -> None:
    runner = CliRunner()
    written = runner.invoke(main, ["docs", "generate", "--directory", str(tmp_path)])
    assert written.exit_code == 0
    check = ["docs", "generate", "--check", "--directory", str(tmp_path)]
    assert runner.invoke(main, check).exit_code == 0
    stale = tmp_path / "config.md"
    stale.write_text("old\n", encoding="utf-8")
    answer = runner.invoke(main, check)
    assert answer.exit_code == 1
    assert f"stale: {stale}" in answer.output
    assert stale.read_text(encoding="utf-8") == "old\n"


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], {"duckdb", "pyarrow", "zmq", "torch", "pyDatalog", "numpy"}),
        (["facts", "--help"], {"duckdb", "pyarrow", "zmq", "torch", "pyDatalog"}),
        (["config", "show"], {"duckdb", "pyarrow", "zmq", "torch", "pyDatalog"}),
    ],
)
def test_light_commands_import_nothing_heavy(arguments: list[str], heavy: set[str]) -> None:
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from pagetrail.cli import main\n"
        f"assert CliRunner().invoke(main, {arguments!r}).exit_code == 0\n"
        f"print(sorted({heavy!r} & set(sys.modules)))\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "[]\n"
