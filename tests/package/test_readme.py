"""What the README tells a newcomer to type works, and what it links to exists."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from pagetrail.cli import main

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def code_blocks() -> list[str]:
    return re.findall(r"^```\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def pagetrail_commands(block: str) -> list[list[str]]:
    """The arguments of every pagetrail command of a block, in order."""
    steps = [step.strip() for line in block.splitlines() for step in line.split("&&")]
    words = [shlex.split(step.removeprefix("$ ")) for step in steps if "pagetrail" in step]
    return [w[1:] for w in words if w and w[0].removeprefix(".venv/bin/") == "pagetrail"]


def run_here(arguments: list[str]) -> str:
    answer = CliRunner().invoke(main, arguments)
    assert answer.exit_code == 0, answer.output
    return answer.stdout


def test_its_two_commands_each_begin_with_python3_alone() -> None:
    alone = [block for block in code_blocks() if block.startswith("python3 -m venv .venv && ")]
    assert len(alone) == 2
    assert all(block.count("\n") == 1 for block in alone)
    assert alone[1].rstrip().endswith(".venv/bin/pytest")


def test_every_link_leads_to_a_file_of_the_project() -> None:
    targets = re.findall(r"\]\(([^)#]+)\)", README)
    assert targets
    assert [target for target in targets if not (ROOT / target).exists()] == []


@pytest.mark.slow
def test_its_commands_do_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, _, _, shown, _, look = code_blocks()
    commands = "\n".join(line for line in shown.splitlines() if line.startswith("$ "))
    said = "".join(run_here(arguments) for arguments in pagetrail_commands(commands))
    timed = re.compile(r"^took|^facts|facts, ")  # seconds, and bytes, which hold clock readings
    expected = [line for line in shown.splitlines() if line[:1] != "$" and not timed.search(line)]
    assert [line for line in said.splitlines() if not timed.search(line)] == expected
    looks = pagetrail_commands(look)
    assert len(looks) == 5
    for arguments in looks:
        assert run_here(arguments)
