"""A process that ends with the one that started it, however that one ended.

Owns the watch on standard input. The starter keeps the other end of the pipe open and never writes;
the system closes it when the starter is gone, ``kill -9`` included, on every platform.
"""

from __future__ import annotations

import os
import signal
import threading

PIECE_BYTES = 4_096


def end_with_stdin() -> None:
    """From now on the end of standard input counts as a SIGTERM. What is read there is dropped.

    Call it after the handler of SIGTERM is in place.
    """
    threading.Thread(target=_watch, name="lifeline", daemon=True).start()


def _watch() -> None:
    try:
        while os.read(0, PIECE_BYTES):
            pass
    except OSError:
        pass  # no standard input at all: nobody holds the other end
    os.kill(os.getpid(), signal.SIGTERM)
