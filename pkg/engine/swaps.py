"""Rows of streams that gave way, in host memory until the streams go on.

Owns the bytes; the machine decided whose rows come here and back, and its view bounds them
(``swap_bytes_max``). Runs in the engine thread; the CPU device has nothing in flight between
steps, so a copy is over when it returns.
"""

from __future__ import annotations

import numpy as np

from pagetrail.catalog.errors import InvariantError
from pagetrail.catalog.kinds.content import Tier
from pagetrail.controlplane.cluster.messages import SwapIn, SwapOut, WorkerEffect
from pagetrail.controlplane.cluster.worker import WorkerMachine
from pagetrail.controlplane.pages.appends import Shortfall
from pagetrail.kernels.abi import Int32s

from .clock import Clock
from .model import EngineModel


class Swaps:
    """See the module."""

    def __init__(self, machine: WorkerMachine, model: EngineModel, clock: Clock) -> None:
        self._machine = machine
        self._model = model
        self._clock = clock
        self._rows: dict[int, tuple[int, list[bytes]]] = {}  # stream -> rows, bytes per group

    def out(self, effect: SwapOut) -> list[WorkerEffect]:
        """Copy a stream's rows to host memory; its pages may go then. No rows: no room for them."""
        started_ns, stream = self._clock.now_ns(), effect.stream
        rows = effect.rows
        try:
            payload = [
                self._model.capture(self._table(stream, group), 0, rows, group)
                for group in range(len(self._machine.start.pools))
            ]
        except MemoryError:
            rows = 0
        if rows:
            self._rows[stream] = (rows, payload)
        now_ns = self._clock.now_ns()
        return self._machine.swapped_out(stream, rows, now_ns - started_ns, self._clock.now_us())

    def back(self, effect: SwapIn) -> list[WorkerEffect]:
        """Write a stream's rows into its new pages; the copy here is given up."""
        started_ns, stream, first = self._clock.now_ns(), effect.stream, effect.first_row
        rows, payload = self._rows.pop(stream)
        owner = self._machine.view.owner
        append = owner.reserve(stream, effect.rows - first)
        if isinstance(append, Shortfall):
            raise InvariantError(
                f"stream {stream} was to have {effect.rows} rows back and its promise lacks "
                f"{append.pages} pages; the decision to resume it and the book disagree"
            )
        for group, (source, target) in enumerate(append.copies):
            if source >= 0:
                self._model.copy_page(source, target, group)
        for group, part in enumerate(payload):
            body = self._model.arena.cut(group, part, rows, first, effect.rows)
            self._model.restore(self._table(stream, group), first, effect.rows, body, group)
        owner.commit(append, append.rows)
        elapsed_ns = self._clock.now_ns() - started_ns
        return self._machine.restored(stream, append.rows, Tier.RAM, elapsed_ns)

    def drop(self, stream: int) -> None:
        """A stream's rows are needed no longer."""
        self._rows.pop(stream, None)

    def _table(self, stream: int, group: int) -> Int32s:
        return np.asarray(self._machine.view.owner.page_table(stream, group), np.int32)
