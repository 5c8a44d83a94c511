"""Production writer, sealer or client over files that kill the process at one exact call.

Arguments: ``writer K WHEN DIRECTORY ENDPOINT PUBLISH``, ``sealer K WHEN`` and the sealer's own, or
``client K WHEN DIRECTORY NAME ENDPOINT``. K counts writes and fdatasyncs from 1, WHEN is ``before``
or ``after`` the call. The client prints ``<epoch> <client_seq>`` for every append that returned.
"""

from __future__ import annotations

import os
import signal
import sys

from log_helpers import fact

from pagetrail.controlplane.log.client import FactClient
from pagetrail.controlplane.log.files import OsFiles
from pagetrail.controlplane.log.limits import LogLimits
from pagetrail.controlplane.log.sealer import main as sealer_main
from pagetrail.controlplane.log.writer import main as writer_main


class KillingFiles(OsFiles):
    """Ends the process, as ``kill -9`` does, at the k-th write or fdatasync."""

    def __init__(self, call: int, when: str) -> None:
        self._left = call
        self._when = when

    def _at(self, when: str) -> None:
        if when == "before":
            self._left -= 1
        if self._left == 0 and when == self._when:
            os.kill(os.getpid(), signal.SIGKILL)

    def write(self, descriptor: int, data: bytes) -> int:
        self._at("before")
        written = super().write(descriptor, data)
        self._at("after")
        return written

    def fdatasync(self, descriptor: int) -> None:
        self._at("before")
        super().fdatasync(descriptor)
        self._at("after")


def main() -> None:
    role, call, when, *rest = sys.argv[1:]
    files = KillingFiles(int(call), when)
    if role == "sealer":
        sys.exit(sealer_main(rest, files=files))
    directory, *rest = rest
    if role == "writer":
        bind, publish = rest
        sys.exit(
            writer_main(
                ["--directory", directory, "--bind", bind, "--publish", publish], files=files
            )
        )
    name, endpoint = rest
    limits = LogLimits(spool_sync_after_ns=1_000_000, spool_file_bytes=400, retry_ns=50_000_000)
    client = FactClient.open(directory, name, endpoint, limits=limits, files=files)
    number = 0
    while True:
        position = client.append([fact(number)])
        os.write(1, f"{position.client_epoch} {position.client_seq}\n".encode())
        number += 1
        if number % 3 == 0:
            client.wait(position)


if __name__ == "__main__":
    main()
