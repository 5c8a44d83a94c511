"""Logs that are empty, newer than this build, still written, or asked for what is not there."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import msgspec
import pytest
from click.testing import CliRunner
from log_editor import BODY, FACTS, KIND, VERSION, EditableLog
from replay_runs import serve_generated

from pagetrail.catalog.errors import BadInputError, CorruptionError
from pagetrail.cli import main
from pagetrail.controlplane.log.clock import LogicalClock
from pagetrail.controlplane.log.committer import open_committer
from pagetrail.controlplane.log.frames import HEADER_BYTES
from pagetrail.controlplane.log.reader import log_end, read_log
from pagetrail.controlplane.log.sealing import seal_log
from pagetrail.replay.explain import explain
from pagetrail.replay.reading import LogReading, RunRead
from pagetrail.replay.report import write_report
from pagetrail.replay.verify import verify

UNKNOWN_KIND = 4_711


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("strange")
    return serve_generated(
        made, seed=7, requests=12, workers=2, pages=40, keyframe_every=30
    ).directory


def test_a_log_without_a_frame_holds_no_decision(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    result = verify(tmp_path)
    assert (result.ok, result.facts, result.decisions, result.spans) == (True, 0, 0, 0)
    told = CliRunner().invoke(main, ["replay", "verify", str(tmp_path)])
    assert told.exit_code == 0, told.output
    assert "the log holds no decision" in told.output
    with pytest.raises(BadInputError, match="holds no decision 'trace-1'"):
        explain(tmp_path, "trace-1")
    assert write_report(tmp_path, tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    "asked", ["trace-999", "router/1/999999", "router/9/1", "nobody/1/1", "9" * 40, "", "a/b/c"]
)
def test_a_decision_that_is_not_there_is_told_with_the_forms_that_are(
    directory: Path, asked: str
) -> None:
    with pytest.raises(BadInputError, match="expected client/epoch/client_seq"):
        explain(directory, asked)


def test_facts_of_kinds_and_versions_that_this_build_does_not_know_are_named(
    directory: Path, tmp_path: Path
) -> None:
    log = EditableLog.read(directory).whole_copy()
    deciders = [
        (client, transaction)
        for _, client, _, transaction in log.places()
        if client.startswith("worker-") and "@" not in client
    ]
    client, newer_kind = deciders[40]
    newer_kind[FACTS][-1][KIND] = UNKNOWN_KIND
    newer_kind[FACTS][-1][BODY] = [1, b"x", "y"]
    other, newer_version = next(
        (name, one) for name, one in deciders[60:] if name != client and len(one[FACTS]) == 1
    )
    newer_version[FACTS][0][VERSION] += 1
    log.write(tmp_path)
    result = verify(tmp_path)
    assert not result.ok
    assert any(client in told and f"fact kind {UNKNOWN_KIND}" in told for told in result.findings)
    assert any(other in told and "newer pagetrail" in told for told in result.findings)
    text = write_report(tmp_path, tmp_path / "report.html", verdict=result).read_text()
    assert f"kind {UNKNOWN_KIND}" in text


def test_a_log_of_a_newer_frame_format_is_refused_by_its_version(
    directory: Path, tmp_path: Path
) -> None:
    EditableLog.read(directory).write(tmp_path)
    (segment,) = (tmp_path / "log").iterdir()
    data = bytearray(segment.read_bytes())
    place = data.index(b"PTFR")
    data[place : place + 100] = _of_version(bytes(data[place : place + 100]), 9)
    segment.write_bytes(data)
    with pytest.raises(CorruptionError, match=r"format version 9.*newer build"):
        verify(tmp_path)


def _of_version(header: bytes, version: int) -> bytes:
    fields = header[:4] + version.to_bytes(2, "little") + header[6 : HEADER_BYTES - 4]
    return fields + google_crc32c.value(fields).to_bytes(4, "little") + header[HEADER_BYTES:]


def test_a_log_that_grows_meanwhile_is_verified_up_to_where_it_ended(
    directory: Path, tmp_path: Path
) -> None:
    """Every prefix of whole frames verifies, whichever process reads how far."""
    (segment,) = (directory / "log").glob("segment-*")
    whole = segment.read_bytes()
    ends = [0]
    for frame in read_log(directory):
        ends.append(ends[-1] + len(frame.raw))
    head = len(whole) - ends[-1]
    (tmp_path / "log").mkdir()
    growing = tmp_path / "log" / segment.name
    growing.write_bytes(whole[: head + ends[len(ends) // 2]])
    stop = threading.Event()

    def grow() -> None:
        with growing.open("ab", buffering=0) as out:
            for first in range(head + ends[len(ends) // 2], len(whole), 1_000):
                out.write(whole[first : first + 1_000])
                if stop.is_set():
                    return

    writer = threading.Thread(target=grow)
    writer.start()
    seen = []
    while writer.is_alive() or not seen:
        before = log_end(tmp_path)
        result = verify(tmp_path, processes=3)
        assert result.ok, result.findings
        assert before <= result.facts <= log_end(tmp_path)
        seen.append(result.facts)
    stop.set()
    writer.join()
    assert seen == sorted(seen)
    assert verify(tmp_path, processes=1).facts == log_end(directory)


def test_processes_agree_on_the_verdict(directory: Path) -> None:
    def judged(processes: int) -> msgspec.Struct:
        result = verify(directory, processes=processes)
        return msgspec.structs.replace(result, wall_s=0.0, decisions_per_s=0)

    assert judged(1) == judged(2) == judged(5)


def test_segments_that_are_sealed_away_while_it_verifies_change_no_verdict(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(directory / "log", tmp_path / "log")
    for _ in range(3):  # each start of a writer leaves a segment that can be sealed
        committer, _ = open_committer(tmp_path, clock=LogicalClock())
        committer.close()
    before = verify(tmp_path, processes=1)
    assert before.ok
    read = LogReading.runs

    def sealed_after_the_first(reading: LogReading) -> Iterator[RunRead]:
        runs = read(reading)
        yield next(runs)
        assert seal_log(tmp_path).segments == 3
        yield from runs

    monkeypatch.setattr(LogReading, "runs", sealed_after_the_first)
    after = verify(tmp_path, processes=1)
    assert [after.ok, after.facts, after.rederived] == [True, before.facts, before.rederived]
    assert after.unattested == before.unattested
