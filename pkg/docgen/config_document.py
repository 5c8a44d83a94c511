"""docs/config.md: every setting with its bounds, default and environment variable."""

from __future__ import annotations

from pagetrail.config_fields import Field, all_fields, section_types
from pagetrail.docgen.markdown import cell, code, document, table

_INTRODUCTION = """
Each value comes from the last of these that names it: the default, the TOML file (`--config FILE`,
or the file that `PAGETRAIL_CONFIG` names), the environment, a flag (`--set section.key=value`, or
a command's own option). `pagetrail config show` prints every value and where it came from.

In the file a section is a table and a setting a key in it. In the environment and in flags a
setting that holds text takes the text as it is; any other is read as a TOML value. An unknown name
or a value out of its bounds is an error that names the source; nothing is adjusted.

Everything listens on loopback by default. `writer.bind` and `writer.publish` beyond it need
`sockets.secret_key_file` and `sockets.client_keys_directory`; `gateway.host` beyond it needs
`gateway.api_keys_file`. `worker.pages` must hold at least one sequence of `worker.context` tokens.
"""


def config_document() -> str:
    """The text of docs/config.md."""
    sections = [
        f"## [{section}]\n\n{(struct.__doc__ or '').strip()}\n\n"
        + table(
            ("key", "expected", "default", "environment", "meaning"),
            [_row(field) for field in all_fields() if field.section == section],
        )
        for section, struct in section_types().items()
    ]
    return document("Configuration", _INTRODUCTION, *sections)


def _row(field: Field) -> tuple[str, ...]:
    default = "not set" if field.default is None else code(_toml(field.default))
    return (
        code(field.key),
        cell(field.expected),
        default,
        code(field.variable),
        cell(field.description),
    )


def _toml(value: str | int | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)
