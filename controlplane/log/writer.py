"""Running the one writer: as a process of its own, or as a thread of a single-node program.

``python -m pagetrail.controlplane.log.writer --directory D --bind tcp://127.0.0.1:0
--publish tcp://127.0.0.1:0`` prints one line with the bound endpoints once it serves, and ends
cleanly on SIGTERM. A writer that must not go on ends with exit code 1 and one line that says why.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import msgspec

from pagetrail.catalog.errors import BadInputError, PagetrailError
from pagetrail.controlplane.log.clock import Clock, clock_of_name
from pagetrail.controlplane.log.committer import open_committer
from pagetrail.controlplane.log.endpoints import ServerKeys
from pagetrail.controlplane.log.errors import WriterStoppedError
from pagetrail.controlplane.log.files import Files, OsFiles
from pagetrail.controlplane.log.identity import log_identity
from pagetrail.controlplane.log.limits import LogLimits, check_limits
from pagetrail.controlplane.log.segments import log_directory
from pagetrail.controlplane.log.writer_loop import WriterLoop

LOOPBACK = "tcp://127.0.0.1:0"
"""A free port of this machine."""

READY = "ready"


class ReadyLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The one line, in JSON, that a writer process prints when it serves."""

    event: str
    endpoint: str
    publish: str
    writer_epoch: int
    head: int


def open_writer(
    directory: str | Path,
    *,
    bind: str = LOOPBACK,
    publish: str = LOOPBACK,
    bulk: str | None = None,
    limits: LogLimits | None = None,
    clock: Clock | None = None,
    keys: ServerKeys | None = None,
    files: Files | None = None,
    takeover: bool = False,
) -> WriterLoop:
    """Recover the log and bind the sockets; the caller runs the loop. Raises as its parts do.

    ``bulk`` is where readers fetch ranges; None takes a free port, or path, beside ``bind``.
    """
    limits = check_limits(limits or LogLimits())
    committer, frame = open_committer(
        directory, limits=limits, clock=clock, files=files, takeover=takeover
    )
    try:
        log = log_directory(Path(directory))
        return WriterLoop(
            committer,
            frame,
            log,
            log_identity(log, files or OsFiles()),
            bind=bind,
            publish=publish,
            bulk=bulk,
            limits=limits,
            keys=keys,
        )
    except BaseException:
        committer.close()
        raise


class EmbeddedWriter:
    """The writer as a thread. Its directory, limits and clock are those of ``open_writer``."""

    def __init__(
        self,
        directory: str | Path,
        *,
        bind: str = LOOPBACK,
        publish: str = LOOPBACK,
        limits: LogLimits | None = None,
        clock: Clock | None = None,
        keys: ServerKeys | None = None,
        files: Files | None = None,
        takeover: bool = False,
    ) -> None:
        self._loop = open_writer(
            directory,
            bind=bind,
            publish=publish,
            limits=limits,
            clock=clock,
            keys=keys,
            files=files,
            takeover=takeover,
        )
        self.endpoint = self._loop.endpoint
        self.publish_endpoint = self._loop.publish_endpoint
        self.failure: BaseException | None = None
        """What stopped the writer, when it was not ``close``."""
        self._running = True
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="fact-writer", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run(self._leave)
        except (PagetrailError, OSError) as error:
            self.failure = error
        except BaseException as error:
            self.failure = error
            raise

    def _leave(self) -> None:
        with self._guard:
            self._running = False

    def join(self, timeout_s: float) -> bool:
        """Wait until the writer has stopped; return whether it has."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def close(self) -> None:
        """Commit what was received, answer it, and stop. Calling it again changes nothing."""
        with self._guard:
            if self._running:
                self._loop.stop()
                self._running = False
        self._thread.join()

    def __enter__(self) -> EmbeddedWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class WriterProcess:
    """A writer in a process of its own, as ``start_writer_process`` returns it."""

    def __init__(self, process: subprocess.Popen[bytes], ready: ReadyLine) -> None:
        self.process = process
        self.endpoint = ready.endpoint
        self.publish_endpoint = ready.publish
        self.writer_epoch = ready.writer_epoch

    def terminate(self, timeout_s: float = 30) -> int:
        """Ask it to end, wait, return its exit code."""
        self.process.terminate()
        code = self.process.wait(timeout_s)
        if self.process.stdout is not None:
            self.process.stdout.close()
        return code

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> WriterProcess:
        return self

    def __exit__(self, *exc: object) -> None:
        if self.process.poll() is None:
            self.terminate()


def start_writer_process(
    directory: str | Path,
    *,
    bind: str = LOOPBACK,
    publish: str = LOOPBACK,
    clock: str = "wall",
    limits: LogLimits | None = None,
    takeover: bool = False,
    arguments: Sequence[str] = (),
) -> WriterProcess:
    """Start a writer process and wait until it serves.

    ``WriterStoppedError`` when it ends before that; its reason is on this process's stderr.
    """
    command = [sys.executable, "-m", "pagetrail.controlplane.log.writer"]
    command += ["--directory", str(directory), "--bind", bind, "--publish", publish]
    command += ["--clock", clock]
    if limits is not None:
        command += ["--limits", msgspec.json.encode(limits).decode()]
    if takeover:
        command.append("--takeover")
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE)
    return await_ready(process)


def await_ready(process: subprocess.Popen[bytes]) -> WriterProcess:
    """Read the ready line of a writer process that was started with a pipe as its stdout."""
    if process.stdout is None:
        raise BadInputError("the writer process was started without a pipe as its stdout")
    line = process.stdout.readline()
    if not line:
        code = process.wait()
        process.stdout.close()
        raise WriterStoppedError(
            f"the writer process ended with code {code} before it served; its stderr says why"
        )
    return WriterProcess(process, msgspec.json.decode(line, type=ReadyLine))


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pagetrail writer", description="Run the fact writer.")
    parser.add_argument("--directory", required=True, help="run directory; the log is its log/")
    parser.add_argument("--bind", default=LOOPBACK, help="endpoint for requests (port 0: any)")
    parser.add_argument("--publish", default=LOOPBACK, help="endpoint of the live stream")
    parser.add_argument("--bulk", help="endpoint for ranges and files; default: beside --bind")
    parser.add_argument("--clock", default="wall", help="wall or logical")
    parser.add_argument("--limits", default="{}", help="LogLimits as JSON; absent ones default")
    parser.add_argument("--takeover", action="store_true", help="fence a writer that runs here")
    parser.add_argument("--keys", type=Path, help="JSON file with public, secret and clients")
    return parser.parse_args(argv)


def serve_until_signal(loop: WriterLoop) -> None:
    """Print the ready line and serve until SIGTERM or SIGINT. Raises what stopped the loop else."""

    def on_signal(number: int, frame: FrameType | None) -> None:
        loop.stop()

    def ignore_signals() -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    ready = ReadyLine(READY, loop.endpoint, loop.publish_endpoint, loop.writer_epoch, loop.head)
    os.write(sys.stdout.fileno(), msgspec.json.encode(ready) + b"\n")
    loop.run(ignore_signals)


def main(argv: Sequence[str] | None = None, *, files: Files | None = None) -> int:
    """Run the writer until SIGTERM or SIGINT; the exit code is 0 then, 1 after an error."""
    arguments = _arguments(argv)
    try:
        limits = msgspec.json.decode(arguments.limits, type=LogLimits)
        keys = (
            msgspec.json.decode(arguments.keys.read_bytes(), type=ServerKeys)
            if arguments.keys
            else None
        )
        loop = open_writer(
            arguments.directory,
            bind=arguments.bind,
            publish=arguments.publish,
            bulk=arguments.bulk,
            limits=limits,
            clock=clock_of_name(arguments.clock),
            keys=keys,
            files=files,
            takeover=arguments.takeover,
        )
    except (PagetrailError, OSError, msgspec.MsgspecError) as error:
        print(f"pagetrail writer: {error}", file=sys.stderr)
        return 1
    try:
        serve_until_signal(loop)
    except (PagetrailError, OSError) as error:
        print(f"pagetrail writer: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
