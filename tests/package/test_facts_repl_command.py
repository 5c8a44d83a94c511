"""A conversation with a log: queries over several lines, commands, and errors that end nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from pagetrail.cli import main
from pagetrail.commands.facts_repl import completions


@pytest.fixture(scope="module")
def run_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("repl") / "run"
    arguments = ["sim", "trace", "--generate", "40", "--pages", "60", "--log", str(directory)]
    assert CliRunner().invoke(main, arguments).exit_code == 0
    return directory


def _say(directory: Path, *lines: str) -> str:
    answer = CliRunner().invoke(
        main, ["facts", "repl", "--log", str(directory)], input="\n".join(lines) + "\n"
    )
    assert answer.exit_code == 0, answer.output
    return answer.output


def test_a_query_may_take_several_lines(run_directory: Path) -> None:
    said = _say(run_directory, "n(count(Seq)) :-", " route(seq: Seq).", "?- n(N).")
    assert "40" in said


def test_an_error_is_told_and_the_conversation_goes_on(run_directory: Path) -> None:
    said = _say(run_directory, "?- nodee(S).", "n(count(S)) :- keep(seq: S). ?- n(N).")
    assert "did you mean node?" in said
    assert "40" in said


def test_as_of_goes_back_and_forth(run_directory: Path) -> None:
    ask = "n(count(S)) :- fact(seq: S). ?- n(N)."
    said = _say(run_directory, ":as-of 10", ask, ":as-of now", ask, ":quit", "never read")
    assert "10" in said.split()
    assert "never" not in said


def test_predicates_are_listed_with_their_columns(run_directory: Path) -> None:
    said = _say(run_directory, ":predicates nodes_evicted", ":what")
    assert "nodes_evicted(seq, " in said
    assert ":quit" in said


def test_sealing_one_open_segment_changes_nothing(run_directory: Path) -> None:
    answer = CliRunner().invoke(main, ["facts", "seal", "--log", str(run_directory)])
    assert answer.exit_code == 0
    assert "sealed 0 segments" in answer.output
    answer = CliRunner().invoke(
        main, ["facts", "retain", "--log", str(run_directory), "--keep-from", "5"]
    )
    assert "removed 0 segments; the log now starts at 0" in answer.output


def test_rules_without_a_query_are_kept_replaced_and_forgotten(run_directory: Path) -> None:
    said = _say(
        run_directory,
        "n(count(S)) :- route(seq: S).",
        "?- n(N).",
        "n(count(S)) :- route(seq: S), S < 0.",
        "?- n(N).",
        ":rules",
        ":forget n",
        "?- n(N).",
        ":forget n",
    )
    assert said.count("kept: n") == 2
    assert "40" in said.split()
    assert "0 rows" in said
    assert "n(count(S)) :- route(seq: S), S < 0." in said.splitlines()
    assert "unknown predicate n" in said
    assert "no rules of n are kept; :rules lists those that are" in said


def test_values_of_parameters_are_set_once_and_asked_for_by_name(run_directory: Path) -> None:
    ask = "?- demand_in_force(D, N, W, T, P)."
    said = _say(run_directory, ask, ":set now_us=5", ask, ":set nothing", ":set now_us=text", ask)
    assert "$now_us (INT) has no value; give it one with :set now_us=VALUE" in said
    assert "0 rows" in said
    assert "nothing is not NAME=VALUE" in said
    assert "wrong type" in said


def test_a_query_is_explained_with_strata_sql_and_plan(run_directory: Path) -> None:
    said = _say(run_directory, ":explain ?- led_to(Before, 17).")
    assert "stratum 0: led_to" in said
    assert "WITH RECURSIVE" in said
    assert "-- answer" in said


def test_a_position_beyond_the_log_is_refused(run_directory: Path) -> None:
    assert "facts; give a position up to that" in _say(run_directory, ":as-of 99999999")


def test_tab_offers_predicates_and_commands() -> None:
    assert completions("node_", ["node", "node_event", "model"]) == ["node_event("]
    assert completions(":e", ["e"]) == [":explain"]
    assert completions("zzz", ["node"]) == []
