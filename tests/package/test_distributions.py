"""Wheel, source distribution and editable install hold every module and data file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = {
    "pkg": "pagetrail",
    "kernels": "pagetrail/kernels",
    "catalog": "pagetrail/catalog",
    "controlplane": "pagetrail/controlplane",
    "replay": "pagetrail/replay",
}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def run(*command: str, cwd: Path, **environment: str) -> str:
    answer = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files git would put into a clone, links as links, in a place of their own."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout, so the files of a fresh clone are not known")
    folder = tmp_path_factory.mktemp("clone") / "pagetrail"
    listed = run("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", cwd=ROOT)
    for name in sorted(filter(None, listed.split("\0"))):
        if os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope="module")
def built(clone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source distribution and the wheel that was built out of it."""
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--outdir", str(folder), cwd=clone)
    return folder


def files_of(clone: Path) -> set[str]:
    """Every file of the five folders, by its place in the package: none is there for show."""
    return {
        f"{package}/{file.relative_to(clone / folder)}"
        for folder, package in FOLDERS.items()
        for file in (clone / folder).rglob("*")
        if file.is_file() and not file.is_symlink()
    }


def test_the_source_distribution_holds_every_module_and_data_file(clone: Path, built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    assert not [m.name for m in members if m.issym() or m.islnk()]
    held = {m.name.partition("/.links/")[2] for m in members if "/.links/" in m.name}
    assert files_of(clone) - held == set()


def test_the_wheel_holds_every_module_and_data_file_once_and_nothing_else(
    clone: Path, built: Path
) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names))
    assert {name for name in names if ".dist-info/" not in name} == files_of(clone)
    assert any(name.endswith("/licenses/LICENSE") for name in names)


def test_an_installed_wheel_runs_the_command_line_away_from_the_clone(
    built: Path, tmp_path: Path
) -> None:
    (wheel,) = built.glob("*.whl")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
    run(*pip, str(wheel), cwd=tmp_path)
    script = (
        "import pagetrail, pagetrail.cli\n"
        "print(pagetrail.__file__)\n"
        "pagetrail.cli.main(['config', 'show'])\n"
    )
    shown = run(sys.executable, "-c", script, cwd=tmp_path, PYTHONPATH=str(site))
    assert shown.startswith(str(site))
    assert "worker.page_tokens" in shown


def test_an_editable_install_imports_from_the_clone(clone: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    run(str(python), "-m", "pip", "install", "--quiet", "--no-deps", "-e", ".", cwd=clone)
    where = run(str(python), "-c", "import pagetrail.catalog as c; print(c.__file__)", cwd=tmp_path)
    assert Path(where.strip()).resolve() == (clone / "catalog/__init__.py").resolve()
    assert (tmp_path / "venv/bin/pagetrail").is_file()
