"""Measures the CUDA kernels on a card in one run of under six minutes, and rehearses without one.

    python benchmarks/gpu.py --out result.json              # on a card
    python benchmarks/gpu.py --rehearse --out rehearsal.json   # the same code on the host emulator

Order: correctness of every case against float64 first (a wrong kernel is not timed), then probes
of the card's own read and copy speed, then every case: captured into a graph, pools rotated so that
no run finds its pages in the L2 cache, timed by events, medians, interleaved with torch's SDPA over
contiguous K and V of the same sizes and with a Triton paged decode of the same pages; then append,
then decode of a small model, eager and captured. Fractions are of the read probe and of the goal's
4.8 TB/s.

Each part has its share of the six minutes (PART_SECONDS). A case that would begin after its part's
share is spent is left out, and the result and the output name it.

The rehearsal runs every launch, staging and capture call on tiny sizes against recording stand-ins
(tests/cuda/recording_driver.py); its times say nothing and are not written.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import gpu_decode
import numpy as np
from gpu_cases import CASES, Case, filled_pool, numbers, shrunk

from pagetrail.kernels.abi import RaggedBatch, SlabSpec, Storage
from pagetrail.kernels.cuda.codes import AnyPool, Code
from pagetrail.kernels.cuda_device import CudaOptions
from pagetrail.kernels.cuda_runtime import CudaRuntime, CudaUnavailableError
from pagetrail.kernels.cuda_step import CudaStepDevice
from pagetrail.kernels.device import AttentionSpec
from pagetrail.kernels.oracle import attention as attention_oracle
from pagetrail.kernels.plan import SequenceRows, plan

SCHEMA = 2
PEAK_BYTES_PER_S = 4.8e12  # of an H200
ROTATION_BYTES = 4 * 60 * 2**20  # four times its L2 cache
REPEATS = 15
TOLERANCE = {Storage.F16: 1e-3, Storage.BF16: 5e-3, Code.E4M3: 1e-3, Code.I8: 1e-3}
CHECK_TOKENS_MAX = 2_048
PART_SECONDS = {"correctness": 80, "probes": 10, "decode": 150, "append": 20, "model": 80}


@dataclass(slots=True)
class Bench:
    """The device, torch as it sees it, and how time is read; ``rehearsal`` shrinks every case."""

    device: CudaStepDevice
    torch: Any
    place: Any
    rehearsal: bool
    left_out: list[str] = field(default_factory=list)
    _ends_at: float = 0.0

    def begin(self, part: str) -> None:
        """Start a part's share of the time."""
        self._ends_at = time.monotonic() + PART_SECONDS[part]

    def has_time(self, name: str) -> bool:
        """Whether a case may begin; if not, it is noted as left out."""
        if self.rehearsal or time.monotonic() < self._ends_at:
            return True
        self.left_out.append(name)
        return False

    def time_ns(self, run: Callable[[], None], before: Callable[[], None]) -> int:
        """Median over REPEATS of one ``run`` on the current stream, ``before`` untimed."""
        if self.rehearsal:
            before()
            run()
            return 0
        events = [
            (self.torch.cuda.Event(enable_timing=True), self.torch.cuda.Event(enable_timing=True))
            for _ in range(REPEATS)
        ]
        for start, end in events:
            before()
            start.record()
            run()
            end.record()
        self.torch.cuda.synchronize()
        return int(statistics.median(start.elapsed_time(end) for start, end in events) * 1e6)


@dataclass(slots=True, eq=False)
class Step:
    """One case made ready: pools, the staged batch, queries, outputs, and the captured graph."""

    case: Case
    pools: list[list[AnyPool]]  # rotated
    batch: RaggedBatch
    q: Any
    out: Any
    graphs: list[Any]


def prepare(bench: Bench, case: Case) -> Step:
    """Fill the pools with random rows, stage the batch, and capture one graph per rotated pool."""
    pages_each = -(-case.tokens // case.page_tokens)
    pages = pages_each * case.batch
    order = np.random.default_rng(0).permutation(pages).astype(np.int32)
    rotation = 1 if bench.rehearsal else max(2, -(-ROTATION_BYTES // case.read_bytes))
    widths = (case.width, case.rotary or case.width)
    pools = [
        [filled_pool(bench.device, bench.torch, case, width, pages) for width in widths]
        for _ in range(rotation)
    ]
    cut = bench.device.cut(case.q_heads, case.kv_heads, case.batch)
    batch = plan(
        [
            SequenceRows(1, case.tokens, order[i * pages_each : (i + 1) * pages_each])
            for i in range(case.batch)
        ],
        case.page_tokens,
        window=case.window,
        cut=replace(cut, rows_per_item=1),
    )
    key_width = case.width + case.rotary
    q = bench.torch.randn(case.batch, case.q_heads * key_width).to(bench.place)
    out = bench.torch.zeros(case.batch, case.q_heads * case.width, device=bench.place)
    bench.device.stage(batch)
    step = Step(case, pools, batch, q, out, [])
    for pair in pools:
        step.graphs.append(bench.device.capture(lambda pair=pair: attend(bench, step, pair)))
    return step


def attend(bench: Bench, step: Step, pair: list[AnyPool]) -> None:
    case = step.case
    keys: list[Any] = pair if case.rotary else pair[:1]
    values: Any = pair[0] if case.rotary else pair[1]
    what = AttentionSpec(case.q_heads, (case.width + case.rotary) ** -0.5)
    bench.device.attention(what, 0, step.q, keys, values, step.batch, step.out)


def relative_error(bench: Bench, step: Step) -> float:
    """Of the first graph's output against float64."""
    step.graphs[0].replay()
    case, pair = step.case, step.pools[0]
    arrays = [numbers(bench.torch, pool) for pool in pair]
    keys = np.concatenate(arrays, axis=-1) if case.rotary else arrays[0]
    values = arrays[0] if case.rotary else arrays[1]
    width = case.width + case.rotary
    q = step.q.cpu().numpy().reshape(case.batch, case.q_heads, width).astype(np.float64)
    want, _ = attention_oracle(q, keys, values, step.batch, width**-0.5)
    got = step.out.cpu().numpy().reshape(want.shape)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def check(bench: Bench) -> list[dict[str, Any]]:
    """Every case, short, against float64."""
    found = []
    for case in CASES:
        if not bench.has_time(f"correctness of {case.name}"):
            raise SystemExit("the checks took too long; nothing was timed")
        small = replace(case, batch=2, tokens=min(case.tokens, CHECK_TOKENS_MAX))
        small = shrunk(small) if bench.rehearsal else small
        error = relative_error(bench, prepare(bench, small))
        found.append({"case": case.name, "relative_error": error})
        if not error < TOLERANCE[case.storage]:
            raise SystemExit(f"{case.name} is wrong: relative error {error}; nothing was timed")
    return found


def probes(bench: Bench) -> dict[str, int]:
    """Bytes a second that a plain read (a sum) and a plain copy reach."""
    size = 2**16 if bench.rehearsal else 2**31
    source = bench.torch.ones(size // 4, device=bench.place)
    target = bench.torch.empty_like(source)
    read_ns = bench.time_ns(lambda: source.sum(), lambda: None)
    copy_ns = bench.time_ns(lambda: target.copy_(source), lambda: None)
    return {
        "read_bytes_per_s": size * 10**9 // read_ns if read_ns else 0,
        "copy_bytes_per_s": 2 * size * 10**9 // copy_ns if copy_ns else 0,
    }


def sdpa(bench: Bench, case: Case) -> Callable[[], Any]:
    """torch's attention over contiguous K and V of the same sizes, query heads as rows."""
    dtype = bench.torch.bfloat16 if case.storage is Storage.BF16 else bench.torch.float16
    seen = min(case.tokens, case.window) if case.window else case.tokens
    width = case.width + case.rotary
    shape = (case.batch, case.kv_heads, seen)
    q = bench.torch.randn(case.batch, case.kv_heads, case.group, width).to(bench.place, dtype)
    k = bench.torch.randn(*shape, width).to(bench.place, dtype)
    v = bench.torch.randn(*shape, case.width).to(bench.place, dtype)
    attention = bench.torch.nn.functional.scaled_dot_product_attention
    return lambda: attention(q, k, v)


def triton(bench: Bench, step: Step) -> Callable[[], None] | None:
    """A Triton paged decode of the first pools, or None where there is none for the case."""
    case = step.case
    plain = isinstance(case.storage, Storage) and not case.rotary and not case.window
    if bench.rehearsal or not plain or importlib.util.find_spec("triton") is None:
        return None
    from gpu_triton import paged_decode

    k, v = (cast(Any, pool).array[0] for pool in step.pools[0])
    tables = step.batch.page_ids.reshape(case.batch, -1)
    table = bench.torch.from_numpy(tables).to(bench.place)
    lengths = bench.torch.from_numpy(step.batch.kv_len).to(bench.place)
    q = step.q.view(case.batch, case.q_heads, case.width)
    out = bench.torch.zeros_like(q)
    scale_log2 = case.width**-0.5 * math.log2(math.e)
    paged_decode(q, k, v, table, lengths, out, scale_log2)
    step.graphs[0].replay()
    want = step.out.view_as(out)
    error = float((out - want).norm() / want.norm())
    if not error < 2 * TOLERANCE[case.storage]:
        raise SystemExit(f"{case.name}: the Triton decode differs from ours by {error}")
    return lambda: paged_decode(q, k, v, table, lengths, out, scale_log2)


def measure(bench: Bench, case: Case, read_bytes_per_s: int) -> dict[str, Any]:
    """Times of one case, of SDPA and of a Triton decode, taken in turns."""
    case = shrunk(case) if bench.rehearsal else case
    step = prepare(bench, case)
    turn = iter(range(10**9))
    peer = sdpa(bench, case)

    def ours() -> None:
        step.graphs[next(turn) % len(step.graphs)].replay()

    ours_ns = bench.time_ns(ours, lambda: peer())
    peer_ns = bench.time_ns(lambda: peer(), ours)
    other = triton(bench, step)
    triton_ns = bench.time_ns(other, ours) if other else None
    rate = case.read_bytes * 10**9 // ours_ns if ours_ns else 0
    return {
        "case": asdict(case) | {"storage": case.storage.name},
        "ns": ours_ns,
        "sdpa_ns": peer_ns,
        "triton_ns": triton_ns,
        "read_bytes": case.read_bytes,
        "ppm_of_peak": rate * 1_000_000 // int(PEAK_BYTES_PER_S),
        "ppm_of_read_probe": rate * 1_000_000 // read_bytes_per_s if read_bytes_per_s else 0,
        "rotated_pools": len(step.pools),
    }


def measure_append(bench: Bench, rows: int) -> dict[str, Any]:
    """Append of ``rows`` rows of 8 heads of 128, both slabs in one launch, captured."""
    rows = min(rows, 64) if bench.rehearsal else rows
    slabs = [SlabSpec(name, 1, 8, 128, Storage.F16) for name in ("k", "v")]
    pools = [bench.device.allocate(slab, -(-rows // 16) + 1, 16) for slab in slabs]
    slots = bench.torch.randperm(rows).to(bench.place)
    matrices = [bench.torch.randn(rows, 1_024).to(bench.place) for _ in slabs]
    graph = bench.device.capture(lambda: bench.device.append_together(pools, 0, matrices, slots))
    ns = bench.time_ns(graph.replay, lambda: None)
    moved = rows * 2 * 1_024 * (4 + 2)
    rate = moved * 10**9 // ns if ns else 0
    return {
        "rows": rows,
        "ns": ns,
        "moved_bytes": moved,
        "ppm_of_peak": rate * 1_000_000 // int(PEAK_BYTES_PER_S),
    }


def open_bench(rehearse: bool) -> tuple[Bench, str]:
    options = CudaOptions(partial_values_max=1 << (18 if rehearse else 27))
    if rehearse:
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "cuda"))
        from recording_driver import Recorder, RecordingCupy, RecordingTorch

        recorder = Recorder()
        torch = RecordingTorch(recorder)
        runtime = CudaRuntime(RecordingCupy(recorder), torch, compiled=recorder.compiled)
        device = CudaStepDevice(runtime, options)
        return Bench(device, torch, runtime.device, True), "none: rehearsal"
    runtime = CudaRuntime.open()
    name = runtime.torch.cuda.get_device_name(runtime.device)
    runtime.torch.cuda.set_stream(runtime.compute)
    device = CudaStepDevice(runtime, options)
    return Bench(device, runtime.torch, runtime.device, False), str(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    parser.add_argument("--rehearse", action="store_true", help="on the emulator, tiny, no times")
    arguments = parser.parse_args()
    try:
        bench, card = open_bench(arguments.rehearse)
    except CudaUnavailableError as error:
        raise SystemExit(f"{error}; --rehearse needs no card") from error
    started = time.monotonic()
    bench.begin("correctness")
    correct = check(bench)
    bench.begin("probes")
    probe = probes(bench)
    bench.begin("decode")
    read = probe["read_bytes_per_s"]
    decode = [measure(bench, case, read) for case in CASES if bench.has_time(case.name)]
    bench.begin("append")
    append = [
        measure_append(bench, rows)
        for rows in (128, 16_384, 65_536)
        if bench.has_time(f"append of {rows} rows")
    ]
    bench.begin("model")
    result = {
        "schema": SCHEMA,
        "card": card,
        "torch": str(bench.torch.__version__),
        "correctness": correct,
        "probes": probe,
        "decode": decode,
        "append": append,
        "model": gpu_decode.measure(bench.device, bench.rehearsal),
        "left_out": bench.left_out,
        "seconds": 0 if bench.rehearsal else round(time.monotonic() - started),
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for line in decode:
        times = f"{line['ns'] / 1e3:.1f} us, {line['ppm_of_peak'] / 1e4:.1f}% of peak"
        print(f"{line['case']['name']}: {'rehearsed' if bench.rehearsal else times}")
    for name in bench.left_out:
        print(f"left out for lack of time: {name}")


if __name__ == "__main__":
    main()
