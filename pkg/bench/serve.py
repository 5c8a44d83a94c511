"""`pagetrail bench serve`: SmolLM2 through pages, tokens a second, beside other engines.

Prefill of long prompts and greedy decode at two batch sizes, in fp32 and bf16, in this process.
A peer runs the same prompts in its own interpreter (peers_serve.py); transformers in this one's
environment, others where an environment variable names an interpreter that has them. The share of
a decode step outside products and attention is measured too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

from pagetrail.engine.model import EngineModel, EngineOptions, PageTable, RowSpec, load
from pagetrail.engine.weights import open_model
from pagetrail.kernels.abi import Storage

from .table import BenchResult, BenchRow, machine_name

MODEL = "smollm2-135m-instruct"
PEER_SECONDS_MAX = 900
PAGE_TOKENS = 16
PREFILL_TILE = 256
BATCHES = (1, 8)
PEERS = {"transformers": None, "vllm": "PAGETRAIL_BENCH_VLLM_PYTHON"}
STORAGES = {"fp32": Storage.F32, "bf16": Storage.BF16}


def run(quick: bool) -> dict[str, object]:
    """Measure ours, then each peer; ``quick`` takes shorter prompts and fp32 only."""
    prompt, new = (256, 16) if quick else (2_000, 128)
    threads = len(os.sched_getaffinity(0))
    rows: list[BenchRow] = []
    for dtype in ("fp32",) if quick else tuple(STORAGES):
        ours, outside = _ours(STORAGES[dtype], prompt, new, threads)
        for peer, variable in PEERS.items():
            python = sys.executable if variable is None else os.environ.get(variable)
            theirs = _peer(peer, python, dtype, prompt, new, threads)
            rows += [
                _row(f"{case}, {dtype}, prompts of {prompt}", figure, peer, theirs.get(case))
                for case, figure in ours.items()
            ]
        rows.append(
            BenchRow(
                case=f"share of a decode step outside products and attention, {dtype}",
                unit="%",
                ours=outside,
                goal="under 10",
                met=outside < 10,
            )
        )
    result = BenchResult(bench="serve", machine=machine_name(), rows=tuple(rows))
    plain: dict[str, object] = msgspec.to_builtins(result)
    return plain


def prompts(count: int, tokens: int) -> list[list[int]]:
    """Token ids that every engine gets; the same in every run."""
    rng = np.random.default_rng(7)
    ids: list[list[int]] = rng.integers(1_000, 40_000, (count, tokens)).tolist()
    return ids


def _row(case: str, ours: float, peer: str, theirs: float | None) -> BenchRow:
    goals = {"transformers": None, "vllm": 1.0 if case.startswith("decode") else 0.7}
    goal = goals[peer]
    ratio = None if theirs is None else ours / theirs
    return BenchRow(
        case=case,
        unit="tokens/s",
        ours=ours,
        peer=peer,
        theirs=theirs,
        ratio=ratio,
        goal=goal,
        met=None if goal is None or ratio is None else ratio >= goal,
    )


def _ours(storage: Storage, prompt: int, new: int, threads: int) -> tuple[dict[str, float], float]:
    pages_each = -(-(prompt + new) // PAGE_TOKENS)
    model = load(
        MODEL,
        EngineOptions(
            pages=pages_each * max(BATCHES),
            page_tokens=PAGE_TOKENS,
            threads=threads,
            context=pages_each * PAGE_TOKENS,
            kv_storage=storage,
            weight_storage=storage,
        ),
    )
    found: dict[str, float] = {}
    outside = 0.0
    for batch in BATCHES:
        tables = [
            (PageTable(np.arange(i * pages_each, (i + 1) * pages_each, dtype=np.int32)),)
            for i in range(batch)
        ]
        start = time.perf_counter()
        last = [_prefill(model, t, p) for t, p in zip(tables, prompts(batch, prompt), strict=True)]
        found[f"prefill at batch {batch}"] = batch * prompt / (time.perf_counter() - start)
        start = time.perf_counter()
        for position in range(prompt, prompt + new):
            rows = [RowSpec(t, position, [token]) for t, token in zip(tables, last, strict=True)]
            last = model.step(rows).argmax(axis=1).tolist()
        found[f"decode at batch {batch}"] = batch * new / (time.perf_counter() - start)
        if batch == 1:
            outside = _outside(model, lambda r=rows: model.step(r))  # type: ignore[misc]
    return found, outside


def _prefill(model: EngineModel, tables: tuple[PageTable, ...], tokens: list[int]) -> int:
    for start in range(0, len(tokens), PREFILL_TILE):
        chunk = tokens[start : start + PREFILL_TILE]
        logits = model.step([RowSpec(tables, start, chunk)])
    return int(logits[0].argmax())


def _outside(model: EngineModel, step: Callable[[], object]) -> float:
    """Percent of CPU time of a step that is not spent inside ``linear`` and ``attention``."""
    import cProfile
    import pstats

    profile = cProfile.Profile(time.thread_time)
    for _ in range(5):
        profile.runcall(step)
    stats = pstats.Stats(profile)
    inside = sum(
        times[3]  # cumulative
        for (_, _, name), times in stats.stats.items()  # type: ignore[attr-defined]
        if name in ("linear", "attention")
    )
    total: float = stats.total_tt  # type: ignore[attr-defined]
    return 100.0 * (1.0 - float(inside) / total)


def _peer(
    peer: str, python: str | None, dtype: str, prompt: int, new: int, threads: int
) -> dict[str, float]:
    """The peer's figures by case; none when it is not there or fails (said on standard error)."""
    if python is None:
        return {}
    order = {
        "peer": peer,
        "model": str(open_model(MODEL).directory),
        "dtype": dtype,
        "threads": threads,
        "new": new,
        "batches": {str(batch): prompts(batch, prompt) for batch in BATCHES},
    }
    script = Path(__file__).with_name("peers_serve.py")
    try:
        answer = subprocess.run(
            [python, str(script)],
            input=json.dumps(order),
            capture_output=True,
            text=True,
            check=True,
            timeout=PEER_SECONDS_MAX,
            env=os.environ | {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(threads)},
        )
    except (OSError, subprocess.SubprocessError) as error:
        detail = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[-1:]
        print(f"bench serve: {peer} gave no figures: {' '.join(detail)}", file=sys.stderr)
        return {}
    figures: dict[str, float] = json.loads(answer.stdout.splitlines()[-1])
    return figures
