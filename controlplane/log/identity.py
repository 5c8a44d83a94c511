"""A log's own name: random bytes, made once, that tell it from every other log.

Clients note it with their spool and say it in their hello, so that one that was started on another
run's directory is told so by name, instead of looking like a witness to lost facts.
"""

from __future__ import annotations

import secrets
from pathlib import Path

from pagetrail.catalog.errors import CorruptionError
from pagetrail.controlplane.log.files import Files, create_durable

LOG_ID_BYTES = 16
_NAME = "identity"


def log_identity(log: Path, files: Files) -> bytes:
    """The id of the log in a directory, which gets one, durably, if it has none."""
    path = log / _NAME
    if not path.exists():
        create_durable(files, path, secrets.token_bytes(LOG_ID_BYTES))
    found = path.read_bytes()
    if len(found) != LOG_ID_BYTES:
        raise CorruptionError(
            f"{path} holds {len(found)} bytes, expected {LOG_ID_BYTES}; restore it, or remove it "
            "and give every client a new directory"
        )
    return found
