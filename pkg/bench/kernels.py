"""`pagetrail bench kernels`: paged attention and products on the CPU, beside torch and a floor.

Decode attention of many long sequences, prefill attention of one, and a linear layer at a few row
counts. The roofline of decode is reading as many elements once, in order, widening each to fp32 and
multiplying it once: a product of one row with a matrix of that size, on the same threads. Peers get
the most favourable form: contiguous K and V, queries of a group repacked as rows of one head, so
that nothing is gathered and no head is repeated.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial

import msgspec
import numpy as np

from pagetrail.kernels.abi import Floats, SlabSpec, Storage
from pagetrail.kernels.cpu import CpuDevice
from pagetrail.kernels.device import AttentionSpec
from pagetrail.kernels.plan import SequenceRows, plan

from .table import BenchResult, BenchRow, machine_name

PAGE_TOKENS = 16
DECODE_SEQUENCES, DECODE_TOKENS = 8, 2_048
PREFILL_ROWS, PREFILL_TOKENS = 512, 2_048
Q_HEADS, KV_HEADS, WIDTH = 32, 8, 128
LINEAR_OUTPUTS, LINEAR_DEPTH = 3_072, 576
ROOFLINE_GOAL = 0.6
DECODE_GOAL, PREFILL_GOAL = 2.0, 0.8


def run(quick: bool) -> dict[str, object]:
    """Measure every case on as many threads as this process has cores."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read by torch when it is loaded
    threads = len(os.sched_getaffinity(0))
    repetitions = 5 if quick else 25
    device = CpuDevice(threads)
    rows: list[BenchRow] = []
    for storage in Storage:
        rows += _decode_rows(device, storage, repetitions, threads)
    rows += _prefill_rows(device, repetitions, threads)
    rows += _linear_rows(device, repetitions, threads)
    result = BenchResult(bench="kernels", machine=machine_name(), rows=tuple(rows))
    plain: dict[str, object] = msgspec.to_builtins(result)
    return plain


def median_ms(works: Sequence[Callable[[], object]], repetitions: int) -> list[float]:
    """Median wall time of one call of each in milliseconds, after one that warms up.

    They take turns, so that a slow moment of the machine is one for all of them.
    """
    times: list[list[int]] = [[] for _ in works]
    for repetition in range(repetitions + 1):
        for work, mine in zip(works, times, strict=True):
            start = time.perf_counter_ns()
            work()
            if repetition > 0:
                mine.append(time.perf_counter_ns() - start)
    return [statistics.median(mine) / 1e6 for mine in times]


def _paged(
    device: CpuDevice, storage: Storage, sequences: int, tokens: int, q_rows: int
) -> Callable[[], object]:
    """One attention call over shuffled pages, everything prepared."""
    rng = np.random.default_rng(0)
    pages_each = tokens // PAGE_TOKENS
    order = rng.permutation(sequences * pages_each).astype(np.int32)
    spec = SlabSpec("key", 1, KV_HEADS, WIDTH, storage)
    keys = device.allocate(spec, len(order), PAGE_TOKENS)
    values = device.allocate(spec, len(order), PAGE_TOKENS)
    slots = np.arange(len(order) * PAGE_TOKENS, dtype=np.int64)
    for pool in (keys, values):
        device.append(pool, 0, _normal(rng, len(slots), KV_HEADS * WIDTH), slots)
    tables = order.reshape(sequences, pages_each)
    batch = plan(
        [SequenceRows(q_rows, tokens, table) for table in tables],
        PAGE_TOKENS,
        cut=device.cut(Q_HEADS, KV_HEADS, sequences),
    )
    q = _normal(rng, batch.rows, Q_HEADS * WIDTH)
    out = np.empty_like(q)
    what = AttentionSpec(Q_HEADS, WIDTH**-0.5)
    return lambda: device.attention(what, 0, q, [keys], values, batch, out)


def _decode_rows(
    device: CpuDevice, storage: Storage, repetitions: int, threads: int
) -> list[BenchRow]:
    import torch

    torch.set_num_threads(threads)
    kind = {Storage.F32: torch.float32, Storage.F16: torch.float16, Storage.BF16: torch.bfloat16}
    work = _paged(device, storage, DECODE_SEQUENCES, DECODE_TOKENS, 1)
    shape = (DECODE_SEQUENCES, KV_HEADS, DECODE_TOKENS, WIDTH)
    k, v = (torch.randn(shape).to(kind[storage]) for _ in range(2))
    q = torch.randn(DECODE_SEQUENCES, KV_HEADS, Q_HEADS // KV_HEADS, WIDTH).to(kind[storage])
    attend = torch.nn.functional.scaled_dot_product_attention
    read_once = _read_once(device, storage, k.numel() + v.numel())
    ours, theirs, floor = median_ms([work, lambda: attend(q, k, v), read_once], repetitions)
    name = f"decode {DECODE_SEQUENCES} x {DECODE_TOKENS}, 32/8 heads of 128, {storage.name.lower()}"
    return [
        BenchRow(
            case=name,
            unit="ms",
            ours=ours,
            peer="contiguous SDPA, repacked",
            theirs=theirs,
            ratio=theirs / ours,
            goal=f"{DECODE_GOAL} x",
            met=theirs / ours >= DECODE_GOAL,
        ),
        BenchRow(
            case=name,
            unit="ms",
            ours=ours,
            peer="reading and widening each element once",
            theirs=floor,
            ratio=floor / ours,
            goal=f"{ROOFLINE_GOAL} of it",
            met=floor / ours >= ROOFLINE_GOAL,
        ),
    ]


def _read_once(device: CpuDevice, storage: Storage, elements: int) -> Callable[[], object]:
    """A product that touches so many stored elements once."""
    depth = 1_024
    rng = np.random.default_rng(0)
    packed = device.pack(_normal(rng, elements // depth, depth), storage)
    x = _normal(rng, 1, depth)
    out = np.empty((1, packed.outputs), np.float32)
    return lambda: device.linear(x, packed, out)


def _prefill_rows(device: CpuDevice, repetitions: int, threads: int) -> list[BenchRow]:
    import torch

    torch.set_num_threads(threads)
    work = _paged(device, Storage.F32, 1, PREFILL_TOKENS, PREFILL_ROWS)
    q = torch.randn(1, Q_HEADS, PREFILL_ROWS, WIDTH)
    k, v = (torch.randn(1, Q_HEADS, PREFILL_TOKENS, WIDTH) for _ in range(2))
    mask = torch.ones(PREFILL_ROWS, PREFILL_TOKENS, dtype=torch.bool).tril(
        PREFILL_TOKENS - PREFILL_ROWS
    )
    attend = torch.nn.functional.scaled_dot_product_attention
    ours, theirs = median_ms([work, lambda: attend(q, k, v, attn_mask=mask)], repetitions)
    return [
        BenchRow(
            case=f"prefill of {PREFILL_ROWS} rows at {PREFILL_TOKENS}, fp32",
            unit="ms",
            ours=ours,
            peer="contiguous SDPA",
            theirs=theirs,
            ratio=theirs / ours,
            goal=f"{PREFILL_GOAL} x",
            met=theirs / ours >= PREFILL_GOAL,
        )
    ]


def _linear_rows(device: CpuDevice, repetitions: int, threads: int) -> list[BenchRow]:
    import torch

    torch.set_num_threads(threads)
    rng = np.random.default_rng(0)
    weight = _normal(rng, LINEAR_OUTPUTS, LINEAR_DEPTH)
    packed = device.pack(weight, Storage.F32)
    matrix = torch.from_numpy(weight)
    rows = []
    for count in (1, 8, 256):
        x = _normal(rng, count, LINEAR_DEPTH)
        out = np.empty((count, LINEAR_OUTPUTS), np.float32)
        tensor = torch.from_numpy(x)
        ours, theirs = median_ms(
            [
                partial(device.linear, x, packed, out),
                partial(torch.nn.functional.linear, tensor, matrix),
            ],
            repetitions,
        )
        rows.append(
            BenchRow(
                case=f"linear {LINEAR_DEPTH} to {LINEAR_OUTPUTS}, {count} rows, fp32, exact",
                unit="ms",
                ours=ours,
                peer="torch linear",
                theirs=theirs,
                ratio=theirs / ours,
            )
        )
    return rows


def _normal(rng: np.random.Generator, rows: int, width: int) -> Floats:
    return rng.standard_normal((rows, width), dtype=np.float32)
