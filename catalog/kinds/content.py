"""Facts about what is stored where: models, layouts, nodes, parts, copies, demands, tenants."""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta

Digest = Annotated[bytes, Meta(min_length=32, max_length=32)]


class Tier(IntEnum):
    """Where attention state can be. Device and RAM are never catalog copies."""

    DEVICE = 0
    RAM = 1
    SSD = 2
    PEER = 3
    OBJECT = 4


class CopyState(IntEnum):
    """Progress of one copy of one part."""

    COPYING = 0
    READY = 1
    FAILED = 2


class Model(msgspec.Struct, frozen=True, array_like=True):
    """A model as served; stated once per fingerprint, by compare-and-set."""

    fingerprint: Annotated[Digest, Meta(description="compatibility fingerprint")]
    name: Annotated[str, Meta(description="name that clients ask for")]
    family: Annotated[str, Meta(description="architecture family")]
    layout_digest: Annotated[Digest, Meta(description="digest of the state layout")]
    chunk_tokens: Annotated[int, Meta(description="tokens of a durable chunk")]


class Layout(msgspec.Struct, frozen=True, array_like=True):
    """The state layout behind a digest, in its canonical encoding."""

    layout_digest: Annotated[Digest, Meta(description="SHA-256 of the encoding")]
    encoding: Annotated[bytes, Meta(description="canonical encoding of the StateLayout")]


class LayoutPart(msgspec.Struct, frozen=True, array_like=True):
    """A part that every node of the layout must have; stated with the layout, all at once."""

    layout_digest: Annotated[Digest, Meta(description="layout that demands it")]
    group: Annotated[int, Meta(description="layout group")]
    shard: Annotated[int, Meta(description="tensor shard; 0 when there is one")]


class Node(msgspec.Struct, frozen=True, array_like=True):
    """A durable prefix: one chunk and, through its parent, everything before it."""

    node_id: Annotated[Digest, Meta(description="digest of fingerprint and prefix")]
    fingerprint: Annotated[Digest, Meta(description="compatibility fingerprint")]
    prefix: Annotated[Digest, Meta(description="chain digest at the chunk's end")]
    parent_prefix: Annotated[Digest, Meta(description="chain digest at its start; a root has none")]
    token_start: Annotated[int, Meta(description="first token of the chunk")]
    token_end: Annotated[int, Meta(description="one past its last token")]
    tenant: Annotated[str, Meta(description="owner; empty when unsalted")]


class Part(msgspec.Struct, frozen=True, array_like=True):
    """One group's and shard's bytes of a node, bound to their content by compare-and-set."""

    part_id: Annotated[Digest, Meta(description="digest of node and coordinates")]
    node_id: Annotated[Digest, Meta(description="node the part belongs to")]
    group: Annotated[int, Meta(description="layout group")]
    shard: Annotated[int, Meta(description="tensor shard; 0 when there is one")]
    content_id: Annotated[Digest, Meta(description="BLAKE3-256 of the payload")]
    size_bytes: Annotated[int, Meta(description="payload length")]


class Copy(msgspec.Struct, frozen=True, array_like=True):
    """Where a part's bytes are. A copy is visible to lookups when it is ready."""

    part_id: Annotated[Digest, Meta(description="part that is stored")]
    worker: Annotated[str, Meta(description="holder; empty for the shared object store")]
    tier: Annotated[int, Meta(description="Tier: SSD, PEER or OBJECT")]
    state: Annotated[int, Meta(description="CopyState")]
    location: Annotated[str, Meta(description="key inside the tier")]


class Demand(msgspec.Struct, frozen=True, array_like=True):
    """A wish that a node be present somewhere. Its absence never allows a deletion.

    Stated by whoever wishes, as are leases and roots; the serving processes state none."""

    demand: Annotated[str, Meta(description="id given by the owner")]
    node_id: Annotated[Digest, Meta(description="node that is wanted")]
    worker: Annotated[str, Meta(description="where; empty for the object store")]
    tier: Annotated[int, Meta(description="Tier wanted")]
    owner: Annotated[str, Meta(description="who asks")]
    tenant: Annotated[str, Meta(description="on whose account")]
    priority: Annotated[int, Meta(description="higher first")]
    expires_us: Annotated[int, Meta(description="log time after which it is void; 0 never")]


class RetentionLease(msgspec.Struct, frozen=True, array_like=True):
    """Protects a node and its ancestors from collection until it is retracted."""

    lease: Annotated[str, Meta(description="id given by the owner")]
    node_id: Annotated[Digest, Meta(description="protected node")]
    owner: Annotated[str, Meta(description="who holds it")]
    expires_us: Annotated[int, Meta(description="log time after which it is void; 0 never")]


class RetentionRoot(msgspec.Struct, frozen=True, array_like=True):
    """Everything reachable from this node is protected history."""

    name: Annotated[str, Meta(description="name of the root")]
    node_id: Annotated[Digest, Meta(description="protected node")]


class Tenant(msgspec.Struct, frozen=True, array_like=True):
    """A tenant and its quotas."""

    tenant: Annotated[str, Meta(description="name")]
    root: Annotated[Digest, Meta(description="salted root of its prefix chains")]
    quota_pages: Annotated[int, Meta(description="device pages; 0 unlimited")]
    quota_bytes: Annotated[int, Meta(description="durable bytes; 0 unlimited")]


class WorkerEpoch(msgspec.Struct, frozen=True, array_like=True):
    """A worker's start. It ends everything that its earlier epochs claimed to hold in memory."""

    worker: Annotated[str, Meta(description="worker id")]
    worker_epoch: Annotated[int, Meta(description="strictly rising")]
    endpoint: Annotated[str, Meta(description="where it listens; empty inside a simulator")]


class Reuse(msgspec.Struct, frozen=True, array_like=True):
    """Reuse of a node as one worker observed it, aggregated; a later fact replaces an earlier.

    Stated by whoever aggregates what the worker's decisions and pages_adopted facts say."""

    node_id: Annotated[Digest, Meta(description="reused node")]
    worker: Annotated[str, Meta(description="observer")]
    hits: Annotated[int, Meta(description="requests that reused it, since the worker's start")]
    tokens: Annotated[int, Meta(description="tokens saved by them")]
