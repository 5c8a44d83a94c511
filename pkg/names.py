"""What to say about a name that is not known: the nearest one that is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from pagetrail.catalog.errors import BadInputError


def unknown_name(what: str, name: str, known: Iterable[str], otherwise: str) -> BadInputError:
    """The error for an unknown name. `otherwise` says what to do when no known name is near."""
    nearest = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.5)
    hint = f"the nearest known {what} is {nearest[0]}" if nearest else otherwise
    return BadInputError(f"unknown {what} {name}; {hint}")
