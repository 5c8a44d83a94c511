"""The generated documents are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from pagetrail.catalog.envelope import Fact
from pagetrail.catalog.facts import KINDS
from pagetrail.config_fields import all_fields
from pagetrail.controlplane.pages.commands import OPERATIONS
from pagetrail.controlplane.policy.registry import EVALUATORS
from pagetrail.docgen.documents import documents, stale_documents

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return documents()


def test_the_committed_documents_are_what_the_code_generates() -> None:
    assert stale_documents(DOCS) == [], "run `pagetrail docs generate`"


def test_config_md_names_every_setting_with_its_variable_and_bounds(texts: dict[str, str]) -> None:
    text = texts["config.md"]
    for field in all_fields():
        (row,) = (line for line in text.splitlines() if f"`{field.variable}`" in line)
        assert row.startswith(f"| `{field.key}` |")
        assert field.expected in row


def test_facts_md_names_every_kind_every_field_and_the_envelope(
    texts: dict[str, str],
) -> None:
    lines = texts["facts.md"].splitlines()
    for kind in KINDS.values():
        (row,) = (line for line in lines if line.startswith(f"| {int(kind.id)} | `{kind.name}` |"))
        assert row.endswith(f"| {'yes' if kind.policy_visible else 'no'} |")
        for place, field in enumerate(msgspec.structs.fields(kind.struct)):
            assert any(line.startswith(f"| {place} | `{field.name}` |") for line in lines)
    for name in Fact.__struct_fields__:
        assert any(line.startswith(f"| `{name}` | ") for line in lines)


def test_no_field_of_a_fact_is_left_without_a_meaning(texts: dict[str, str]) -> None:
    text = texts["facts.md"]
    assert [line for line in text.splitlines() if line.endswith("|  |")] == []


def test_decisions_md_has_every_evaluator_with_every_term_and_weight(texts: dict[str, str]) -> None:
    text = texts["decisions.md"]
    for name, evaluator in EVALUATORS.items():
        _, heading, section = text.partition(f"\n### {name}\n")
        assert heading
        section = section.partition("\n### ")[0]
        for place, term in enumerate(evaluator.terms):
            assert f"| {place} | `{term.name}` | {term.unit} |" in section
        for weight in evaluator.weights_type.__struct_fields__:
            assert f"| `{weight}` |" in section


def test_commands_md_has_every_command_of_the_page_owner(texts: dict[str, str]) -> None:
    text = texts["commands.md"]
    names = {kind.struct: kind.name for kind in KINDS.values()}
    for struct in OPERATIONS:
        _, heading, section = text.partition(f"\n### {names[struct]}\n")
        assert heading
        assert "What the page owner does:" in section.partition("\n### ")[0]


def test_the_process_map_names_settings_and_defaults_that_exist() -> None:
    text = (DOCS / "process-map.md").read_text(encoding="utf-8")
    fields = {field.name: field for field in all_fields()}
    sections = {field.section for field in all_fields()}
    named = [n for n in re.findall(r"`([a-z]+\.[a-z_]+)`", text) if n.split(".")[0] in sections]
    assert len(named) > 5
    assert [name for name in named if name not in fields] == []
    for row in text.splitlines():
        cells = [cell.strip().strip("`") for cell in row.split("|")]
        if len(cells) > 4 and cells[1] in fields:
            assert cells[4] == fields[cells[1]].default
