"""The table of bytes that ``pagetrail layout MODEL`` prints. Words and digits only."""

from __future__ import annotations

from dataclasses import dataclass

from .layout import Extent, Group, StateLayout, digest, pages_needed


@dataclass(frozen=True, slots=True)
class LayoutTable:
    """What ``pagetrail layout`` prints: headings and rows of text, integers with thousands."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def layout_table(
    layout: StateLayout, lengths: tuple[int, ...] = (2_048, 32_768, 131_072)
) -> LayoutTable:
    """Bytes of a layout: a line per group, and the total of a stream at some lengths in tokens."""
    rows = []
    for place, group in enumerate(layout.groups):
        paged = group.extent is not Extent.SEQUENCE
        slabs = sorted({slab for slab, _ in group.members})
        rows.append(
            (
                group.name,
                f"window {group.window_tokens:,}" if group.window_tokens else _extent_text(group),
                ", ".join(layout.slabs[slab].name for slab in slabs),
                f"{len(group.members):,}",
                f"{layout.row_bytes(place):,}" if paged else "",
                f"{layout.page_bytes(place):,}" if paged else "",
                "" if paged else f"{layout.row_bytes(place):,}",
                *(f"{_group_bytes(layout, place, length):,}" for length in lengths),
            )
        )
    totals = [
        layout.fixed_bytes + sum(_group_bytes(layout, g, length) for g in layout.paged_groups())
        for length in lengths
    ]
    rows.append(("a stream", *[""] * 5, f"{layout.fixed_bytes:,}", *(f"{t:,}" for t in totals)))
    return LayoutTable(
        title=f"{layout.family}, pages of {layout.page_tokens} tokens",
        headings=(
            "group",
            "rows kept",
            "slabs",
            "members",
            "B a token",
            "B a page",
            "B a stream",
            *(f"B at {length:,}" for length in lengths),
        ),
        rows=tuple(rows),
        notes=(
            f"a kept snapshot takes {layout.snap_bytes:,} B"
            if layout.snap_bytes
            else "no recurrent state",
            f"layout digest {digest(layout).hex()}",
        ),
    )


def _extent_text(group: Group) -> str:
    return "all" if group.extent is Extent.TOKEN else "one block"


def _group_bytes(layout: StateLayout, place: int, rows: int) -> int:
    """Bytes of the pages that a stream of ``rows`` rows holds; of its block in a sequence group."""
    group = layout.groups[place]
    if group.extent is Extent.SEQUENCE:
        return layout.row_bytes(place)
    pages = pages_needed(rows, group.window_tokens, layout.page_tokens, 1)
    return pages * layout.page_bytes(place)
