"""The Python in docs/datalog.md runs as it stands, on the log of a run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from pagetrail.cli import main

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "datalog.md"
BLOCKS = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Has the log of a small run with evictions in ``run``."""
    directory = tmp_path_factory.mktemp("analyst")
    arguments = ["sim", "trace", "--generate", "60", "--pages", "60", "--log"]
    answer = CliRunner().invoke(main, [*arguments, str(directory / "run")])
    assert answer.exit_code == 0, answer.output
    return directory


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_the_examples_run(directory: Path, number: int) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", BLOCKS[number]],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    if "evictions.schema" in BLOCKS[number]:
        lines = ran.stdout.splitlines()
        assert lines[:2] == ["Seq: int64", "Stream: int64"]
        assert "'Times'" in ran.stdout
    if "reconcile(replica)" in BLOCKS[number]:
        assert ran.stdout == "[('manual-1', 'unsatisfied')]\n"


def test_there_is_an_example() -> None:
    assert any("caught_up_replica" in block for block in BLOCKS)
