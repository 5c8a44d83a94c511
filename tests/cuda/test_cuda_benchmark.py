"""The card's benchmark rehearses on the emulator: every call of it runs, and it checks itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.slow
def test_the_rehearsal_runs_every_case_and_is_correct(tmp_path: Path) -> None:
    out = tmp_path / "rehearsal.json"
    answer = subprocess.run(
        [sys.executable, str(SCRIPT), "--rehearse", "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert answer.returncode == 0, answer.stderr[-3000:]
    result = json.loads(out.read_text())
    assert len(result["decode"]) == len(result["correctness"]) == 11
    assert all(line["relative_error"] < 1e-3 for line in result["model"])
    assert result["left_out"] == []
    assert all(line["relative_error"] < 5e-3 for line in result["correctness"])


def test_without_a_card_the_benchmark_says_so_and_writes_nothing(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a card here")
    out = tmp_path / "result.json"
    answer = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(out)],
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert answer.returncode == 1
    assert "--rehearse needs no card" in answer.stderr
    assert not out.exists()
