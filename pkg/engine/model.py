"""The engine as the runtime sees it: one model, its pages, one call a step.

``load`` opens a model and allocates its pages; ``EngineModel.step`` runs the rows it is given and
returns logits. It decides nothing: which rows run, which pages they use and who may write a page
is the caller's (page owner and planner). Not thread-safe: one engine thread owns it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from pagetrail.catalog import identity
from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.layout import StateLayout
from pagetrail.kernels.abi import Floats, Int32s, Storage
from pagetrail.kernels.cpu import CpuDevice
from pagetrail.kernels.cpu_open import open_cpu
from pagetrail.kernels.device import StepDevice
from pagetrail.kernels.plan import Cut, SequenceRows, plan

from .arena import Arena
from .card_experts import moe_mlp_on_card
from .card_steps import CardDevice, CardSteps
from .checkpoint import Checkpoint
from .compatibility import compatibility
from .decoder import Batch, Decoder
from .descriptor import MlaSpec, ModelDescriptor
from .families import describe
from .model_weights import load_weights
from .recorded_steps import RecordedSteps
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
    card: int | None = None  # the CUDA card to compute on, never exact; None: the CPU


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
        card: CardSteps | None = None,
        recorded: RecordedSteps | None = None,
    ) -> None:
        self.facts = facts
        self.arena = arena
        self.notice = notice  # for the operator, when the device is not the fast one
        self._device = device
        self._decoder = decoder
        self._card = card
        self._recorded = recorded
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
        sequences = tuple(
            [_sequence(row, index) for row in rows] for index in range(len(self.arena.groups))
        )
        for index, members in enumerate(sequences):
            used = np.concatenate([member.page_ids for member in members])
            _check_pages(used, self.arena.pages[index], index)
        tokens = np.concatenate([np.asarray(row.tokens, np.int32) for row in rows])
        if self._card is not None and len(tokens) == len(rows) == sum(r.wanted for r in rows):
            decoded = self._card.decode(tokens, sequences)
            if decoded is not None:
                return self._device.fetch(decoded)
        cut = self._cut(len(rows))
        pages = tuple(
            plan(members, self.arena.page_tokens, window=group.window, cut=cut)
            for members, group in zip(sequences, self.arena.groups, strict=True)
        )
        wanted, end = [], 0
        for row in rows:
            end += len(row.tokens)
            wanted.append(np.arange(end - row.wanted, end, dtype=np.int32))
        batch = Batch(tokens, pages, np.concatenate(wanted))
        if self._card is not None:
            return self._device.fetch(self._card.forward(batch))
        if self._recorded is not None:
            return self._recorded.forward(batch)
        return self._decoder.forward(batch, self.arena.pools)

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
        q_heads, kv_heads, _ = _heads(self.facts.descriptor)
        return self._device.cut(q_heads, kv_heads, sequences)

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
    return assemble(facts, checkpoint, device, options, notice)


def assemble(
    facts: ModelFacts,
    checkpoint: Checkpoint,
    device: StepDevice,
    options: EngineOptions,
    notice: str | None = None,
) -> EngineModel:
    """The model on a device that is open. A card's device must be a ``CardDevice``."""
    descriptor = facts.descriptor
    groups = descriptor.groups(options.kv_storage)
    pages = options.pages
    if isinstance(pages, int):
        pages = (pages,) * len(groups)
    arena = Arena(device, groups, pages, options.page_tokens)
    weights = load_weights(checkpoint, descriptor, device, options.weight_storage)
    layers = [group.layers for group in groups]
    if options.card is None:
        decoder = Decoder(device, descriptor, weights, layers, facts.context)
        recorded = None
        if isinstance(device, CpuDevice) and decoder.recordable:
            recorded = RecordedSteps(device, decoder, arena)
        return EngineModel(facts, device, decoder, arena, notice, recorded=recorded)
    decoder = Decoder(device, descriptor, weights, layers, facts.context, moe_mlp_on_card)
    steps = CardSteps(cast(CardDevice, device), decoder, arena, facts.context, _heads(descriptor))
    return EngineModel(facts, device, decoder, arena, notice, steps)


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
    device, notice = _open_device(options)
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
            "exact" if options.card is None and not options.fast else "fast",
            device.identity,
        ),
        context=context,
        tokenizer=ModelTokenizer.open(checkpoint.directory, checkpoint.config),
    )
    return facts, checkpoint, device, notice


def _open_device(options: EngineOptions) -> tuple[StepDevice, str | None]:
    if options.card is None:
        return open_cpu(options.threads, fast=options.fast)
    from pagetrail.kernels.cuda_runtime import CudaRuntime, CudaUnavailableError
    from pagetrail.kernels.cuda_step import CudaStepDevice

    try:
        return CudaStepDevice(CudaRuntime.open(options.card)), None
    except CudaUnavailableError as error:
        raise BadInputError(f"card {options.card}: {error}") from error


def _sequence(row: RowSpec, group: int) -> SequenceRows:
    table = row.tables[group]
    end = row.start + len(row.tokens)
    return SequenceRows(len(row.tokens), end, table.page_ids, table.base)


def _heads(descriptor: ModelDescriptor) -> tuple[int, int, int]:
    """Query heads, KV heads, and the width of a value as attention reads it."""
    attention = descriptor.attention
    if isinstance(attention, MlaSpec):
        return attention.heads, 1, attention.latent
    return attention.q_heads, attention.kv_heads, attention.head_width


def _check_pages(page_ids: Int32s, pages: int, group: int) -> None:
    if page_ids.size and not (int(page_ids.min()) >= 0 and int(page_ids.max()) < pages):
        raise BadInputError(
            f"page ids of group {group} must lie in [0, {pages}), "
            f"found {page_ids.min()}..{page_ids.max()}"
        )
