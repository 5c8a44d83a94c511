"""A cluster whose starter was killed ends by itself, cleanly, and leaves a log that verifies."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from serving import TINY_SETTINGS, WAIT_S, completion, prompt_tokens, wait_until_settled

from pagetrail.controlplane.log.reader import read_log

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").is_dir(), reason="finds the processes in Linux's /proc"
)


def children(parent: int) -> list[int]:
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii")
    return [int(word) for word in text.split()]


def has_ended(process: int) -> bool:
    """Gone, or dead and only waiting for whoever inherited it to take note."""
    try:
        text = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return True
    return text.rpartition(")")[2].split()[0] == "Z"


def test_writer_gateway_and_workers_end_after_a_kill_of_up(tmp_path: Path, tiny: Path) -> None:
    directory = tmp_path / "run"
    argv = [sys.executable, "-m", "pagetrail", "up", "--directory", str(directory), "--port", "0"]
    for setting in (f"model.name={tiny}", *TINY_SETTINGS):
        argv += ["--set", setting]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        url = up.stdout.readline().split(" at ")[1].split("/v1")[0]
        with httpx.Client(base_url=url, timeout=WAIT_S) as client:
            model = client.get("/v1/models").json()["data"][0]["id"]
            completion(client, model, prompt_tokens(1, 40), max_tokens=4)
            wait_until_settled(client)
        started = children(up.pid)
        assert len(started) == 3
        up.kill()
    deadline = time.monotonic() + WAIT_S
    while not all(has_ended(process) for process in started):
        assert time.monotonic() < deadline, "a process outlived the one that started it"
        time.sleep(0.02)
    assert sum(1 for frame in read_log(directory) for _ in frame.facts()) > 0
    verified = subprocess.run(
        [sys.executable, "-m", "pagetrail", "replay", "verify", str(directory)],
        capture_output=True,
        text=True,
    )
    assert verified.returncode == 0, verified.stdout + verified.stderr
