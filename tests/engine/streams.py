"""Sequences driven through an engine the way the runtime does, with page tables of any order."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from pagetrail.engine.model import EngineModel, PageTable, RowSpec


@dataclass
class Stream:
    """One sequence with its own pages in every group."""

    tables: tuple[PageTable, ...]
    tokens: list[int]
    processed: int = 0
    out: list[int] = field(default_factory=list)
    gap: float = float("inf")  # smallest distance between the best and the second best logit

    def rows(self, limit: int, wanted: int | None = None) -> RowSpec:
        chunk = self.tokens[self.processed : self.processed + limit]
        last = self.processed + len(chunk) == len(self.tokens)
        return RowSpec(self.tables, self.processed, chunk, int(last) if wanted is None else wanted)

    def accept(self, spec: RowSpec, logits: np.ndarray) -> None:
        """Take the greedy token of the last row, when its logits were wanted."""
        self.processed += len(spec.tokens)
        if spec.wanted:
            second, first = np.sort(logits[-1])[-2:]
            self.gap = min(self.gap, float(first - second))
            self.tokens.append(int(logits[-1].argmax()))
            self.out.append(self.tokens[-1])


def tables(model: EngineModel, index: int, pages_each: int, seed: int = 0) -> tuple[PageTable, ...]:
    """Pages of sequence ``index``: a share of a shuffled pool, so that nothing lies in order."""
    found = []
    for group, pages in enumerate(model.arena.pages):
        order = np.random.default_rng((seed, group)).permutation(pages).astype(np.int32)
        found.append(PageTable(order[index * pages_each : (index + 1) * pages_each].copy()))
    return tuple(found)


def poison_all(model: EngineModel) -> None:
    for group, pages in enumerate(model.arena.pages):
        model.poison(np.arange(pages, dtype=np.int32), group)


def run_step(model: EngineModel, streams: list[Stream], chunk: int) -> list[np.ndarray]:
    """One step over all streams; returns each stream's logits."""
    specs = [stream.rows(chunk) for stream in streams]
    logits = model.step(specs)
    parts, at = [], 0
    for stream, spec in zip(streams, specs, strict=True):
        part = logits[at : at + spec.wanted]
        at += spec.wanted
        parts.append(part)
        stream.accept(spec, part)
    return parts


def all_logits(model: EngineModel, stream: Stream, chunk: int) -> np.ndarray:
    """Logits of every row of a prompt, prefilled in chunks."""
    found = []
    while stream.processed < len(stream.tokens):
        count = min(chunk, len(stream.tokens) - stream.processed)
        spec = stream.rows(chunk, wanted=count)
        found.append(model.step([spec]))
        stream.processed += count
    return np.concatenate(found)


def greedy(
    model: EngineModel, prompts: list[list[int]], new: int, *, chunk: int = 64, seed: int = 0
) -> list[Stream]:
    """Greedy continuations of all prompts together; prompts and decode rows mix in one batch."""
    longest = max(len(prompt) for prompt in prompts) + new
    pages_each = -(-longest // model.arena.page_tokens)
    streams = [
        Stream(tables(model, index, pages_each, seed), list(prompt))
        for index, prompt in enumerate(prompts)
    ]
    while running := [stream for stream in streams if len(stream.out) < new]:
        run_step(model, running, chunk)
    return streams


def generate(oracle: Any, prompt: list[int], new: int, **options: bool) -> Any:
    """What transformers' own ``generate`` answers: greedy, no end before ``new`` tokens."""
    with torch.inference_mode():
        return oracle.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=2,
            **options,
        )


def generated(oracle: Any, prompt: list[int], new: int) -> list[int]:
    """The tokens that transformers' own ``generate`` continues a prompt with."""
    found: list[int] = generate(oracle, prompt, new)[0, len(prompt) :].tolist()
    return found
