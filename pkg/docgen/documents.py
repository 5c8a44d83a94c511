"""All generated documents by file name, and their comparison with a directory.

A document is a pure function of the code, so two runs give the same text.
"""

from __future__ import annotations

from pathlib import Path

from pagetrail.catalog.errors import BadInputError
from pagetrail.docgen.commands_document import commands_document
from pagetrail.docgen.config_document import config_document
from pagetrail.docgen.decisions_document import decisions_document
from pagetrail.docgen.facts_document import facts_document


def documents() -> dict[str, str]:
    """File name -> text of every generated document."""
    return {
        "commands.md": commands_document(),
        "config.md": config_document(),
        "decisions.md": decisions_document(),
        "facts.md": facts_document(),
    }


def write_documents(directory: Path) -> list[str]:
    """Writes the documents that differ from the directory's; returns their names.

    Raises BadInputError when the directory is not there.
    """
    changed = _differing(directory)
    for name, text in changed.items():
        (directory / name).write_text(text, encoding="utf-8")
    return list(changed)


def stale_documents(directory: Path) -> list[str]:
    """Names of documents that the directory lacks or holds in another form."""
    return list(_differing(directory))


def _differing(directory: Path) -> dict[str, str]:
    if not directory.is_dir():
        raise BadInputError(
            f"{directory} is no directory; expected the project's docs directory; run in the "
            "project's root or pass --directory"
        )
    return {
        name: text
        for name, text in documents().items()
        if not (directory / name).is_file()
        or (directory / name).read_text(encoding="utf-8") != text
    }
