"""StateLayout: what a model family's attention state is made of, and how many bytes it takes.

A family declares slabs (arrays with one row per token, or one block per stream) and groups of
them; everything else is arithmetic done here, once, for router, worker and engine: page and
stream sizes, what windows still read, what a restore moves, how a device's room is split. Owns the
canonical encoding of a layout, which is part of the model's identity. Allocates nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum, IntEnum

import msgspec

from .errors import BadInputError
from .identity import Canonical, canonical

_LAYOUT_DOMAIN = b"pagetrail/layout/1\n"
_SLABS_MAX = 64
_GROUPS_MAX = 64
_LAYERS_MAX = 4_096
_ELEMENTS_MAX = 2**32
_PAGE_TOKENS_MAX = 65_536
_BYTES_MAX = 2**60


class ElementType(Enum):
    """How one element of a slab is stored: name on the wire, bytes."""

    FP32 = ("fp32", 4)
    FP16 = ("fp16", 2)
    BF16 = ("bf16", 2)
    FP8_E4M3 = ("fp8_e4m3", 1)
    INT8 = ("int8", 1)

    @property
    def size_bytes(self) -> int:
        """Bytes of one element."""
        return self.value[1]


class Extent(IntEnum):
    """Which rows of a group a stream must have."""

    TOKEN = 0  # every row
    WINDOW = 1  # the last rows only
    SEQUENCE = 2  # no rows: one block per stream


@dataclass(frozen=True, slots=True)
class Slab:
    """An array per layer. ``elements``: per token row; per stream in a sequence group."""

    name: str
    layers: int
    elements: int
    dtype: ElementType

    @property
    def row_bytes(self) -> int:
        """Bytes of one layer's row (or block)."""
        return self.elements * self.dtype.size_bytes


@dataclass(frozen=True, slots=True)
class Group:
    """Slab layers that have one extent, and share pages. ``members``: (slab, layer), in order."""

    name: str
    extent: Extent
    members: tuple[tuple[int, int], ...]
    window_tokens: int = 0  # rows attended, the current one among them


@dataclass(frozen=True, slots=True)
class StateLayout:
    """The attention state of one stream.

    ``fixed_bytes``: per stream at any length, sequence groups included. ``snap_bytes``: the slot
    of one kept recurrent snapshot; 0 without recurrent state. ``lookahead``: tokens past its own
    row that a drafter's row depends on. Raises BadInputError for a layout that cannot be: every
    slab layer belongs to exactly one group.
    """

    family: str
    slabs: tuple[Slab, ...]
    groups: tuple[Group, ...]
    page_tokens: int
    fixed_bytes: int = 0
    snap_bytes: int = 0
    lookahead: int = 0

    def __post_init__(self) -> None:
        _check_range("page_tokens", self.page_tokens, 1, _PAGE_TOKENS_MAX)
        _check_range("fixed_bytes", self.fixed_bytes, 0, _BYTES_MAX)
        _check_range("snap_bytes", self.snap_bytes, 0, _BYTES_MAX)
        _check_range("lookahead", self.lookahead, 0, self.page_tokens)
        _check_range("number of slabs", len(self.slabs), 1, _SLABS_MAX)
        _check_range("number of groups", len(self.groups), 1, _GROUPS_MAX)
        for slab in self.slabs:
            _check_range(f"layers of slab {slab.name!r}", slab.layers, 1, _LAYERS_MAX)
            _check_range(f"elements of slab {slab.name!r}", slab.elements, 1, _ELEMENTS_MAX)
        _check_unique("slab", [slab.name for slab in self.slabs])
        _check_unique("group", [group.name for group in self.groups])
        self._check_members()
        sequence_bytes = sum(
            self.row_bytes(place)
            for place, group in enumerate(self.groups)
            if group.extent is Extent.SEQUENCE
        )
        if self.fixed_bytes < sequence_bytes:
            raise BadInputError(
                f"{self.family}: fixed_bytes is {self.fixed_bytes}, and the sequence groups alone "
                f"take {sequence_bytes}; declare at least that"
            )

    def _check_members(self) -> None:
        wanted = {(s, layer) for s, slab in enumerate(self.slabs) for layer in range(slab.layers)}
        seen: set[tuple[int, int]] = set()
        for group in self.groups:
            if not group.members:
                raise BadInputError(f"group {group.name!r} has no member; leave it out")
            if group.extent is Extent.WINDOW:
                _check_range(f"window of group {group.name!r}", group.window_tokens, 2, 2**31)
            elif group.window_tokens:
                raise BadInputError(
                    f"group {group.name!r} has a window of {group.window_tokens} and keeps "
                    f"{group.extent.name.lower()} state; only a window group has one"
                )
            for member in group.members:
                if member not in wanted:
                    raise BadInputError(f"group {group.name!r} names {member}, which is no slab's")
                if member in seen:
                    raise BadInputError(f"slab and layer {member} stand in two groups")
                seen.add(member)
        if seen != wanted:
            raise BadInputError(
                f"slab and layer {min(wanted - seen)} stand in no group; put each in exactly one"
            )

    def row_bytes(self, group: int) -> int:
        """Bytes of one row of a group over its members (of its block, for a sequence group)."""
        return sum(self.slabs[slab].row_bytes for slab, _ in self.groups[group].members)

    def page_bytes(self, group: int) -> int:
        """Bytes of one page of a group."""
        return self.row_bytes(group) * self.page_tokens

    def paged_groups(self) -> tuple[int, ...]:
        """Groups that have pages."""
        return tuple(
            place for place, group in enumerate(self.groups) if group.extent is not Extent.SEQUENCE
        )


def one_group(slabs: tuple[Slab, ...]) -> tuple[Group, ...]:
    """The implicit group of a family without windows and recurrent state: everything, by layer."""
    members = tuple(
        (place, layer)
        for layer in range(max((slab.layers for slab in slabs), default=0))
        for place, slab in enumerate(slabs)
        if layer < slab.layers
    )
    return (Group("tokens", Extent.TOKEN, members),)


# ---------------------------------------------------------------- identity


def encoding(layout: StateLayout) -> bytes:
    """The canonical bytes of a layout.

    The one implicit group is left out, so that it does not change identities. Neither is the page
    size in it: it may change while the state stays readable.
    """
    value: dict[str, Canonical] = {
        "family": layout.family,
        "slabs": [
            [slab.name, slab.layers, slab.elements, slab.dtype.value[0]] for slab in layout.slabs
        ],
        "fixed_bytes": layout.fixed_bytes,
        "snap_bytes": layout.snap_bytes,
        "lookahead": layout.lookahead,
    }
    if layout.groups != one_group(layout.slabs):
        value["groups"] = [
            [group.name, int(group.extent), group.window_tokens, [list(m) for m in group.members]]
            for group in layout.groups
        ]
    return canonical(value)


def digest(layout: StateLayout) -> bytes:
    """SHA-256 of the layout's encoding: the ``layout_digest`` of identities and facts."""
    return hashlib.sha256(_LAYOUT_DOMAIN + encoding(layout)).digest()


# ---------------------------------------------------------------- rows and pages


def pages_for(rows: int, page_tokens: int) -> int:
    """Pages that ``rows`` rows fill, the last perhaps in part."""
    return -(-rows // page_tokens)


def reserved_rows(prompt_tokens: int, max_new_tokens: int, verify_rows: int) -> int:
    """Rows a request may ever write: prompt, output after clamping, and the draft verify window.

    Router and worker both use this one.
    """
    return prompt_tokens + max_new_tokens + verify_rows


def first_row_read(boundary: int, window_tokens: int) -> int:
    """First row that the token at position ``boundary`` reads: its window holds itself."""
    return max(0, boundary - window_tokens + 1)


def window_floor(boundary: int, window_tokens: int, chunk_tokens: int) -> int:
    """Start of the first chunk that a restore up to ``boundary`` loads for a window group.

    A chunk is loaded if and only if it ends after the first row that is read.
    """
    return first_row_read(boundary, window_tokens) // chunk_tokens * chunk_tokens


def may_continue(rows: int, window_tokens: int, floor: int) -> bool:
    """Whether a route with that floor may go on (be forked, advertised, reused) at ``rows``.

    The one predicate for all of these: the next token must not read below the floor.
    """
    return first_row_read(rows, window_tokens) >= floor


def span_pages(rows: int, page_tokens: int) -> int:
    """Most pages that ``rows`` consecutive rows can lie in, wherever they begin."""
    return (rows + page_tokens - 2) // page_tokens + 1 if rows else 0


def pages_needed(rows: int, window_tokens: int, page_tokens: int, step_rows: int) -> int:
    """Pages that a stream of up to ``rows`` rows may hold at once in a group.

    ``window_tokens`` 0: all rows are kept. A window group holds the window before the next row
    and the ``step_rows`` rows being written, wherever these begin inside a page.
    """
    pages = pages_for(rows, page_tokens)
    if window_tokens == 0:
        return pages
    return min(pages, span_pages(window_tokens - 1 + step_rows, page_tokens))


def restored_bytes(layout: StateLayout, boundary: int, chunk_tokens: int) -> int:
    """Bytes that a restore of the first ``boundary`` rows moves, rounded to chunks in windows."""
    total = 0
    for group_number in layout.paged_groups():
        group = layout.groups[group_number]
        floor = 0
        if group.extent is Extent.WINDOW:
            floor = window_floor(boundary, group.window_tokens, chunk_tokens)
        total += (boundary - floor) * layout.row_bytes(group_number)
    return total


# ---------------------------------------------------------------- sizing at load


class Room(msgspec.Struct, frozen=True):
    """What a device offers and what is asked of it."""

    room_bytes: int  # left after the weights
    streams: int  # most streams at once: a cap, each takes only its fixed part
    context_tokens: int
    verify_rows: int
    step_rows: int  # most rows written between two looks at the windows
    reference_rows: int  # the stream by whose demand the bytes are split over groups
    kept_bytes: int  # budget of kept prompts: snapshot slots first, then pages
    snap_slots: int
    full_window_sequence: bool  # the engine keeps one sequence of its own outside the pool


class Sizing(msgspec.Struct, frozen=True):
    """How the room is used. ``pages`` and ``page_bytes`` per paged group."""

    pages: tuple[int, ...]
    page_bytes: tuple[int, ...]
    kept_columns_max: int
    pool_bytes: int
    fixed_bytes: int  # all streams' fixed parts
    slots_bytes: int
    full_window_bytes: int


def size_pools(layout: StateLayout, room: Room) -> Sizing:
    """Split a device's room, or refuse to start.

    Refused when a request of the whole context would not fit beside the budget of kept prompts:
    after this check any single request fits alone. Raises BadInputError that names the shortage.
    """
    groups = layout.paged_groups()
    for name in ("streams", "context_tokens", "step_rows", "reference_rows"):
        _check_range(name, getattr(room, name), 1, _BYTES_MAX)
    page_bytes = tuple(layout.page_bytes(group) for group in groups)
    slots_bytes = room.snap_slots * layout.snap_bytes
    if slots_bytes > room.kept_bytes:
        raise BadInputError(
            f"{room.snap_slots} snapshot slots take {slots_bytes} B, more than the "
            f"{room.kept_bytes} B for kept prompts; raise the budget or lower the slots"
        )
    fixed_bytes = room.streams * layout.fixed_bytes
    rows = room.context_tokens + room.verify_rows
    full_bytes = sum(layout.row_bytes(g) for g in groups) * rows if room.full_window_sequence else 0
    pool_bytes = room.room_bytes - fixed_bytes - slots_bytes - full_bytes
    demand = _needs(layout, room.reference_rows, room.step_rows)
    column_bytes = sum(page_bytes)
    kept_columns = (room.kept_bytes - slots_bytes) // column_bytes
    stream_bytes = pool_bytes - kept_columns * column_bytes
    demand_bytes = sum(n * size for n, size in zip(demand, page_bytes, strict=True))
    stream_pages = tuple(max(0, stream_bytes) * n // demand_bytes for n in demand)
    for group, pages, need in zip(
        groups, stream_pages, _needs(layout, rows, room.step_rows), strict=True
    ):
        if pages < need:
            raise BadInputError(
                f"group {layout.groups[group].name!r} would have {pages} pages for streams and one "
                f"request of {room.context_tokens} tokens needs {need}: {room.room_bytes} B less "
                f"{fixed_bytes} B fixed for {room.streams} streams, {room.kept_bytes} B for kept "
                f"prompts and {full_bytes} B for the engine's own sequence leave "
                f"{max(0, stream_bytes)} B; lower context, streams or the kept budget"
            )
    return Sizing(
        pages=tuple(count + kept_columns for count in stream_pages),
        page_bytes=page_bytes,
        kept_columns_max=kept_columns,
        pool_bytes=pool_bytes,
        fixed_bytes=fixed_bytes,
        slots_bytes=slots_bytes,
        full_window_bytes=full_bytes,
    )


def _needs(layout: StateLayout, rows: int, step_rows: int) -> tuple[int, ...]:
    return tuple(
        pages_needed(rows, layout.groups[g].window_tokens, layout.page_tokens, step_rows)
        for g in layout.paged_groups()
    )


def _check_range(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise BadInputError(f"{name} must be {low} to {high}, not {value}")


def _check_unique(what: str, names: list[str]) -> None:
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise BadInputError(f"two {what}s are called {twice!r}; give each its own name")
