"""Building the native core: once, into a cache, and with clear words where it cannot be done."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from pagetrail.kernels import compiler, native_build
from pagetrail.kernels.cache import cache_directory
from pagetrail.kernels.cpu_open import open_cpu
from pagetrail.kernels.cpu_torch import TorchCpuDevice

COMPILER = """#!/bin/sh
# Stands for a compiler: prints a version, counts its links, writes what it is told to.
if [ "$1" = --version ]; then echo "fake 1.0"; exit 0; fi
for argument; do
  if [ "$argument" = -shared ]; then echo link >> "{log}"; fi
  out="$argument"
done
echo built > "$out"
"""


@pytest.fixture
def fake_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory on the path with a fake g++; returns the file that counts links."""
    tools, log = tmp_path / "tools", tmp_path / "links"
    tools.mkdir()
    stand_in = tools / "g++"
    stand_in.write_text(COMPILER.format(log=log))
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/bin:/bin")
    return log


def test_processes_that_start_together_build_once(fake_compiler: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    found: list[Path] = []
    threads = [
        threading.Thread(
            target=lambda: found.append(native_build.build(native_build.PORTABLE, cache))
        )
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert found[0].read_text() == "built\n"
    assert fake_compiler.read_text().splitlines() == ["link"]
    assert sorted(path.name for path in cache.iterdir()) == sorted(
        ["core-portable.lock", found[0].name]
    )


def test_each_target_has_its_own_library(fake_compiler: Path, tmp_path: Path) -> None:
    targets = (native_build.PORTABLE, native_build.V3)
    libraries = {native_build.build(target, tmp_path / "cache") for target in targets}
    assert len(libraries) == 2


def test_without_a_compiler_the_torch_path_serves_with_a_notice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(compiler.CompilerError, match=r"no C\+\+ compiler found"):
        native_build.build(native_build.PORTABLE)
    device, notice = open_cpu(2)
    assert isinstance(device, TorchCpuDevice)
    assert notice is not None
    assert "slower torch path" in notice


def test_a_compiler_that_fails_is_quoted(
    fake_compiler: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    stand_in = broken / "g++"
    stand_in.write_text(
        "#!/bin/sh\n[ $1 = --version ] && echo fake && exit\necho 'no room for me' >&2\nexit 1\n"
    )
    stand_in.chmod(0o755)
    monkeypatch.setenv("PATH", f"{broken}:/usr/bin:/bin")
    with pytest.raises(compiler.CompilerError, match="no room for me"):
        native_build.build(native_build.PORTABLE, tmp_path / "cache")
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["core-portable.lock"]


def test_a_cache_that_cannot_be_written_says_what_to_set(
    fake_compiler: Path, tmp_path: Path
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(compiler.CompilerError, match="XDG_CACHE_HOME"):
        native_build.build(native_build.PORTABLE, blocked / "native")


def test_the_cache_follows_xdg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_directory() == tmp_path / "pagetrail"
