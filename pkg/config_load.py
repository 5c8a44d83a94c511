"""Reads the configuration: TOML file < environment < flags, and remembers who said what.

Sections are tables, keys are fields; in the environment `PAGETRAIL_SECTION__KEY`, as a flag
`--set section.key=value`. Environment and flags carry text: a field that holds text takes it as it
is, any other field reads it as a TOML value (`8`, `true`). An unknown section, key or variable is
refused with the nearest known name; nothing is clamped. The environment is handed in, never read
here.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from pagetrail.catalog.errors import BadInputError
from pagetrail.config import Config
from pagetrail.config_checks import check_config
from pagetrail.config_fields import ENVIRONMENT_PREFIX, Field, all_fields, section_types
from pagetrail.names import unknown_name

CONFIG_FILE_VARIABLE = "PAGETRAIL_CONFIG"
CONFIG_FILE_BYTES_MAX = 1 << 20


class Source(Enum):
    """Who set a value; a later member overrides an earlier one."""

    DEFAULT = "default"
    FILE = "file"
    ENVIRONMENT = "environment"
    FLAG = "flag"


@dataclass(frozen=True, slots=True)
class Origin:
    """Where one value came from: the source and its own name for it (a path, a variable)."""

    source: Source
    name: str = ""

    def __str__(self) -> str:
        return f"{self.source.value} {self.name}".rstrip()


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A checked configuration and, by `section.key`, where each of its values came from."""

    config: Config
    origins: Mapping[str, Origin]


@dataclass(frozen=True, slots=True)
class _Setting:
    value: object
    origin: Origin


def load_config(
    file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, tuple[str, str]],
) -> LoadedConfig:
    """Merges the sources and checks the result.

    `file` None means the file that `PAGETRAIL_CONFIG` names, if any. `flags` maps `section.key` to
    (name of the flag as the user knows it, its text). Raises BadInputError for an unreadable file,
    an unknown name, a value out of its bounds, or values that do not go together; the message
    names the source.
    """
    fields = {field.name: field for field in all_fields()}
    if file is None and CONFIG_FILE_VARIABLE in environment:
        file = Path(environment[CONFIG_FILE_VARIABLE])
    settings: dict[str, _Setting] = {}
    if file is not None:
        settings.update(_settings_of_file(file, fields))
    settings.update(_settings_of_environment(environment, fields))
    settings.update(_settings_of_flags(flags, fields))
    sections: dict[str, msgspec.Struct] = {}
    for section, struct in section_types().items():
        given = {
            field.key: _converted(field, settings[field.name])
            for field in fields.values()
            if field.section == section and field.name in settings
        }
        sections[section] = struct(**given)
    config = Config(**sections)  # type: ignore[arg-type]  # section_types pairs name and struct
    check_config(config)
    origins = {
        name: settings[name].origin if name in settings else Origin(Source.DEFAULT)
        for name in fields
    }
    return LoadedConfig(config, origins)


def _settings_of_file(file: Path, fields: Mapping[str, Field]) -> dict[str, _Setting]:
    origin = Origin(Source.FILE, str(file))
    try:
        with file.open("rb") as stream:
            data = stream.read(CONFIG_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadInputError(
            f"cannot read the configuration file {file}: {error.strerror}; "
            "expected a readable TOML file; correct --config or PAGETRAIL_CONFIG"
        ) from error
    if len(data) > CONFIG_FILE_BYTES_MAX:
        raise BadInputError(
            f"the configuration file {file} is larger than {CONFIG_FILE_BYTES_MAX} bytes; "
            "expected a few tables of settings; check that it is the right file"
        )
    try:
        document = tomllib.loads(data.decode("utf-8"))
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError both are
        raise BadInputError(
            f"the configuration file {file} is not TOML: {error}; correct it there"
        ) from error
    settings: dict[str, _Setting] = {}
    for section, table in document.items():
        if section not in section_types():
            raise _unknown("section", section, section_types(), origin)
        if not isinstance(table, dict):
            raise BadInputError(
                f"{section} in {file} holds {table!r}; expected a table [{section}] of settings"
            )
        for key, value in table.items():
            name = f"{section}.{key}"
            if name not in fields:
                raise _unknown("setting", name, fields, origin)
            settings[name] = _Setting(value, origin)
    return settings


def _settings_of_environment(
    environment: Mapping[str, str], fields: Mapping[str, Field]
) -> dict[str, _Setting]:
    by_variable = {field.variable: field for field in fields.values()}
    settings: dict[str, _Setting] = {}
    for variable in sorted(environment):
        if not variable.startswith(ENVIRONMENT_PREFIX) or "__" not in variable:
            continue  # not a setting: PAGETRAIL_CONFIG, or a variable of somebody else
        origin = Origin(Source.ENVIRONMENT, variable)
        if variable not in by_variable:
            raise _unknown("variable", variable, by_variable, origin)
        field = by_variable[variable]
        settings[field.name] = _Setting(_value_of_text(field, environment[variable]), origin)
    return settings


def _settings_of_flags(
    flags: Mapping[str, tuple[str, str]], fields: Mapping[str, Field]
) -> dict[str, _Setting]:
    settings: dict[str, _Setting] = {}
    for name, (flag, text) in flags.items():
        origin = Origin(Source.FLAG, flag)
        if name not in fields:
            raise _unknown("setting", name, fields, origin)
        settings[name] = _Setting(_value_of_text(fields[name], text), origin)
    return settings


def _value_of_text(field: Field, text: str) -> object:
    """Text as given for a text field, else a TOML value; text that is none is left to the check."""
    if field.takes_text:
        return text
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _converted(field: Field, setting: _Setting) -> Any:
    try:
        return msgspec.convert(setting.value, type=field.type)
    except msgspec.ValidationError as error:
        raise BadInputError(
            f"{field.name} = {setting.value!r} (from {setting.origin}); expected "
            f"{field.expected}; correct or remove it"
        ) from error


def _unknown(what: str, name: str, known: Iterable[str], origin: Origin) -> BadInputError:
    error = unknown_name(what, name, known, "`pagetrail config show` lists them all")
    return BadInputError(f"{origin}: {error}; correct or remove it")
