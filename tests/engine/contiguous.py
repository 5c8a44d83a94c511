"""The same model with each sequence's keys and values in one unbroken stretch: no tables to follow.

Behind the engine's own interface: rows come with the paged engine's tables, and a sequence is told
by the first page of its first table. Its stretch is one page as long as the context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from pagetrail.engine.model import EngineModel, EngineOptions, PageTable, RowSpec, load


class ContiguousModel:
    """``step`` as ``EngineModel.step``; at most ``sequences`` sequences, never given back."""

    def __init__(self, directory: Path, context: int, sequences: int) -> None:
        self._model: EngineModel = load(
            str(directory),
            EngineOptions(pages=sequences, page_tokens=context, context=context),
        )
        self._stretch: dict[int, int] = {}

    def step(self, rows: Sequence[RowSpec]) -> np.ndarray:
        return self._model.step([self._contiguous(row) for row in rows])

    def _contiguous(self, row: RowSpec) -> RowSpec:
        first = int(row.tables[0].page_ids[0])
        stretch = self._stretch.setdefault(first, len(self._stretch))
        table = PageTable(np.array([stretch], np.int32))
        return replace(row, tables=(table,) * len(row.tables))
