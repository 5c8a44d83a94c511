"""`pagetrail layout`: figures worked by hand, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pagetrail.cli import main


def layout(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["layout", *arguments])


def test_a_worked_example_gives_the_bytes_worked_by_hand() -> None:
    # 18 layers, every 6th global: 3 global and 15 windowed; key and value of 1 head of 256 in two
    # bytes are 1,024 B a layer and token: 3,072 B and 15,360 B, on pages of 16 tokens 16 times it.
    answer = layout("gemma-3-270m", "--dtype", "fp16", "--json")
    assert answer.exit_code == 0, answer.output
    shown = json.loads(answer.stdout)
    places = [shown["headings"].index(name) for name in ("group", "B a token", "B a page")]
    rows = [[row[place] for place in places] for row in shown["rows"][:2]]
    assert rows == [["global", "3,072", "49,152"], ["window", "15,360", "245,760"]]
    text = layout("gemma-3-270m", "--dtype", "fp16").stdout
    assert all(cell in text for row in rows for cell in row)  # also where the terminal is narrow


def test_a_model_directory_is_read_by_its_config(tmp_path: Path) -> None:
    fields = {"model_type": "llama", "num_hidden_layers": 2, "num_key_value_heads": 3}
    (tmp_path / "config.json").write_text(json.dumps(fields | {"head_dim": 8}), encoding="utf-8")
    answer = layout(str(tmp_path), "--dtype", "fp32", "--page-tokens", "32", "--json")
    assert answer.exit_code == 0, answer.output
    first = json.loads(answer.stdout)["rows"][0]
    assert f"{2 * 2 * 3 * 8 * 4:,}" in first  # layers, key and value, heads, width, bytes
    assert f"{2 * 2 * 3 * 8 * 4 * 32:,}" in first
    assert layout(str(tmp_path / "config.json"), "--dtype", "fp32").exit_code == 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"model_type": "unheard"}', "'unheard' has no worked layout"),
        ('{"model_type": "llama"}', "num_hidden_layers"),
        ("[1]", "holds no JSON object"),
        ("{", "is not JSON"),
        ("\x80", "is not JSON"),
    ],
)
def test_a_config_that_gives_no_layout_ends_with_2(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text.encode("latin-1"))
    answer = layout(str(file))
    assert answer.exit_code == 2
    assert said in answer.stderr


def test_a_model_that_is_not_there_ends_with_2_and_names_the_examples() -> None:
    answer = layout("llama-9")
    assert answer.exit_code == 2
    assert "llama-3.1-8b" in answer.stderr
