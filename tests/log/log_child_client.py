"""A client process for kill tests: appends numbered facts until it is killed.

Arguments: run directory, client name, endpoint. Writes one line per append that returned,
``<epoch> <client_seq>``, straight to its standard output.
"""

from __future__ import annotations

import os
import sys

from log_helpers import fact

from pagetrail.controlplane.log.client import Draft, FactClient
from pagetrail.controlplane.log.errors import SpoolFullError
from pagetrail.controlplane.log.limits import LogLimits

LIMITS = LogLimits(spool_file_bytes=20_000, message_bytes=4_000, retry_ns=50_000_000)


def main() -> None:
    directory, name, endpoint = sys.argv[1:]
    client = FactClient.open(directory, name, endpoint, limits=LIMITS)
    number = 0
    while True:
        drafts = [Draft(facts=(fact(number + i),)) for i in range(1 + number % 5)]
        try:
            positions = client.append_many(drafts)
        except SpoolFullError:
            continue
        number += len(drafts)
        last = positions[-1]
        os.write(1, f"{last.client_epoch} {last.client_seq}\n".encode())
        if number % 64 == 0:
            client.wait(last)


if __name__ == "__main__":
    main()
