"""A local cluster: writer, gateway and workers as processes of their own on loopback.

Owns the processes: starts them in order, says when they serve, kills and restarts single ones when
told (the demo does), and ends them in the order that loses nothing.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.config import Config

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0
SPACE_MIN_BYTES = 4_096


def check_before_start(config: Config, port: int) -> None:
    """What would end a cluster while it starts, found before anything is written.

    Raises BadInputError (and its kinds) for a model that cannot be opened and a port in use.
    """
    from pagetrail.engine.weights import open_model
    from pagetrail.sockets import listen

    open_model(config.model.name)
    listen(config.gateway.host, port).close()


@dataclass(slots=True)
class Process:
    """One process of the cluster; its stderr is in a file."""

    name: str
    popen: subprocess.Popen[bytes]
    ready: dict[str, Any]
    errors: Path
    killed: bool = False


@dataclass(frozen=True, slots=True)
class ClusterOptions:
    """``settings`` are ``--set`` values for every process; ``worker_settings`` for workers."""

    directory: Path
    workers: int
    settings: tuple[str, ...] = ()
    gateway_port: int = 0
    writer_clock: str = "wall"
    config: Path | None = None


@dataclass(slots=True)
class LocalCluster:
    """See the module. Use as a context manager."""

    options: ClusterOptions
    processes: dict[str, Process] = field(default_factory=dict)

    def __enter__(self) -> LocalCluster:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    @property
    def url(self) -> str:
        """Where clients connect."""
        return str(self.processes["gateway"].ready["url"])

    @property
    def model(self) -> str:
        """The name that clients ask for."""
        return str(self.processes["gateway"].ready["model"])

    def worker_names(self) -> list[str]:
        """Ids of the workers."""
        return [f"worker-{number}" for number in range(self.options.workers)]

    def start(self) -> None:
        """Start everything and wait until it serves."""
        (self.options.directory / "run").mkdir(parents=True, exist_ok=True)
        self.start_writer()
        self.start_gateway()
        for name in self.worker_names():
            self._spawn_worker(name)
        for name in self.worker_names():
            self._await(name)

    def start_writer(self) -> None:
        """Start the writer, on its old endpoints when it has had some."""
        before = self.processes.get("writer")
        bind = before.ready["endpoint"] if before else "tcp://127.0.0.1:0"
        publish = before.ready["publish"] if before else "tcp://127.0.0.1:0"
        clock = self.options.writer_clock
        self._spawn("writer", "writer", "--bind", bind, "--publish", publish, "--clock", clock)
        self._await("writer")

    def start_gateway(self) -> None:
        """Start the gateway, on its old port when it has had one."""
        before = self.processes.get("gateway")
        port = self.options.gateway_port
        cluster = "tcp://127.0.0.1:0"
        if before is not None:
            port = int(before.ready["url"].rpartition(":")[2])
            cluster = before.ready["cluster"]
        self._spawn(
            "gateway",
            "gateway",
            *self._log_arguments(),
            "--set",
            f"gateway.port={port}",
            "--set",
            f"gateway.cluster={cluster}",
        )
        self._await("gateway")

    def start_worker(self, name: str) -> None:
        """Start one worker and wait until it serves."""
        self._spawn_worker(name)
        self._await(name)

    def kill(self, name: str) -> None:
        """End a process at once, as a crash would."""
        process = self.processes[name]
        process.killed = True
        process.popen.kill()
        process.popen.wait()

    def check(self) -> None:
        """Raises PagetrailError when a process has ended by itself."""
        for name, process in list(self.processes.items()):
            code = process.popen.poll()
            if code is not None and not process.killed:
                raise PagetrailError(
                    f"{name} ended with code {code}: {_last_words(process.errors)}"
                )

    def stop(self) -> None:
        """End workers first, then the gateway, then the writer, each cleanly."""
        workers = [name for name in self.processes if name.startswith("worker-")]
        for group in (workers, ["gateway"], ["writer"]):
            running = [self.processes[name] for name in group if name in self.processes]
            for process in running:
                if process.popen.poll() is None:
                    process.popen.send_signal(signal.SIGTERM)
            for process in running:
                try:
                    process.popen.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.popen.kill()
                    process.popen.wait()
                for pipe in (process.popen.stdin, process.popen.stdout):
                    if pipe is not None:
                        pipe.close()

    # ---- inside

    def _spawn_worker(self, name: str) -> None:
        self._spawn(
            name,
            "worker",
            *self._log_arguments(),
            "--set",
            f"worker.id={name}",
            "--set",
            f"gateway.cluster={self.processes['gateway'].ready['cluster']}",
        )

    def _log_arguments(self) -> list[str]:
        writer = self.processes["writer"].ready
        return [
            "--set",
            f"writer.bind={writer['endpoint']}",
            "--set",
            f"writer.publish={writer['publish']}",
        ]

    def _spawn(self, name: str, command: str, *arguments: str) -> None:
        before = self.processes.get(name)
        if before is not None and before.popen.poll() is None:
            raise BadInputError(f"{name} is running; stop it before it is started again")
        argv = [sys.executable, "-m", "pagetrail", command]
        if self.options.config is not None:
            argv += ["--config", str(self.options.config)]
        for setting in self.options.settings:
            argv += ["--set", setting]
        argv += ["--set", f"run.directory={self.options.directory}", *arguments]
        argv += ["--until-stdin-ends"]  # the pipe that only this process holds
        errors = self.options.directory / "run" / f"{name}.log"
        environment = os.environ | {"OMP_WAIT_POLICY": "passive"}
        with errors.open("ab") as handle:
            popen = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=handle,
                env=environment,
            )
        self.processes[name] = Process(name, popen, {}, errors)

    def _await(self, name: str) -> None:
        process = self.processes[name]
        if process.popen.stdout is None:
            raise BadInputError(f"{name} was started without a pipe")
        deadline_s = time.monotonic() + START_TIMEOUT_S
        line = _first_line(process.popen.stdout, deadline_s)
        if not line:
            code = process.popen.wait(STOP_TIMEOUT_S)
            raise PagetrailError(
                f"{name} ended with code {code} before it served: {_last_words(process.errors)}"
            )
        process.ready = json.loads(line)


def _first_line(pipe: IO[bytes], deadline_s: float) -> bytes:
    os.set_blocking(pipe.fileno(), False)
    got = b""
    while b"\n" not in got:
        if time.monotonic() > deadline_s:
            raise PagetrailError(f"a process did not serve within {START_TIMEOUT_S} s")
        try:
            piece = os.read(pipe.fileno(), 65_536)
        except BlockingIOError:
            time.sleep(0.02)
            continue
        if not piece:
            return b""
        got += piece
    return got.partition(b"\n")[0]


def _last_words(errors: Path) -> str:
    text = errors.read_text(encoding="utf-8", errors="replace").strip()
    if text:
        return text.splitlines()[-1][:500]
    if shutil.disk_usage(errors).free < SPACE_MIN_BYTES:
        return f"{os.strerror(errno.ENOSPC)} ({errors.parent}), not even for its message; make room"
    return "it said nothing"
