"""The same inputs give the same bytes: now, later, elsewhere, and in the next release."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
GOLDEN = HERE / "decisions.golden"


def printed(*arguments: str, **environment: str) -> str:
    command = [sys.executable, str(HERE / "evaluate_all.py"), *arguments]
    return subprocess.run(
        command,
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
        text=True,
    ).stdout


@cache
def here_and_now() -> str:
    return printed(PYTHONHASHSEED="1", LC_ALL="C")


def some_other_locale() -> str:
    """A locale with its own order of letters when one is installed, else one with UTF-8."""
    known = subprocess.run(["locale", "-a"], check=True, capture_output=True, text=True).stdout
    names = [name for name in known.split() if name.partition(".")[0] not in ("C", "POSIX")]
    return sorted(names)[-1] if names else "C.UTF-8"


def test_a_released_evaluator_never_changes_what_it_answers() -> None:
    """Fails when an evaluator's answers change: give the new behaviour a new version.

    After adding an evaluator, append its line from ``python tests/policy/evaluate_all.py``.
    """
    assert here_and_now().splitlines() == GOLDEN.read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("date", ["1970-01-01 00:00:01", "2064-02-29 23:59:59"])
def test_no_evaluator_reads_the_clock(date: str) -> None:
    assert printed(date, PYTHONHASHSEED="1", LC_ALL="C") == here_and_now()


def test_no_evaluator_depends_on_the_order_of_hashes() -> None:
    assert printed(PYTHONHASHSEED="4242", LC_ALL="C") == here_and_now()


def test_no_evaluator_depends_on_the_locale() -> None:
    other = some_other_locale()
    assert printed(PYTHONHASHSEED="1", LC_ALL=other) == here_and_now()
