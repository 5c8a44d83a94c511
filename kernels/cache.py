"""Where a user's machine keeps what was made once: libraries, machine code, converted models."""

from __future__ import annotations

import os
from pathlib import Path


def cache_directory() -> Path:
    """``$XDG_CACHE_HOME/pagetrail`` or ``~/.cache/pagetrail``.

    Raises RuntimeError for a user without a home.
    """
    root = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(root) / "pagetrail"
