"""Options that several commands share, and how they become a configuration."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from pagetrail.catalog.errors import BadInputError
from pagetrail.config_load import LoadedConfig, load_config

Function = TypeVar("Function", bound=Callable[..., Any])


def config_options(command: Function) -> Function:
    """Adds `--config FILE` and `--set SECTION.KEY=VALUE`, passed on as `config` and `set_`."""
    command = click.option(
        "--set",
        "set_",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Set one setting; wins over the environment and the file. May be repeated.",
    )(command)
    return click.option(
        "--config",
        type=click.Path(path_type=Path),
        help="TOML file of settings; else the file that PAGETRAIL_CONFIG names.",
    )(command)


def configuration(
    config: Path | None, set_: tuple[str, ...], given: Mapping[str, tuple[str, str | None]]
) -> LoadedConfig:
    """The configuration of a command.

    `given` maps `section.key` to (flag, text) for the command's own flags; a text of None means
    that the flag was not given. A command's own flag wins over `--set` of the same key.
    """
    flags: dict[str, tuple[str, str]] = {}
    for text in set_:
        name, separator, value = text.partition("=")
        if not separator:
            raise BadInputError(
                f"--set {text} names no value; expected SECTION.KEY=VALUE, for example "
                "--set worker.pages=4096"
            )
        flags[name] = ("--set", value)
    for name, (flag, own) in given.items():
        if own is not None:
            flags[name] = (flag, own)
    return load_config(config, os.environ, flags)


def lifeline_option(command: Function) -> Function:
    """Adds `--until-stdin-ends`, passed on as `until_stdin_ends`."""
    return click.option(
        "--until-stdin-ends",
        is_flag=True,
        help="Stop also when standard input ends: for a process that starts others.",
    )(command)


def log_option(command: Function) -> Function:
    """Adds `--log DIR`, the directory of a run; passed on as `log`."""
    return click.option(
        "--log",
        type=click.Path(path_type=Path),
        required=True,
        help="Directory of the run.",
    )(command)
