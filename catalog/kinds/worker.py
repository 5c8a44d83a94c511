"""The journal of a worker: its start, its keyframes, the commands and completions of its view.

A stream is a request as one worker epoch knows it, numbered from 1 in order of queueing. A node
is a run of kept page columns in the worker's radix tree, numbered in order of creation (0 is the
root). Page ids appear nowhere: which ids a stream holds is no part of the view. A *column* is one
page of every group at the same row range.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from .content import Digest

Stream = Annotated[int, Meta(description="stream number, from 1")]
NodeNumber = Annotated[int, Meta(description="kept node; 0 is the root")]
Columns = Annotated[int, Meta(description="page columns")]


class FinishReason(IntEnum):
    """Why a stream left."""

    STOP = 0
    LENGTH = 1
    CANCELLED = 2
    ERROR = 3
    HANDED_OVER = 4  # the worker gives the attempt up; the request goes on elsewhere


class DropReason(IntEnum):
    """Why a queued request left before it ran."""

    REFUSED = 0
    CANCELLED = 1


class Metric(IntEnum):
    """A measured cost that calibration smooths; the unit is part of the name."""

    PREFILL_NS_PER_TOKEN = 0
    FIRST_TOKEN_NS = 1
    DECODE_NS_PER_TOKEN = 2
    UPLOAD_NS_PER_MIB = 3
    CAPTURE_NS_PER_MIB = 4
    RAM_NS_PER_MIB = 5
    SSD_NS_PER_MIB = 6
    PEER_NS_PER_MIB = 7
    OBJECT_NS_PER_MIB = 8


class PoolSpec(msgspec.Struct, frozen=True, array_like=True):
    """One group's pool of pages."""

    name: Annotated[str, Meta(description="group name")]
    window_tokens: Annotated[int, Meta(description="rows attended; 0 means all rows")]
    pages: Annotated[int, Meta(description="pages in the pool")]
    page_bytes: Annotated[int, Meta(description="bytes of one page over slabs and layers")]


class Bound(msgspec.Struct, frozen=True, array_like=True):
    """An evaluator in force during an epoch, with its weights in full."""

    decision_kind: Annotated[int, Meta(description="kind id of the decisions it makes")]
    evaluator: Annotated[str, Meta(description="name@version")]
    weights: Annotated[bytes, Meta(description="encoding of its weights struct")]
    digest: Annotated[Digest, Meta(description="SHA-256 of name, weights and rules used")]


class WorkerStarted(msgspec.Struct, frozen=True, array_like=True):
    """First fact of a worker's epoch: everything its view starts from."""

    worker: Annotated[str, Meta(description="worker id")]
    worker_epoch: Annotated[int, Meta(description="equals the client epoch")]
    fingerprint: Annotated[Digest, Meta(description="model compatibility fingerprint")]
    pools: Annotated[tuple[PoolSpec, ...], Meta(description="one per layout group")]
    page_tokens: Annotated[int, Meta(description="tokens of a page")]
    chunk_tokens: Annotated[int, Meta(description="tokens of a durable chunk")]
    chunk_bytes: Annotated[int, Meta(description="bytes of a full chunk, all groups")]
    checkpoint_tiers: Annotated[tuple[int, ...], Meta(description="Tier each chunk is written to")]
    publish_queue_max: Annotated[int, Meta(description="most chunks waiting to be stored")]
    staging_bytes_max: Annotated[int, Meta(description="largest chunk that is captured")]
    context_tokens: Annotated[int, Meta(description="longest sequence")]
    verify_rows: Annotated[int, Meta(description="width of the draft verify window; 0 without")]
    step_rows: Annotated[int, Meta(description="most rows of one stream in one step")]
    lanes: Annotated[int, Meta(description="most streams running at once")]
    kept_columns_max: Annotated[int, Meta(description="most page columns that prompts may keep")]
    kept_nodes_max: Annotated[int, Meta(description="most kept nodes")]
    reserve_output: Annotated[bool, Meta(description="admission counts max_new_tokens")]
    costs: Annotated[tuple[tuple[int, int], ...], Meta(description="(Metric, configured ns)")]
    evaluators: Annotated[tuple[Bound, ...], Meta(description="evaluators in force")]
    previous_epoch: Annotated[int, Meta(description="the worker's epoch before; 0 none")]
    previous_chain: Annotated[bytes, Meta(description="its command chain's end; empty: none")]
    snap_slots: Annotated[int, Meta(description="slots of recurrent snapshots")] = 0
    quotas: Annotated[
        tuple[tuple[str, int], ...],
        Meta(description="(tenant, pages of each group), by tenant; all others share the rest"),
    ] = ()
    swap_bytes_max: Annotated[int, Meta(description="host memory for preempted streams")] = 0
    ram_bytes_max: Annotated[int, Meta(description="host memory for chunks")] = 0
    grows: Annotated[bool, Meta(description="streams may outgrow what admission reserved")] = False


class Keyframe(msgspec.Struct, frozen=True, array_like=True):
    """The whole view of a client at one point of its journal; replay may start here."""

    commands: Annotated[int, Meta(description="commands folded since the epoch's start")]
    chain: Annotated[Digest, Meta(description="command chain at this point")]
    state: Annotated[bytes, Meta(description="canonical encoding of the view")]


class RequestQueued(msgspec.Struct, frozen=True, array_like=True):
    """A request joins the worker's queue."""

    stream: Stream
    request: Annotated[str, Meta(description="request id")]
    attempt: Annotated[int, Meta(description="router's attempt, from 1")]
    tenant: Annotated[str, Meta(description="tenant; empty: none")]
    priority: Annotated[int, Meta(description="higher first")]
    deadline_us: Annotated[int, Meta(description="worker clock; 0 none")]
    arrival_us: Annotated[int, Meta(description="worker clock reading")]
    prompt_tokens: Annotated[int, Meta(description="tokens of the prompt")]
    max_new_tokens: Annotated[int, Meta(description="most tokens to generate, after clamping")]
    prompt_digest: Annotated[Digest, Meta(description="chain digest of the whole prompt")]
    root: Annotated[Digest, Meta(description="root of its prefix chain: the tenant's, or zeros")]
    samples: Annotated[int, Meta(description="continuations of the one prompt, by fork")] = 1


class RequestDropped(msgspec.Struct, frozen=True, array_like=True):
    """A queued request leaves without having run."""

    stream: Stream
    reason: Annotated[int, Meta(description="DropReason")]


class PagesAdopted(msgspec.Struct, frozen=True, array_like=True):
    """A stream leaves the queue and holds the first columns of a kept prompt (maybe none)."""

    stream: Stream
    node: NodeNumber
    columns: Annotated[int, Meta(description="columns of the path from the root, inside node")]
    rows: Annotated[int, Meta(description="rows counted of them; 0: every row")] = 0
    account: Annotated[int, Meta(description="place in the quotas; 0: all other tenants")] = 0


class AdoptionUndone(msgspec.Struct, frozen=True, array_like=True):
    """A stream gives back what it adopted and returns to the head of the queue."""

    stream: Stream


class PagesPromised(msgspec.Struct, frozen=True, array_like=True):
    """Free pages become the stream's to take. All groups, or nothing."""

    stream: Stream
    pages: Annotated[tuple[int, ...], Meta(description="pages per group")]


class NodesEvicted(msgspec.Struct, frozen=True, array_like=True):
    """Kept columns are given up from the tails of leaves, in this order."""

    victims: Annotated[
        tuple[tuple[int, int], ...], Meta(description="(node, columns cut from its tail)")
    ]


class RowsAdvanced(msgspec.Struct, frozen=True, array_like=True):
    """Rows whose writes have completed since the last batch; pages come from the promise."""

    entries: Annotated[tuple[tuple[int, int], ...], Meta(description="(stream, rows added)")]


class RowsRestored(msgspec.Struct, frozen=True, array_like=True):
    """Rows that a verified restore has written into the stream's own pages."""

    stream: Stream
    rows: Annotated[int, Meta(description="rows added")]
    tier: Annotated[int, Meta(description="Tier they came from")]


class RouteForked(msgspec.Struct, frozen=True, array_like=True):
    """A new stream shares the pages that cover the source's first rows."""

    stream: Stream
    source: Stream
    rows: Annotated[int, Meta(description="rows shared")]
    pages: Annotated[
        tuple[int, ...], Meta(description="promise that moves over, per group; empty: none")
    ] = ()


class PromptKept(msgspec.Struct, frozen=True, array_like=True):
    """A stream's leading columns stay in the tree after it.

    ``shared`` columns were there already, ending inside ``node``; the stream swaps to them and
    its own duplicates are freed. The rest becomes a new node below.
    """

    stream: Stream
    node: NodeNumber
    shared: Annotated[int, Meta(description="columns the tree already held")]
    columns: Annotated[int, Meta(description="columns kept in all")]
    supersedes: Annotated[
        tuple[int, ...], Meta(description="nodes whose turn this prompt continues otherwise")
    ] = ()


class StreamFinished(msgspec.Struct, frozen=True, array_like=True):
    """A stream leaves: its promise is returned and its holds are released."""

    stream: Stream
    reason: Annotated[int, Meta(description="FinishReason")]


class NodeDurable(msgspec.Struct, frozen=True, array_like=True):
    """The path to this node's first columns may be lost without losing what was to be stored.

    ``stored``: an acknowledged publication covers it. Else a checkpoint was decided against, or
    its store failed, and the loss is accepted.
    """

    node: NodeNumber
    columns: Annotated[int, Meta(description="columns of the path from the root")]
    stored: Annotated[bool, Meta(description="a publication covers it")] = True


class StreamPreempted(msgspec.Struct, frozen=True, array_like=True):
    """A running stream gives all its pages back and waits; it will go on where it stood."""

    stream: Stream
    swapped: Annotated[bool, Meta(description="its rows lie in RAM; else they are recomputed")]


class SwapBegun(msgspec.Struct, frozen=True, array_like=True):
    """A running stream gives way: its rows go to host memory, and then it is preempted."""

    stream: Stream


class SwapReleased(msgspec.Struct, frozen=True, array_like=True):
    """What was swapped out of a preempted stream is needed no longer: it has been read back, its
    rows were computed again, or the stream is given up."""

    stream: Stream


class PagesPinned(msgspec.Struct, frozen=True, array_like=True):
    """Leading columns of a stream, or of a kept path, are held while their bytes are read."""

    lease: Annotated[int, Meta(description="lease number, from 1")]
    stream: Annotated[int, Meta(description="stream that is read; 0: the kept path")]
    node: Annotated[int, Meta(description="kept node the columns end in; 0 for a stream")]
    columns: Annotated[int, Meta(description="columns from the root")]


class PagesUnpinned(msgspec.Struct, frozen=True, array_like=True):
    """A lease is returned."""

    lease: Annotated[int, Meta(description="lease number")]


class RamKeepBegun(msgspec.Struct, frozen=True, array_like=True):
    """A stream's leading columns are being copied to host memory; a lease holds them meanwhile."""

    lease: Annotated[int, Meta(description="lease number, from 1")]
    stream: Stream
    columns: Annotated[int, Meta(description="columns from the root, whole chunks")]


class RamKeepEnded(msgspec.Struct, frozen=True, array_like=True):
    """The copy to host memory is over and its lease is returned."""

    lease: Annotated[int, Meta(description="lease number")]
    rows: Annotated[int, Meta(description="rows that lie there now; 0: it failed")]


class MarkArmed(msgspec.Struct, frozen=True, array_like=True):
    """A snapshot slot is reserved for the recurrent state after a stream's first columns."""

    stream: Stream
    columns: Annotated[int, Meta(description="page edge ahead of the stream's rows")]


class MarkDisarmed(msgspec.Struct, frozen=True, array_like=True):
    """The snapshot will not be taken; its slot is free again."""

    stream: Stream
    columns: Annotated[int, Meta(description="as armed")]


class SnapshotDropped(msgspec.Struct, frozen=True, array_like=True):
    """A kept node loses the snapshot at its end; its pages stay."""

    node: NodeNumber


class CopyKept(msgspec.Struct, frozen=True, array_like=True):
    """A stream's first rows are copied into pages of their own, which stay after it."""

    stream: Stream
    rows: Annotated[int, Meta(description="rows copied; any number, not whole pages only")]
    supersedes: Annotated[tuple[int, ...], Meta(description="copies this one continues")] = ()


class CopyRestored(msgspec.Struct, frozen=True, array_like=True):
    """Rows of a kept copy have been copied into a stream's own pages."""

    stream: Stream
    copy: Annotated[int, Meta(description="copy number, from 1")]
    rows: Annotated[int, Meta(description="rows added")]


class CopiesDropped(msgspec.Struct, frozen=True, array_like=True):
    """Kept copies are given up whole."""

    copies: Annotated[tuple[int, ...], Meta(description="copy numbers")]


class Measured(msgspec.Struct, frozen=True, array_like=True):
    """A measured cost; calibration folds it."""

    metric: Annotated[int, Meta(description="Metric")]
    value: Annotated[int, Meta(description="in the metric's unit")]
