"""Processes that end themselves by SIGKILL at a chosen call of a production object.

    kill_child.py serve DIRECTORY POINT CALL   serve a trace; die at the CALL-th call of POINT
    kill_child.py writer POINT CALL -- ARGUMENTS...   the log's writer, likewise

Points of a serving process: ``spool`` (nothing is spooled yet), ``spooled`` (spooled, perhaps not
shipped), ``settle``, ``settled``, and ``writer:POINT``, which kills the writer it starts instead.
Points of a writer: ``write`` (before a frame is written), ``written`` (before it is durable),
``durable`` (before it is acknowledged).

A serving process keeps a diary of what it was promised: ``spooled CLIENT EPOCH NEXT_SEQ`` once a
spool call has returned, ``acked CLIENT EPOCH NEXT_SEQ`` once the writer has acknowledged.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from replay_runs import serve_generated

from pagetrail import log_outlet, simtrace
from pagetrail.catalog.envelope import Transaction
from pagetrail.controlplane.cluster.traceworld import Shown
from pagetrail.controlplane.log import writer
from pagetrail.controlplane.log.files import OsFiles
from pagetrail.controlplane.log.writer import WriterProcess, await_ready

DIARY = "diary.txt"


class Trap:
    """Ends the process at a call."""

    def __init__(self, point: str, call: int) -> None:
        self._point = point
        self._left = call

    def at(self, point: str) -> None:
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class TrappedFiles(OsFiles):
    """File operations of a writer; only commits to segments count."""

    def __init__(self, trap: Trap) -> None:
        self._trap = trap
        self._segments: set[int] = set()

    def open_append(self, path: Path) -> int:
        descriptor = super().open_append(path)
        if path.suffix == ".ptlog":
            self._segments.add(descriptor)
        else:
            self._segments.discard(descriptor)
        return descriptor

    def write(self, descriptor: int, data: bytes) -> int:
        if descriptor in self._segments:
            self._trap.at("write")
        return super().write(descriptor, data)

    def fdatasync(self, descriptor: int) -> None:
        mine = descriptor in self._segments
        if mine:
            self._trap.at("written")
        super().fdatasync(descriptor)
        if mine:
            self._trap.at("durable")


def trapped_outlet(directory: Path, trap: Trap) -> type[log_outlet.LogOutlet]:
    """A LogOutlet that dies where the trap says, and keeps the diary."""

    class TrappedOutlet(log_outlet.LogOutlet):
        def spool(self, client: str, transactions: list[Transaction]) -> None:
            trap.at("spool")
            super().spool(client, transactions)
            if transactions:
                self._note("spooled", client, transactions[-1].client_seq + 1)
            trap.at("spooled")

        def settle(self) -> dict[str, list[Shown]]:
            trap.at("settle")
            shown = super().settle()
            for name, client in self._clients.items():
                self._note("acked", name, client.acked_through + 1)
            trap.at("settled")
            return shown

        def _note(self, what: str, client: str, next_seq: int) -> None:
            line = f"{what} {client} {self.epochs[client]} {next_seq}\n"
            with (directory / DIARY).open("a") as diary:
                diary.write(line)

    return TrappedOutlet


def serve(directory: Path, point: str, call: int) -> None:
    """Serve a trace in ``directory`` and print the writers' process ids, one a line."""
    first = [point.removeprefix("writer:")] if point.startswith("writer:") else []
    start = log_outlet.start_writer_process

    def started(where: Path, **options: Any) -> WriterProcess:
        if first:
            trapped = first.pop()
            command = [sys.executable, __file__, "writer", trapped, str(call), "--"]
            command += ["--directory", str(where), "--clock", options["clock"]]
            process = subprocess.Popen(command, stdout=subprocess.PIPE)
            ready = await_ready(process)
        else:
            ready = start(where, **options)
        sys.stdout.write(f"{ready.process.pid}\n")
        sys.stdout.flush()
        return ready

    vars(log_outlet)["start_writer_process"] = started
    vars(simtrace)["LogOutlet"] = trapped_outlet(directory, Trap(point, call))
    serve_generated(directory, requests=14, workers=2, pages=36, keyframe_every=50)


def main() -> int:
    mode, *rest = sys.argv[1:]
    if mode == "serve":
        serve(Path(rest[0]), rest[1], int(rest[2]))
        return 0
    return writer.main(rest[3:], files=TrappedFiles(Trap(rest[0], int(rest[1]))))


if __name__ == "__main__":
    sys.exit(main())
