"""The StateLayout of a model as this engine lays it out: what the catalog, router and tiers see.

Derived from the descriptor, so it cannot differ from the pools: group by group, a row of the
layout and a row of the arena have the same bytes.
"""

from __future__ import annotations

from pagetrail.catalog.layout import ElementType, Extent, Group, Slab, StateLayout, one_group
from pagetrail.kernels.abi import Storage

from .descriptor import ModelDescriptor

ELEMENT_TYPES = {
    Storage.F32: ElementType.FP32,
    Storage.F16: ElementType.FP16,
    Storage.BF16: ElementType.BF16,
}


def state_layout(descriptor: ModelDescriptor, storage: Storage, page_tokens: int) -> StateLayout:
    """Slabs over all layers, and one group per window, the one that keeps every token first."""
    layers = len(descriptor.layers)
    slabs = tuple(
        Slab(slab.name, layers, slab.heads * slab.width, ELEMENT_TYPES[storage])
        for slab in descriptor.slabs(layers, storage)
    )
    page_groups = descriptor.groups(storage)
    if len(page_groups) == 1 and page_groups[0].window == 0:
        groups = one_group(slabs)
    else:
        several = sum(group.window > 0 for group in page_groups) > 1
        groups = tuple(
            Group(
                _name(group.window, several),
                Extent.WINDOW if group.window else Extent.TOKEN,
                tuple((slab, layer) for layer in group.layers for slab in range(len(slabs))),
                group.window,
            )
            for group in page_groups
        )
    return StateLayout(descriptor.family, slabs, groups, page_tokens)


def _name(window: int, several: bool) -> str:
    if window == 0:
        return "global"
    return f"window-{window}" if several else "window"
