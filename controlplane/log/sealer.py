"""Sealing beside a live writer: a thread that starts one sealing process at a time.

Sealing a segment takes a processor for seconds, so neither the writer's thread nor its process does
it. The thread is told when the writer has moved on to a new segment, looks whether more closed
segments lie there than are to be kept as they are, and then runs ``python -m
pagetrail.controlplane.log.sealer``, which seals the older ones and ends. Sealing may be killed at
any time (see ``sealing``); what it failed to do is tried again when the next segment is closed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from pagetrail.catalog.errors import PagetrailError
from pagetrail.controlplane.log.files import Files
from pagetrail.controlplane.log.segments import list_segments, log_directory

_NICENESS = 10
"""The sealing process gives way to the writer and to whoever else works on this machine."""


class Sealer:
    """Seals what lies more than ``keep`` closed segments behind the one that is written.

    ``failed`` says how often sealing has ended with an error or could not be started; why is said
    on stderr.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        self._directory = directory
        self._keep = keep
        self._wake = threading.Event()
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = False
        self.failed = 0
        self._thread = threading.Thread(target=self._run, name="fact-sealer", daemon=True)
        self._thread.start()
        self.segment_closed()  # what an earlier writer left

    def segment_closed(self) -> None:
        """There is one closed segment more. Returns at once."""
        self._wake.set()

    def close(self) -> None:
        """End the sealing process, whatever it is doing, and the thread."""
        with self._guard:
            self._closing = True
            if self._process is not None:
                self._process.terminate()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._closing:
                return
            try:
                if len(list_segments(log_directory(self._directory))) > self._keep + 1:
                    self._seal()
            except OSError as error:  # no process or no memory for one: the log goes on as it is
                print(_message(error), file=sys.stderr)
                self.failed += 1

    def _seal(self) -> None:
        command = [sys.executable, "-m", "pagetrail.controlplane.log.sealer"]
        command += ["--directory", str(self._directory), "--keep", str(self._keep)]
        command.append("--until-stdin-ends")  # so that it outlives no writer, however that ends
        with self._guard:
            if self._closing:
                return
            process = self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
            )
        process.wait()
        process.communicate()  # closes the pipe
        with self._guard:
            self._process = None
            if process.returncode and not self._closing:
                self.failed += 1


def main(argv: Sequence[str] | None = None, *, files: Files | None = None) -> int:
    """Seal the old segments of a run's log; the exit code is 0, or 1 after an error."""
    from pagetrail.controlplane.log.sealing import seal_log  # loads Parquet, which no writer needs

    parser = argparse.ArgumentParser(prog="pagetrail sealer", description="Seal old segments.")
    parser.add_argument("--directory", required=True, help="run directory; the log is its log/")
    parser.add_argument("--keep", type=int, required=True, help="newest closed segments to leave")
    parser.add_argument("--until-stdin-ends", action="store_true", help="end at once with stdin")
    arguments = parser.parse_args(argv)
    os.nice(_NICENESS)
    if arguments.until_stdin_ends:
        threading.Thread(target=_end_with_stdin, daemon=True).start()
    try:
        seal_log(arguments.directory, keep=arguments.keep, files=files)
    except (PagetrailError, OSError) as error:
        print(_message(error), file=sys.stderr)
        return 1
    return 0


def _message(error: Exception) -> str:
    return f"pagetrail sealer: {error}; tried again at the next segment"


def _end_with_stdin() -> None:
    while os.read(0, 1):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
