"""Steps of few rows on the CPU: layers recorded once for a shape, then run again as a program.

A decode step is some hundred small operations, and calling each from here would cost as much as a
tenth of the step. Steps of equal rows and sequences differ only in what their arrays hold, once
these are padded to a power of two of page entries and items; so a program is recorded with fixed
arrays, and a later step of its shape fills them and runs it. Bits are those of the eager step.

Owns the programs, at most ``PROGRAMS_MAX``: the one used longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, fields

import numpy as np

from pagetrail.kernels.abi import Floats, RaggedBatch
from pagetrail.kernels.cpu import CpuDevice
from pagetrail.kernels.cpu_program import CpuProgram
from pagetrail.kernels.plan import Capacity, padded

from .arena import Arena
from .decoder import Batch, Decoder

RECORDED_ROWS_MAX = 32  # beyond it the operations outweigh the calls
PROGRAMS_MAX = 32

_ARRAYS = tuple(
    field.name for field in fields(RaggedBatch) if field.name not in ("page_tokens", "window")
)


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    """A program and the arrays that it reads: the rows' hidden state and every group's batch."""

    program: CpuProgram
    x: Floats  # [rows, hidden]: in the embeddings, out what the last layer leaves
    pages: tuple[RaggedBatch, ...]


class RecordedSteps:
    """See the module. Used by the engine's thread alone."""

    def __init__(self, device: CpuDevice, decoder: Decoder, arena: Arena) -> None:
        """``decoder`` must be ``recordable``."""
        self._device, self._decoder, self._arena = device, decoder, arena
        self._programs: OrderedDict[tuple[Capacity, ...], _Recorded] = OrderedDict()

    def forward(self, batch: Batch) -> Floats:
        """What ``Decoder.forward`` gives, bit for bit."""
        if len(batch.tokens) > RECORDED_ROWS_MAX:
            return self._decoder.forward(batch, self._arena.pools)
        x = self._decoder.embed(batch.tokens)
        shape = tuple(_capacity(pages) for pages in batch.pages)
        pages = tuple(padded(p, capacity) for p, capacity in zip(batch.pages, shape, strict=True))
        one = self._programs.get(shape)
        if one is None:
            self._programs[shape] = self._record(x, pages)
            if len(self._programs) > PROGRAMS_MAX:
                self._programs.popitem(last=False)
        else:
            self._programs.move_to_end(shape)
            np.copyto(one.x, x)
            x = one.x
            for fixed, fresh in zip(one.pages, pages, strict=True):
                for name in _ARRAYS:
                    np.copyto(getattr(fixed, name), getattr(fresh, name))
            one.program.run()
        return self._decoder.logits(self._device.take(x, batch.wanted))

    def _record(self, x: Floats, pages: tuple[RaggedBatch, ...]) -> _Recorded:
        """Run the layers over ``x`` and keep them."""

        def layers() -> None:
            self._decoder.advance(x, pages, self._arena.pools)

        program = self._device.record(layers)
        return _Recorded(program, x, pages)


def _capacity(batch: RaggedBatch) -> Capacity:
    """Rows and sequences as they are; entries and items up to the next power of two."""
    entries, items = int(batch.page_indptr[-1]), len(batch.items)
    return Capacity(batch.sequences, batch.rows, _power_of_two(entries), _power_of_two(items))


def _power_of_two(count: int) -> int:
    return 1 << max(0, count - 1).bit_length()
