"""Which operation carries out which command: the whole list of what changes a page owner."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from pagetrail.catalog.kinds import worker

from . import beginning, copies, growing, keeping, pinning, snapshots
from .books import Books

OPERATIONS: Mapping[type[msgspec.Struct], Callable[[Books, Any], None]] = MappingProxyType(
    {
        worker.PagesAdopted: beginning.adopt,
        worker.AdoptionUndone: beginning.undo,
        worker.PagesPromised: beginning.promise,
        worker.StreamFinished: beginning.finish,
        worker.StreamPreempted: beginning.preempt,
        worker.RowsAdvanced: growing.advance,
        worker.RowsRestored: growing.restore,
        worker.RouteForked: keeping.fork,
        worker.PromptKept: keeping.keep,
        worker.NodesEvicted: keeping.evict,
        worker.NodeDurable: keeping.durable,
        worker.PagesPinned: pinning.pin,
        worker.PagesUnpinned: pinning.unpin,
        worker.RamKeepBegun: pinning.begin_ram_keep,
        worker.RamKeepEnded: pinning.end_ram_keep,
        worker.MarkArmed: snapshots.arm,
        worker.MarkDisarmed: snapshots.disarm,
        worker.SnapshotDropped: snapshots.drop,
        worker.CopyKept: copies.keep,
        worker.CopyRestored: copies.restore,
        worker.CopiesDropped: copies.drop,
    }
)
