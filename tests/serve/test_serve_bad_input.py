"""What serving cannot use ends with code 2 and one line, and leaves nothing half-written."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from serving import TINY_SETTINGS

from pagetrail.controlplane.log.writer import EmbeddedWriter

PAGETRAIL = [sys.executable, "-m", "pagetrail"]


def run(*arguments: str, before: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*(before or []), *PAGETRAIL, *arguments], capture_output=True, text=True, timeout=240
    )


def one_line(ended: subprocess.CompletedProcess[str], *words: str) -> None:
    assert ended.returncode == 2, ended.stderr
    lines = ended.stderr.strip().splitlines()
    assert len(lines) == 1, ended.stderr
    assert lines[0].startswith("pagetrail: ")
    for word in words:
        assert word in lines[0]


def tiny_settings(tiny: Path) -> list[str]:
    return [
        item for setting in (f"model.name={tiny}", *TINY_SETTINGS) for item in ("--set", setting)
    ]


@pytest.mark.parametrize(
    "command", ["up", "worker", "gateway", pytest.param("demo", marks=pytest.mark.slow)]
)
def test_a_missing_model_is_named_before_anything_is_written(tmp_path: Path, command: str) -> None:
    directory = tmp_path / "run"
    model = ["--model", "/no/such/model"] if command in ("up", "demo") else []
    given = model or ["--set", "model.name=/no/such/model"]
    one_line(
        run(command, "--directory", str(directory), *given),
        "no model at '/no/such/model'",
        "give a Hugging Face directory",
    )
    assert not directory.exists()


@pytest.mark.parametrize("command", ["up", "gateway"])
def test_a_port_in_use_is_named_before_anything_is_written(
    tmp_path: Path, tiny: Path, command: str
) -> None:
    directory = tmp_path / "run"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        one_line(
            run(
                command,
                "--directory",
                str(directory),
                *tiny_settings(tiny),
                "--port",
                str(port),
            ),
            f"cannot listen on 127.0.0.1:{port}",
            "gateway.port",
        )
    assert not directory.exists()


def test_a_directory_that_is_not_empty_is_not_taken_for_a_demo(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep", encoding="utf-8")
    one_line(run("demo", "--directory", str(tmp_path)), "is not an empty directory")
    assert (tmp_path / "mine").read_text(encoding="utf-8") == "keep"


def test_a_corrupt_segment_stops_up_and_is_not_touched(tmp_path: Path, tiny: Path) -> None:
    with EmbeddedWriter(tmp_path):
        pass
    with EmbeddedWriter(tmp_path):
        pass
    segment = min((tmp_path / "log").glob("segment-*"))
    body = bytearray(segment.read_bytes())
    body[len(body) // 3] ^= 0x10
    segment.write_bytes(body)
    ended = run("up", "--directory", str(tmp_path), "--port", "0", *tiny_settings(tiny))
    one_line(ended, "writer ended with code 2 before it served", segment.name)
    assert segment.read_bytes() == bytes(body)
    assert not (tmp_path / "spool").exists()


# Mounts of a child's own namespace: mode bits prove nothing to a superuser.
UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]


def mounts(directory: Path, options: str) -> list[str]:
    """The start of a command line that has a tmpfs at ``directory``; skips where none may be."""
    script = f'mount -t tmpfs -o {options} tmpfs "{directory}" && exec "$@"'
    before = [*UNSHARE, "sh", "-c", script, "sh"]
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    if subprocess.run([*before, "true"], capture_output=True).returncode != 0:
        pytest.skip("this system lets no process mount a file system")
    return before


@pytest.mark.parametrize("command", ["up", "writer"])
def test_a_read_only_mount_is_refused_by_name(tmp_path: Path, tiny: Path, command: str) -> None:
    directory = tmp_path / "mounted"
    directory.mkdir()
    inside = directory / "run"
    model = tiny_settings(tiny) if command == "up" else []
    free = ["--port", "0"] if command == "up" else []
    ended = run(
        command, "--directory", str(inside), *model, *free, before=mounts(directory, "ro,size=1m")
    )
    one_line(ended, "Read-only file system", str(inside))


def test_a_full_disk_stops_up_with_its_reason(tmp_path: Path, tiny: Path) -> None:
    directory = tmp_path / "mounted"
    directory.mkdir()
    ended = run(
        "up",
        "--directory",
        str(directory / "run"),
        "--port",
        "0",
        *tiny_settings(tiny),
        before=mounts(directory, "size=8k"),
    )
    one_line(ended, "No space left on device")
