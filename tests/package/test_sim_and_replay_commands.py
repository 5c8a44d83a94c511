"""`pagetrail sim trace` and `pagetrail replay verify` as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pagetrail.catalog.facts import KindId, decode_body
from pagetrail.catalog.kinds.decision import Outcome
from pagetrail.cli import main
from pagetrail.controlplane.log.reader import read_log
from pagetrail.controlplane.policy.outcomes import OUTCOME_TERMS
from pagetrail.replay.trace import generate_trace, write_trace

SMALL = ("--generate", "40", "--seed", "7", "--workers", "2", "--pages", "200")
# Outcomes of these come from runs that are short of room: tests/replay/test_replay_of_preemption.py
# and, for keeps in RAM, tests/engine/test_preempted_streams.py.
UNDER_PRESSURE = (KindId.PREEMPT, KindId.RESUME, KindId.KEEP)
WITHOUT_TIERS = ("--tiers", "none", "--evaluator", "residency/leaf-lru@1")


def pagetrail(*arguments: str) -> Result:
    return CliRunner().invoke(main, list(arguments))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, object]]:
    """A run directory and the report of the run that filled it."""
    directory = tmp_path_factory.mktemp("sim")
    log = ("--log", str(directory), "--json")
    answer = pagetrail("sim", "trace", *SMALL, *WITHOUT_TIERS, *log)
    assert answer.exit_code == 0, answer.output
    return directory, json.loads(answer.stdout)


def test_sim_trace_serves_every_request_and_says_where_the_log_is(
    served: tuple[Path, dict[str, object]],
) -> None:
    directory, report = served
    assert (report["requests"], report["failed"]) == (40, 0)
    assert report["log"] == str(directory)
    answer = pagetrail("facts", "verify", "--log", str(directory))
    assert answer.exit_code == 0, answer.output


def test_the_log_answers_queries_about_the_decisions_of_the_run(
    served: tuple[Path, dict[str, object]],
) -> None:
    directory, report = served
    goal = "?- decision(Seq, Kind, Subject, E, As, Ch, R, C, Rs, T, D, Al)."
    answer = pagetrail("facts", "query", goal, "--log", str(directory), "--format", "json")
    assert answer.exit_code == 0, answer.output
    kinds = [json.loads(line)["Kind"] for line in answer.stdout.splitlines()]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == report["decisions"]


def test_outcomes_have_the_values_that_are_written_down_for_their_kind(tmp_path: Path) -> None:
    answer = pagetrail("sim", "trace", *SMALL, "--log", str(tmp_path))
    assert answer.exit_code == 0, answer.output
    counts: dict[KindId, set[int]] = {}
    for frame in read_log(tmp_path):
        for fact in frame.facts():
            if fact.kind == KindId.OUTCOME:
                outcome = decode_body(fact.kind, fact.schema_v, fact.body)
                assert isinstance(outcome, Outcome)
                kind = KindId(outcome.decision_kind)
                counts.setdefault(kind, set()).add(len(outcome.values))
    expected = OUTCOME_TERMS.keys() - UNDER_PRESSURE
    assert counts == {kind: {len(OUTCOME_TERMS[kind])} for kind in expected}


def test_replay_verify_derives_every_decision_again(
    served: tuple[Path, dict[str, object]],
) -> None:
    directory, report = served
    answer = pagetrail("replay", "verify", str(directory), "--json")
    assert answer.exit_code == 0, answer.output
    verdict = json.loads(answer.stdout)
    assert verdict["ok"] is True
    assert verdict["rederived"] == report["decisions"]
    text = pagetrail("replay", "verify", str(directory), "--processes", "1")
    assert text.exit_code == 0
    assert "every decision was derived again" in text.stdout


def test_replay_explain_tells_every_decision_about_a_request_and_any_one_of_them(
    served: tuple[Path, dict[str, object]],
) -> None:
    directory, _ = served
    answer = pagetrail("replay", "explain", str(directory), "trace-9", "--json")
    assert answer.exit_code == 0, answer.output
    decisions = json.loads(answer.stdout)["decisions"]
    assert {decision["kind"] for decision in decisions} >= {"route", "admit", "restore", "keep"}
    assert {decision["verdict"] for decision in decisions} == {"derived again"}
    for decision in decisions[:2]:
        for asked in (decision["name"], str(decision["position"])):
            one = pagetrail("replay", "explain", str(directory), asked)
            assert one.exit_code == 0, one.output
            assert f"{decision['kind']} {decision['name']}" in one.stdout


def test_replay_explain_of_what_is_no_decision_ends_with_2(
    served: tuple[Path, dict[str, object]],
) -> None:
    directory, _ = served
    answer = pagetrail("replay", "explain", str(directory), "nobody")
    assert answer.exit_code == 2
    assert "no decision 'nobody'" in answer.stderr


def test_a_trace_file_gives_what_its_generator_gives(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    write_trace(file, generate_trace(7, 12))
    common = ("--pages", "200", *WITHOUT_TIERS, "--json")
    from_file = pagetrail("sim", "trace", str(file), *common, "--log", str(tmp_path / "a"))
    generated = ("--generate", "12", "--seed", "7")
    from_seed = pagetrail("sim", "trace", *generated, *common, "--log", str(tmp_path / "b"))
    reports = [json.loads(answer.stdout) for answer in (from_file, from_seed)]
    assert reports[0]["facts_by_client"] == reports[1]["facts_by_client"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give one of them"),
        (["/nonexistent.jsonl"], "cannot read the trace /nonexistent.jsonl"),
        (["--generate", "1", "--workers", "0"], "workers must be from 1"),
        (["--generate", "1", "--pages", "0"], "pages must be from 1"),
        (["--generate", "1", "--evaluator", "residency/lru"], "no evaluator 'residency/lru'"),
    ],
)
def test_what_cannot_be_simulated_ends_with_2_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    answer = pagetrail("sim", "trace", *arguments)
    assert answer.exit_code == 2
    assert said in answer.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_empty_trace_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "empty.jsonl"
    file.touch()
    answer = pagetrail("sim", "trace", str(file), "--log", str(tmp_path / "run"))
    assert answer.exit_code == 2
    assert "holds no request" in answer.stderr
    assert not (tmp_path / "run").exists()


def test_replay_of_a_directory_without_a_log_ends_with_2(tmp_path: Path) -> None:
    answer = pagetrail("replay", "verify", str(tmp_path))
    assert answer.exit_code == 2
    assert "holds no log" in answer.stderr
