"""The complete inputs and the choices of each kind of decision.

Inputs are built from a view, the catalog and a ``Recorded`` struct by the pure functions of
``controlplane.view`` and ``controlplane.cluster.router_view``; production and replay call the same
ones. All quantities are integers; sequences stand in a stated order.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

# ---------------------------------------------------------------- route


class RouteInputs(msgspec.Struct, frozen=True, array_like=True):
    """The workers that a request may go to, and the ways in which each could start it.

    Column by column: a worker's values stand at its place in ``workers``, those of a way to start
    at its place in ``starts``.
    """

    prompt_tokens: int
    max_new_tokens: int
    page_tokens: int
    excluded: tuple[str, ...]  # workers that declined or failed this request before
    workers: tuple[str, ...]  # in byte order of their ids
    worker_epochs: tuple[int, ...]
    online: tuple[bool, ...]
    model_loaded: tuple[bool, ...]
    context_tokens: tuple[int, ...]
    verify_rows: tuple[int, ...]
    available_pages: tuple[int, ...]  # free, less what is booked there since, and reclaimable
    queue_ns: tuple[int, ...]  # observed queue and what is booked there since
    prefill_ns_per_token: tuple[int, ...]
    first_token_ns: tuple[int, ...]
    starts: tuple[int, ...]  # of each way: the place of its worker; by (place, tier, tokens)
    tiers: tuple[int, ...]  # Tier of the prefix that is reused; -1 recompute everything
    tokens: tuple[int, ...]  # of that prefix
    load_ns: tuple[int, ...]  # bring the prefix to the host
    restore_ns: tuple[int, ...]  # bring it onto the device


class RouteReason(IntEnum):
    """Why the choice; as a column, why an alternative cannot be chosen (0: it can)."""

    ELIGIBLE = 0
    OFFLINE = 1
    MODEL_NOT_LOADED = 2
    CONTEXT_EXCEEDED = 3
    PREFIX_LONGER_THAN_REQUEST = 4
    INSUFFICIENT_PAGES = 5
    EXCLUDED = 6
    LOWEST_TTFT = 16
    NO_WORKER = 17


class RouteChoice(msgspec.Struct, frozen=True, array_like=True):
    worker: str  # empty: none can take it
    worker_epoch: int
    tier: int
    tokens: int
    ttft_ns: int


# ---------------------------------------------------------------- admit


class AdmitInputs(msgspec.Struct, frozen=True, array_like=True):
    """Per group unless said otherwise. ``need`` counts every page the stream may ever hold."""

    prompt_tokens: int
    max_new_tokens: int
    context_tokens: int
    compatible: bool  # the model and layout the request asks for are the worker's
    need: tuple[int, ...]
    adopted: tuple[int, ...]  # resident pages that the matched prefix would bring
    copy_on_write: tuple[int, ...]  # pages for a shared partial tail, inside need
    available: tuple[int, ...]  # free and not promised
    reclaimable: tuple[int, ...]  # freed by evicting all that may be evicted, matched prefix kept
    total: tuple[int, ...]
    running: int
    lanes: int
    waiting_ahead: int  # queued requests that come before this one
    bypassed: int  # times a later request was admitted past the first one waiting
    restore_ns: int  # cheapest way to bring the rest of the known prefix
    recompute_ns: int
    within_quota: bool = True  # the account's streams stay within its quota if this one starts
    within_waiting: int = 0  # waiting requests that would, of no lower priority
    preempted_ahead: int = 0  # preempted streams that wait before this request, itself none
    quota: tuple[int, ...] = ()  # the account's, per group; empty: there are no quotas
    charged: tuple[int, ...] = ()  # what the account's streams hold and may still take


class AdmitReason(IntEnum):
    FITS = 0
    FITS_AFTER_RECLAIM = 1
    NO_LANE = 2
    NO_PAGES = 3
    BEHIND_WAITING = 4
    NEVER_FITS = 5
    CONTEXT_EXCEEDED = 6
    INCOMPATIBLE = 7
    BEYOND_QUOTA = 8
    BEHIND_PREEMPTED = 9


class AdmitOutcome(IntEnum):
    ADMIT = 0
    QUEUE = 1
    REFUSE = 2


class AdmitChoice(msgspec.Struct, frozen=True, array_like=True):
    outcome: int  # AdmitOutcome
    promise: tuple[int, ...]  # need - adopted, when admitted
    reclaim: tuple[int, ...]  # pages to evict first


# ---------------------------------------------------------------- evict


class EvictInputs(msgspec.Struct, frozen=True, array_like=True):
    """The kept entries that may be evicted, and the runs of page columns that they hold.

    Column by column: a run's values stand at its place among the runs, an entry's at its place in
    ``entries``. Entries stand by (last_access, entry), bounded by the view; see ``entries_cut``.
    Evicting an entry lets go one hold on its own run and one on each of its ``further_runs``, which
    are other entries' own; those may be left out of the entries. In a group with fewer pages than
    a run has columns it holds those of its last columns.
    """

    need: tuple[int, ...]  # pages to free, per group
    run_pages: tuple[tuple[int, ...], ...]  # by group, of each run
    run_columns: tuple[int, ...]
    run_holders: tuple[int, ...]  # who holds it: kept entries, streams, leases, children
    entries: tuple[int, ...]  # node number (radix) or entry number (copy store)
    own_runs: tuple[int, ...]  # place of its own run
    further_runs: tuple[tuple[int, ...], ...]  # places of the others it holds
    last_access: tuple[int, ...]  # command count at the last touch; larger is later
    previous_access: tuple[int, ...]  # the touch before; -1 none
    accesses: tuple[int, ...]
    depth_columns: tuple[int, ...]  # columns from the root to its end
    resumed: tuple[bool, ...]  # some request has reused it
    superseded: tuple[bool, ...]  # a longer turn of the same conversation is kept
    durable: tuple[bool, ...]
    pinned: tuple[bool, ...]  # a lease, a pending append, a capture, a fork source, or protected
    dirty: tuple[bool, ...]
    reuse_ppm: tuple[int, ...]  # expected chance of reuse
    recompute_ns: tuple[int, ...]
    reload_ns: tuple[int, ...]
    sharing_ns: tuple[int, ...]  # bonus
    slo_ns: tuple[int, ...]  # bonus
    entries_cut: int  # kept entries that were left out, all accessed later


class EvictReason(IntEnum):
    """Why the plan; as a column, why a candidate was not chosen."""

    CHOSEN = 0
    NOT_NEEDED = 1
    SHARED = 2
    PINNED = 3
    DIRTY = 4
    NOT_DURABLE = 5
    FREES_NOTHING = 6
    NOT_A_LEAF = 7
    REACHED = 16
    SHORTFALL = 17


class EvictChoice(msgspec.Struct, frozen=True, array_like=True):
    victims: tuple[tuple[int, int], ...]  # (entry, columns cut from its tail), in order
    freed: tuple[int, ...]  # per group
    shortfall: tuple[int, ...]  # per group; all zero unless the plan is empty


# ---------------------------------------------------------------- restore


class RestoreOption(msgspec.Struct, frozen=True, array_like=True):
    """A known prefix in one tier, cut at one boundary."""

    tier: int  # Tier
    worker: str  # holder for PEER, else empty
    tokens: int  # prefix length it would give
    cost_ns: int  # until it is on the device


class RestoreInputs(msgspec.Struct, frozen=True, array_like=True):
    """``options`` by (tier, tokens, worker)."""

    resident_tokens: int
    reusable_tokens: int  # prompt - 1: the last prompt token always stays pending
    page_tokens: int
    pages_for_restore: int  # promised pages that may receive it, scarcest group
    prefill_ns_per_token: int
    options: tuple[RestoreOption, ...]


class RestoreReason(IntEnum):
    """Why the choice; as a column, why an option cannot be used."""

    ELIGIBLE = 0
    NOT_LONGER_THAN_RESIDENT = 1
    LONGER_THAN_REQUEST = 2
    PRESSURE = 3
    RESIDENT = 16
    CHEAPEST = 17
    RECOMPUTE = 18


class RestoreChoice(msgspec.Struct, frozen=True, array_like=True):
    tier: int  # Tier; DEVICE: what is resident is enough; -1 recompute
    worker: str
    tokens: int  # prefix tokens present before prefill starts
    cost_ns: int  # restore and prefill of the rest


# ---------------------------------------------------------------- checkpoint


class CheckpointInputs(msgspec.Struct, frozen=True, array_like=True):
    """May the not yet durable chunks of a finished prompt be written down?"""

    tokens: int  # whole chunks that are not durable yet
    size_bytes: int
    depth_tokens: int  # prefix before them
    reuse_ppm: int  # expected reuse
    recompute_ns: int  # of those tokens
    reload_ns: int
    capture_ns: int  # measured cost of capturing them
    staging_bytes: int  # size of the largest single chunk
    staging_bytes_max: int
    queued: int
    queue_max: int
    tier_free_bytes: int  # -1 unbounded


class CheckpointReason(IntEnum):
    WORTH_IT = 0
    NOTHING_NEW = 1
    NO_VALUE = 2
    QUEUE_FULL = 3
    TOO_LARGE = 4
    TIER_FULL = 5


class CheckpointChoice(msgspec.Struct, frozen=True, array_like=True):
    capture: bool
    value_ns: int  # expected saving less the cost


# ---------------------------------------------------------------- keep


class KeepInputs(msgspec.Struct, frozen=True, array_like=True):
    """May a finished prompt stay on the device?"""

    columns: int  # columns that would be kept
    shared: int  # of those, in the tree already
    kept_columns: int
    kept_columns_max: int
    kept_nodes: int
    kept_nodes_max: int
    new_nodes: int = 1  # nodes the keep adds; 2 when the shared part ends inside a node
    reclaim_failed: bool = False  # making room was tried, and could not be reached
    ram_columns: int = 0  # columns of the prompt's whole chunks
    ram_bytes: int = 0  # what those take in host memory
    ram_bytes_max: int = 0


class KeepReason(IntEnum):
    KEEP = 0
    NOTHING_NEW = 1
    TOO_MANY_COLUMNS = 2
    TOO_MANY_NODES = 3
    KEEP_AFTER_RECLAIM = 4
    NOTHING_TO_RECLAIM = 5


class KeepChoice(msgspec.Struct, frozen=True, array_like=True):
    keep: bool
    columns: int
    reclaim_columns: int  # kept columns to evict first


class KeepOrRamChoice(KeepChoice, frozen=True, array_like=True):
    """``ram_columns``: columns that go to host memory instead of staying."""

    ram_columns: int = 0


# ---------------------------------------------------------------- preempt, resume


class PreemptCandidate(msgspec.Struct, frozen=True, array_like=True):
    stream: int
    priority: int
    arrival_us: int
    pages: tuple[int, ...]  # freed, per group
    rows: int
    swap_ns: int  # out and back in
    recompute_ns: int
    account: int = 0
    borrows: bool = False  # the account holds more than its quota
    swap_bytes: int = 0  # of host memory


class PreemptInputs(msgspec.Struct, frozen=True, array_like=True):
    """``candidates`` by stream number, without the one that asks."""

    need: tuple[int, ...]
    priority: int  # of the stream that asks
    swap_bytes_free: int
    page_bytes: tuple[int, ...]
    candidates: tuple[PreemptCandidate, ...]
    asker: PreemptCandidate | None = None


class PreemptReason(IntEnum):
    ELIGIBLE = 0
    HIGHER_PRIORITY = 1
    NOT_NEEDED = 2
    WITHIN_QUOTA = 3
    CHEAPEST = 16
    SHORTFALL = 17
    GIVES_WAY = 18


class PreemptChoice(msgspec.Struct, frozen=True, array_like=True):
    victims: tuple[tuple[int, bool], ...]  # (stream, swap out; else recompute)
