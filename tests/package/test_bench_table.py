"""Results of benches have one form, whichever bench they come from, and are shown whole."""

from __future__ import annotations

from importlib import import_module

import msgspec
import pytest
from rich.console import Console

from pagetrail.bench.table import BenchResult, BenchRow, bench_table, result_from_plain
from pagetrail.catalog.errors import BadInputError
from pagetrail.cli import main

ROW = {"case": "append", "unit": "facts/s", "ours": 421_000.0, "peer": "redis", "theirs": None}
RESULT = {"bench": "log", "machine": "a machine", "rows": [ROW | {"ratio": None}]}


def test_a_result_survives_the_way_to_plain_data_and_back() -> None:
    row = BenchRow("append", "us", 1.25, "floor", 2.5, 2.0, "at least 1", True)
    result = BenchResult("log", "a machine", (row,))
    assert result_from_plain(msgspec.to_builtins(result)) == result


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        (RESULT | {"rows": [ROW | {"case": 3}]}, "rows[0].case"),
        (RESULT | {"rows": [ROW | {"speed": 3}]}, "speed"),
        ({"bench": "log", "rows": []}, "machine"),
        (RESULT | {"rows": [{"case": "x", "unit": "us"}]}, "ours"),
    ],
)
def test_a_result_of_another_form_is_refused_with_the_place(
    plain: dict[str, object], said: str
) -> None:
    with pytest.raises(BadInputError, match="another form") as caught:
        result_from_plain(plain)
    assert said in str(caught.value)


def test_the_table_shows_figures_and_leaves_an_absent_peer_empty() -> None:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(bench_table(result_from_plain(RESULT)))
    (line,) = (text for text in captured.get().splitlines() if "append" in text)
    cells = [cell.strip() for cell in line.strip("│").split("│")]
    assert cells == ["append", "421,000", "facts/s", "redis", "", "", "", ""]


def test_every_bench_that_the_command_names_can_be_run() -> None:
    with main.make_context("pagetrail", ["bench"], resilient_parsing=True) as ctx:
        bench = main.get_command(ctx, "bench")
    assert bench is not None
    assert bench.epilog is not None
    names = [part.partition(":")[0].strip() for part in bench.epilog.split("of: ")[1].split(";")]
    assert {"catalog", "pages"} <= set(names)
    for name in names:
        assert callable(import_module(f"pagetrail.bench.{name}").run)
