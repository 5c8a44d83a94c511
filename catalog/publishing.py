"""How a model and its layout are stated in the log: once per fingerprint, first writer wins.

The layout says which parts every node of the model must have, so a node is whole by it and not by
what happened to be published. Publications then hold only while the log's layout is theirs.
"""

from __future__ import annotations

import msgspec

from .envelope import CompareAndSet
from .errors import BadInputError
from .identity import register_name
from .index import LiveIndex
from .kinds.content import Layout, LayoutPart, Model
from .layout import StateLayout, digest, encoding

SHARDS_MAX = 1_024


def layout_register(fingerprint: bytes) -> bytes:
    """The register that holds the layout digest of a model."""
    return register_name("model", fingerprint, "layout_digest")


def under_layout(fingerprint: bytes, layout_digest: bytes) -> CompareAndSet:
    """A precondition that changes nothing: the log states this layout for the model."""
    return CompareAndSet(layout_register(fingerprint), layout_digest, layout_digest)


def state_model(
    index: LiveIndex,
    fingerprint: bytes,
    name: str,
    layout: StateLayout,
    chunk_tokens: int,
    shards: int = 1,
) -> tuple[tuple[msgspec.Struct, ...], CompareAndSet] | None:
    """The facts of one transaction that states a model, and its precondition; None when the log
    states it already.

    Every group of the layout has one durable part per shard. Raises BadInputError when the log
    has another layout for the fingerprint.
    """
    if not 1 <= shards <= SHARDS_MAX:
        raise BadInputError(f"a model has 1 to {SHARDS_MAX} shards, not {shards}")
    ours = digest(layout)
    theirs = index.layout_digest(fingerprint)
    if theirs is not None and theirs != ours:
        raise BadInputError(
            f"the log states the layout {theirs.hex()[:16]} for model {fingerprint.hex()[:16]}, "
            f"this process has {ours.hex()[:16]}; chunks of one cannot be read as the other: run "
            "the build that the others run, or serve from another log"
        )
    if theirs is not None:
        return None
    facts = (
        Model(fingerprint, name, layout.family, ours, chunk_tokens),
        Layout(ours, encoding(layout)),
        *(
            LayoutPart(ours, group, shard)
            for group in range(len(layout.groups))
            for shard in range(shards)
        ),
    )
    return facts, CompareAndSet(layout_register(fingerprint), None, ours)
