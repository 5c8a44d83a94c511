"""A prompt's digests from its tokens: computed by whoever decides, never taken on trust."""

from __future__ import annotations

import numpy as np

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.identity import chain, prefix_chain, salted_root
from pagetrail.controlplane.cluster.messages import Prompt


def prompt_of(
    tokens: tuple[int, ...],
    salt: bytes | None,
    page_tokens: int,
    chunk_tokens: int,
    *,
    fresh: bool = False,
) -> Prompt:
    """A prompt's digests. Whole pages may be kept, whole chunks stored, and the last token never
    reused; of a ``fresh`` prompt nothing is."""
    if not tokens:
        raise BadInputError("a prompt has at least one token")
    root = salted_root(salt)
    body = np.asarray(tokens, np.int64)
    whole_pages, whole_chunks = len(tokens) // page_tokens, len(tokens) // chunk_tokens
    pages = prefix_chain(body[: whole_pages * page_tokens], page_tokens, root)
    chunks = prefix_chain(body[: whole_chunks * chunk_tokens], chunk_tokens, root)
    return Prompt(
        tokens=len(tokens),
        digest=chain(root, body),
        root=root,
        pages=pages,
        chunks=chunks,
        adoptable=0 if fresh else (len(tokens) - 1) // page_tokens,
        fresh=fresh,
    )
