"""The generated documents are those of the code."""

from __future__ import annotations

from pathlib import Path

from pagetrail.config_fields import all_fields
from pagetrail.docgen.documents import documents, stale_documents

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_committed_documents_are_what_the_code_generates() -> None:
    assert stale_documents(DOCS) == [], "run `pagetrail docs generate`"


def test_config_md_names_every_setting_with_its_variable_and_bounds() -> None:
    text = documents()["config.md"]
    for field in all_fields():
        (row,) = (line for line in text.splitlines() if f"`{field.variable}`" in line)
        assert row.startswith(f"| `{field.key}` |")
        assert field.expected in row
