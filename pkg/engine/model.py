"""The engine as the runtime sees it: one model, its pages, one call a step.

``load`` opens a model and allocates its pages; ``EngineModel.step`` runs the rows it is given and
returns logits. It decides nothing: which rows run, which pages they use and who may write a page
is the caller's (page owner and planner). Not thread-safe: one engine thread owns it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pagetrail.catalog import identity
from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.layout import StateLayout
from pagetrail.kernels.abi import Floats, Int32s, Storage
from pagetrail.kernels.cpu_open import open_cpu
from pagetrail.kernels.device import StepDevice
from pagetrail.kernels.plan import Cut, SequenceRows, plan

from .arena import Arena
from .checkpoint import Checkpoint
from .compatibility import compatibility
from .decoder import Batch, Decoder
from .descriptor import MlaSpec, ModelDescriptor
from .families import describe
from .model_weights import load_weights
from .state_layout import state_layout
from .tokenizer import ModelTokenizer
from .weights import open_model

STEP_ROWS_MAX = 16_384


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a model is laid out on the device. ``context`` None takes what the model was made for."""

    pages: int | tuple[int, ...]  # of every page group, or one by one
    page_tokens: int = 16
    threads: int = 1
    context: int | None = None
    kv_storage: Storage = Storage.F32
    weight_storage: Storage = Storage.F32
    cache: Path | None = None  # of converted models
    fast: bool = False  # torch's products: bits depend on the batch, the fingerprint differs


@dataclass(frozen=True, slots=True, eq=False)
class PageTable:
    """A sequence's pages in one group. Its first entry is the page that holds token ``base``."""

    page_ids: Int32s
    base: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class RowSpec:
    """Tokens of one sequence for one step: a decode row, draft rows to verify, or a prompt chunk.

    ``tokens[i]`` is evaluated at position ``start + i``; everything before ``start`` is in the
    pages already. Logits of the last ``wanted`` rows are returned.
    """

    tables: tuple[PageTable, ...]  # per page group
    start: int
    tokens: Sequence[int]
    wanted: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class ModelFacts:
    """What is known of a model before a page is allocated."""

    name: str
    descriptor: ModelDescriptor
    layout: StateLayout
    compatibility: identity.Compatibility
    context: int
    tokenizer: ModelTokenizer


class EngineModel:
    """A loaded model. Build it with ``load``."""

    def __init__(
        self,
        facts: ModelFacts,
        device: StepDevice,
        decoder: Decoder,
        arena: Arena,
        notice: str | None,
    ) -> None:
        self.facts = facts
        self.arena = arena
        self.notice = notice  # for the operator, when the device is not the fast one
        self._device = device
        self._decoder = decoder
        self._fingerprint = identity.fingerprint(facts.compatibility)

    @property
    def layout(self) -> StateLayout:
        """Slabs, groups and sizes of the attention state."""
        return self.facts.layout

    @property
    def tokenizer(self) -> ModelTokenizer:
        """The model's tokenizer and chat template."""
        return self.facts.tokenizer

    @property
    def context(self) -> int:
        """Tokens a sequence may have."""
        return self.facts.context

    def fingerprint(self) -> bytes:
        """The compatibility fingerprint: equal only where every bit of attention state is."""
        return self._fingerprint

    def step(self, rows: Sequence[RowSpec]) -> Floats:
        """Run one step; ``[sum of wanted, vocabulary]`` in the order of ``rows``.

        Raises BadInputError before anything is written when a token, a position or a page table
        cannot be used. Every position of a sequence must be run once, in order.
        """
        self._check(rows)
        cut = self._cut(len(rows))
        pages = tuple(
            plan(
                [
                    SequenceRows(
                        len(row.tokens),
                        row.start + len(row.tokens),
                        row.tables[index].page_ids,
                        row.tables[index].base,
                    )
                    for row in rows
                ],
                self.arena.page_tokens,
                window=group.window,
                cut=cut,
            )
            for index, group in enumerate(self.arena.groups)
        )
        for index, batch in enumerate(pages):
            _check_pages(batch.page_ids, self.arena.pages[index], index)
        tokens = np.concatenate([np.asarray(row.tokens, np.int32) for row in rows])
        wanted, end = [], 0
        for row in rows:
            end += len(row.tokens)
            wanted.append(np.arange(end - row.wanted, end, dtype=np.int32))
        return self._decoder.forward(Batch(tokens, pages, np.concatenate(wanted)), self.arena.pools)

    def copy_page(self, source: int, target: int, group: int = 0) -> None:
        """Copy one page (copy-on-write)."""
        self.arena.copy_page(group, source, target)

    def capture(self, page_ids: Int32s, row_start: int, row_end: int, group: int = 0) -> bytes:
        """The canonical bytes of rows ``[row_start, row_end)`` of a page table."""
        return self.arena.capture(group, page_ids, row_start, row_end)

    def restore(
        self,
        page_ids: Int32s,
        row_start: int,
        row_end: int,
        payload: bytes | memoryview,
        group: int = 0,
    ) -> None:
        """Put captured bytes back into the pages."""
        self.arena.restore(group, page_ids, row_start, row_end, payload)

    def poison(self, page_ids: Int32s, group: int = 0) -> None:
        """Fill released pages with NaN (debug)."""
        self.arena.poison(group, page_ids)

    def _cut(self, sequences: int) -> Cut:
        attention = self.facts.descriptor.attention
        if isinstance(attention, MlaSpec):
            return self._device.cut(attention.heads, 1, sequences)
        return self._device.cut(attention.q_heads, attention.kv_heads, sequences)

    def _check(self, rows: Sequence[RowSpec]) -> None:
        vocabulary = self.facts.descriptor.vocabulary
        total = sum(len(row.tokens) for row in rows)
        if not 0 < total <= STEP_ROWS_MAX:
            raise BadInputError(f"a step runs 1 to {STEP_ROWS_MAX} rows, not {total}")
        for index, row in enumerate(rows):
            end = row.start + len(row.tokens)
            if row.start < 0 or not row.tokens or end > self.context:
                raise BadInputError(
                    f"sequence {index}: rows [{row.start}, {end}) must be at least one and end "
                    f"within the context of {self.context} tokens"
                )
            if not 0 <= row.wanted <= len(row.tokens):
                raise BadInputError(
                    f"sequence {index}: logits of {row.wanted} rows wanted, it has "
                    f"{len(row.tokens)}"
                )
            if len(row.tables) != len(self.arena.groups):
                raise BadInputError(
                    f"sequence {index} brings {len(row.tables)} page tables, the model has "
                    f"{len(self.arena.groups)} page groups"
                )
            low, high = min(row.tokens), max(row.tokens)
            if low < 0 or high >= vocabulary:
                raise BadInputError(
                    f"sequence {index}: tokens must lie in [0, {vocabulary}), found {low}..{high}"
                )


def load(name_or_path: str, options: EngineOptions) -> EngineModel:
    """Open a model by name, directory or GGUF file and allocate its pages.

    Raises BadInputError (and its kinds) with what to do, MemoryError when the pages do not fit.
    """
    facts, checkpoint, device, notice = _open(name_or_path, options)
    groups = facts.descriptor.groups(options.kv_storage)
    pages = options.pages
    if isinstance(pages, int):
        pages = (pages,) * len(groups)
    arena = Arena(device, groups, pages, options.page_tokens)
    weights = load_weights(checkpoint, facts.descriptor, device, options.weight_storage)
    layers = [group.layers for group in groups]
    decoder = Decoder(device, facts.descriptor, weights, layers, facts.context)
    return EngineModel(facts, device, decoder, arena, notice)


def model_facts(name_or_path: str, options: EngineOptions) -> ModelFacts:
    """What ``load`` would load, without its weights and pages: for a gateway. Raises as it does."""
    return _open(name_or_path, options)[0]


def _open(
    name_or_path: str, options: EngineOptions
) -> tuple[ModelFacts, Checkpoint, StepDevice, str | None]:
    checkpoint = open_model(name_or_path, options.cache)
    descriptor = describe(checkpoint.config)
    context = options.context or descriptor.context
    if not 1 <= context <= descriptor.context:
        raise BadInputError(
            f"context must lie in [1, {descriptor.context}] for this model, not {context}"
        )
    device, notice = open_cpu(options.threads, fast=options.fast)
    layout = state_layout(descriptor, options.kv_storage, options.page_tokens)
    facts = ModelFacts(
        name=name_or_path,
        descriptor=descriptor,
        layout=layout,
        compatibility=compatibility(
            checkpoint.identity,
            descriptor,
            layout,
            (options.kv_storage, options.weight_storage),
            "fast" if options.fast else "exact",
            device.identity,
        ),
        context=context,
        tokenizer=ModelTokenizer.open(checkpoint.directory, checkpoint.config),
    )
    return facts, checkpoint, device, notice


def _check_pages(page_ids: Int32s, pages: int, group: int) -> None:
    if page_ids.size and not (int(page_ids.min()) >= 0 and int(page_ids.max()) < pages):
        raise BadInputError(
            f"page ids of group {group} must lie in [0, {pages}), "
            f"found {page_ids.min()}..{page_ids.max()}"
        )
