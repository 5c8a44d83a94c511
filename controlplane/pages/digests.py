"""Digests of a prompt's pages: the keys of the content index of one process.

They never leave the process and name nothing durable (identity.py does), so they need no domain
and no version; but they are as strong, because a prompt is taken for another by them alone.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.identity import DIGEST_BYTES, ROOT

TOKEN_MAX = 2**32 - 1


def page_digests(tokens: Sequence[int], page_tokens: int, root: bytes = ROOT) -> list[bytes]:
    """One digest a page, the partly filled last one included; each commits to all before it.

    SHA-256 of the digest before (``root``: the tenant's salted root) and the page's tokens, four
    bytes each. A page that is filled in part differs from every full one by its length. Raises
    BadInputError for a token outside ``[0, 2**32)``.
    """
    if page_tokens < 1:
        raise BadInputError(f"page_tokens must be at least 1, not {page_tokens}")
    if len(root) != DIGEST_BYTES:
        raise BadInputError(f"the root must be {DIGEST_BYTES} bytes, not {len(root)}")
    try:
        body = array("I", tokens).tobytes()
    except (OverflowError, TypeError) as error:
        raise BadInputError(f"tokens must be integers in [0, {TOKEN_MAX}]: {error}") from error
    step = 4 * page_tokens
    sha256, digest = hashlib.sha256, root
    digests: list[bytes] = []
    for start in range(0, len(body), step):
        digest = sha256(digest + body[start : start + step]).digest()
        digests.append(digest)
    return digests
