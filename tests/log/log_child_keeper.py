"""Seals, lets go of and exports a log, again and again, until it is killed.

Arguments: run directory. Prints the name of each step before it begins.
"""

from __future__ import annotations

import itertools
import os
import sys
from pathlib import Path

from pagetrail.controlplane.log.export import export_log
from pagetrail.controlplane.log.reader import log_end
from pagetrail.controlplane.log.sealing import retain_log, seal_log
from pagetrail.controlplane.log.stretches import list_stretches


def main() -> None:
    directory = Path(sys.argv[1])
    for number in itertools.count():
        os.write(1, b"seal\n")
        seal_log(directory)
        os.write(1, b"retain\n")
        start = list_stretches(directory / "log").start.next_seq
        retain_log(directory, start + (log_end(directory) - start) // 2)
        os.write(1, b"export\n")
        start = list_stretches(directory / "log").start.next_seq
        out = directory / f"export-{os.getpid()}-{number}.parquet"
        export_log(directory, "parquet", out, from_seq=start)
        out.unlink()


if __name__ == "__main__":
    main()
