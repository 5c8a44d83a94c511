"""Equal runs have equal bytes, whatever the clock, the seed of hashes and the locale say."""

from __future__ import annotations

import locale
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from replay_runs import by_client, serve_generated

from pagetrail.replay.verify import verify

CHILD = Path(__file__).with_name("replay_child.py")
LOCALES = ("tr_TR.UTF-8", "de_DE.UTF-8", "en_US.UTF-8", "C.UTF-8", "C.utf8", "POSIX")


def child(directory: Path, *arguments: str, **environment: str) -> list[object]:
    """What a child process that serves and evaluates prints."""
    done = subprocess.run(
        [sys.executable, str(CHILD), str(directory), *arguments],
        env={**os.environ, **environment},
        check=True,
        stdout=subprocess.PIPE,
        timeout=240,
    )
    found: list[object] = msgspec.json.decode(done.stdout)
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    return child(tmp_path_factory.mktemp("plain"), PYTHONHASHSEED="1")


def test_every_evaluator_decided_and_its_decisions_are_derived_again(plain: list[object]) -> None:
    served = plain[0]
    assert isinstance(served, dict)
    assert len(served) >= 5
    for name, (_, ok, evicted) in served.items():
        assert ok, name
        assert evicted, name


def test_another_seed_of_hashes_and_another_locale_give_the_same_bytes(
    plain: list[object], tmp_path: Path
) -> None:
    found = child(tmp_path, "--locale", _another_locale(), PYTHONHASHSEED="77")
    assert found == plain


def test_a_moved_clock_gives_the_same_bytes(plain: list[object], tmp_path: Path) -> None:
    assert child(tmp_path, "--clock", "2031-05-17 03:04:05", PYTHONHASHSEED="1") == plain


def test_two_runs_write_equal_transactions_client_by_client(tmp_path: Path) -> None:
    one, two = (
        serve_generated(tmp_path / name, requests=60, workers=3, pages=70) for name in ("a", "b")
    )
    assert by_client(one.directory) == by_client(two.directory)
    assert one.report.facts_by_client == two.report.facts_by_client


def test_serial_runs_on_the_logical_clock_write_byte_equal_logs(tmp_path: Path) -> None:
    logs = []
    for name in ("a", "b"):
        run = serve_generated(
            tmp_path / name, requests=25, workers=2, pages=50, serial=True, logical_writer=True
        )
        assert verify(run.directory, processes=1).ok
        logs.append(
            [
                (path.name, path.read_bytes())
                for path in sorted((run.directory / "log").iterdir())
                if path.suffix == ".ptlog"
            ]
        )
    assert logs[0] == logs[1]
    assert logs[0]


def _another_locale() -> str:
    """A locale of this machine, the further from plain C the better."""
    before = locale.setlocale(locale.LC_ALL)
    try:
        for name in LOCALES:
            try:
                locale.setlocale(locale.LC_ALL, name)
            except locale.Error:
                continue
            return name
    finally:
        locale.setlocale(locale.LC_ALL, before)
    return "C"
