"""Imports go one way: kernels, catalog <- controlplane <- pkg; replay reads the first three.

Checked twice: over the syntax of every module, lazy and type-only imports included, and by what a
fresh process has loaded afterwards.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from arrows import ROOMS, When, imports_of, modules, room_of

MAY_READ = {
    "pagetrail.kernels": {"pagetrail.kernels"},
    "pagetrail.catalog": {"pagetrail.catalog"},
    "pagetrail.controlplane": {"pagetrail.kernels", "pagetrail.catalog", "pagetrail.controlplane"},
    "pagetrail.replay": {"pagetrail.catalog", "pagetrail.controlplane", "pagetrail.replay"},
    "pagetrail": set(ROOMS),
}
# Modules of pkg that only a command imports, when it is named; these may read replay themselves.
BEHIND_COMMANDS = ("pagetrail.bench.", "pagetrail.demo.", "pagetrail.sim")
HEAVY = {"zmq", "duckdb", "torch", "pyarrow", "pyDatalog", "cupy"}
DEVICE_AND_SOCKETS = {"zmq", "duckdb", "torch", "cupy"}
# The modules of controlplane that own a socket or its process; all others are pure or plain files.
SOCKET_MODULES = {
    "pagetrail.controlplane.log.bulk",
    "pagetrail.controlplane.log.client",
    "pagetrail.controlplane.log.curve",
    "pagetrail.controlplane.log.history",
    "pagetrail.controlplane.log.shipper",
    "pagetrail.controlplane.log.stream",
    "pagetrail.controlplane.log.writer",
    "pagetrail.controlplane.log.writer_loop",
}


def outside_arrows(module: str, file: Path, known: dict[str, Path]) -> list[str]:
    room = room_of(module)
    wrong = []
    for found in imports_of(module, file, known):
        if found.target != "pagetrail" and not found.target.startswith("pagetrail."):
            continue
        # `pagetrail` itself only names the version, which a report of replay states.
        lent_name = found.target == "pagetrail" and room not in ("pagetrail", "pagetrail.replay")
        outside = found.target != "pagetrail" and room_of(found.target) not in MAY_READ[room]
        if lent_name or outside:
            wrong.append(f"{file}:{found.line}: {module} imports {found.target}")
        elif (
            room == "pagetrail"
            and room_of(found.target) == "pagetrail.replay"
            and found.when is When.LOAD
            and not module.startswith(BEHIND_COMMANDS)
        ):
            wrong.append(f"{file}:{found.line}: {module} imports {found.target} when loaded")
    return wrong


def loaded_by(imports: list[str]) -> set[str]:
    """Names in sys.modules of a fresh process that has imported these modules."""
    script = "import sys, importlib\n" + "".join(
        f"importlib.import_module({name!r})\n" for name in imports
    )
    answer = subprocess.run(
        [sys.executable, "-c", script + "print('\\n'.join(sys.modules))"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    return set(answer.stdout.split())


def pure_controlplane() -> list[str]:
    return [
        name
        for name in modules()
        if room_of(name) == "pagetrail.controlplane" and name not in SOCKET_MODULES
    ]


def test_no_module_imports_against_the_arrows() -> None:
    known = modules()
    assert len(known) > 10
    wrong = [line for name, file in known.items() for line in outside_arrows(name, file, known)]
    assert wrong == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("pagetrail.kernels.plan", "import pagetrail.catalog.facts"),
        ("pagetrail.catalog.replica", "from pagetrail import controlplane"),
        ("pagetrail.catalog.replica", "from ..controlplane.log import frames"),
        ("pagetrail.controlplane.view", "def f():\n    from pagetrail.config import Config"),
        ("pagetrail.controlplane.view", "import pagetrail.replay.verify"),
        ("pagetrail.controlplane.view", "from pagetrail import __version__"),
        ("pagetrail.replay.verify", "import pagetrail.cli"),
        ("pagetrail.replay.verify", "if TYPE_CHECKING:\n    import pagetrail.engine.loop"),
        ("pagetrail.cli", "from pagetrail.replay import verify"),
    ],
)
def test_a_planted_import_against_the_arrows_is_found(
    tmp_path: Path, module: str, source: str
) -> None:
    file = tmp_path / "planted.py"
    file.write_text(source + "\n", encoding="utf-8")
    known = modules() | {module: file, "pagetrail.replay.verify": file}
    assert len(outside_arrows(module, file, known)) == 1


def test_what_stands_behind_commands_is_imported_by_them_alone_and_lazily() -> None:
    known = modules()
    wrong = [
        f"{name} line {found.line}: {found.target}"
        for name, file in known.items()
        if not name.startswith(BEHIND_COMMANDS)
        for found in imports_of(name, file, known)
        if found.target.startswith(BEHIND_COMMANDS) and found.when is When.LOAD
    ]
    assert wrong == []


def test_the_socket_modules_named_here_exist() -> None:
    assert set(modules()) >= SOCKET_MODULES


def test_pure_modules_of_controlplane_name_no_device_socket_or_database() -> None:
    known = modules()
    wrong = [
        f"{name} line {found.line}: {found.target}"
        for name in pure_controlplane()
        for found in imports_of(name, known[name], known)
        if found.when is not When.TYPES
        and (found.target.partition(".")[0] in DEVICE_AND_SOCKETS or found.target in SOCKET_MODULES)
    ]
    assert wrong == []


def test_loading_every_pure_module_loads_no_device_socket_or_database() -> None:
    loaded = loaded_by(pure_controlplane())
    assert "pagetrail.controlplane" in loaded
    assert loaded & DEVICE_AND_SOCKETS == set()
    assert {name for name in loaded if name in modules() and room_of(name) == "pagetrail"} == {
        "pagetrail"
    }


@pytest.mark.parametrize("package", ["pagetrail", "pagetrail.catalog", "pagetrail.controlplane"])
def test_importing_a_package_imports_nothing_heavy(package: str) -> None:
    assert loaded_by([package]) & (HEAVY | {"numpy", "click", "rich"}) == set()


def test_loading_replay_loads_nothing_of_the_serving_process() -> None:
    names = [name for name in modules() if room_of(name) == "pagetrail.replay"]
    loaded = {name for name in loaded_by(names) if name in modules()}
    assert {name for name in loaded if room_of(name) == "pagetrail"} == {"pagetrail"}
