"""Measures the CUDA kernels on a card in one run of under six minutes, and rehearses without one.

    python benchmarks/gpu.py --out result.json              # on a card
    python benchmarks/gpu.py --rehearse --out rehearsal.json   # the same code on the host emulator

Order: correctness of every case against float64 first (a wrong kernel is not timed), then probes
of the card's own read and copy speed, then every case: captured into a graph, pools rotated so that
no run finds its pages in the L2 cache, timed by events, medians, interleaved with torch's SDPA over
contiguous K and V of the same sizes. Fractions are of the read probe and of the goal's 4.8 TB/s.

The rehearsal runs every launch, staging and capture call on tiny sizes against recording stand-ins
(tests/cuda/recording_driver.py); its times say nothing and are not written.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from pagetrail.kernels.abi import RaggedBatch, SlabSpec, Storage
from pagetrail.kernels.cuda_device import CudaDevice, CudaOptions
from pagetrail.kernels.cuda_runtime import CudaRuntime, CudaUnavailableError
from pagetrail.kernels.device import AttentionSpec, PagePool
from pagetrail.kernels.oracle import attention as attention_oracle
from pagetrail.kernels.plan import SequenceRows, plan

SCHEMA = 1
PEAK_BYTES_PER_S = 4.8e12  # of an H200
ROTATION_BYTES = 4 * 60 * 2**20  # four times its L2 cache
REPEATS = 15
TOLERANCE = {Storage.F16: 1e-3, Storage.BF16: 5e-3}
CHECK_TOKENS_MAX = 2_048


@dataclass(frozen=True, slots=True)
class Case:
    """Decode of ``batch`` sequences of ``tokens``; ``goal_ppm`` is the first goal's fraction."""

    name: str
    batch: int
    tokens: int
    goal_ppm: int
    kv_heads: int = 8
    group: int = 4
    width: int = 128
    rotary: int = 0
    window: int = 0
    page_tokens: int = 16
    storage: Storage = Storage.F16

    @property
    def q_heads(self) -> int:
        return self.kv_heads * self.group

    @property
    def row_bytes(self) -> int:
        """Bytes of one token that a decode step reads."""
        elements = self.width + self.rotary if self.rotary else 2 * self.width
        return self.kv_heads * elements * self.storage.element_bytes

    @property
    def read_bytes(self) -> int:
        seen = min(self.tokens, self.window) if self.window else self.tokens
        return self.batch * seen * self.row_bytes


CASES = (
    Case("gqa 32/8 d128, 32 x 4k", 32, 4_096, 700_000),
    Case("gqa 32/8 d128, 128 x 4k", 128, 4_096, 700_000),
    Case("gqa 32/8 d128, 32 x 32k", 32, 32_768, 700_000),
    Case("gqa 32/8 d128, 8 x 4k", 8, 4_096, 450_000),
    Case("gqa 32/8 d128, 1 x 32k", 1, 32_768, 300_000),
    Case("gqa 32/8 d128 bf16, 32 x 4k", 32, 4_096, 700_000, storage=Storage.BF16),
    Case("window 4k, 64 x 8k", 64, 8_192, 500_000, window=4_096),
    Case("window 1k, 64 x 8k", 64, 8_192, 500_000, window=1_024),
    Case("mla 16 heads, 64 x 8k", 64, 8_192, 550_000, 1, 16, 512, 64),
)


@dataclass(slots=True)
class Bench:
    """The device, torch as it sees it, and how time is read; ``rehearsal`` shrinks every case."""

    device: CudaDevice
    torch: Any
    place: Any
    rehearsal: bool

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
    pools: list[list[PagePool]]  # rotated
    batch: RaggedBatch
    q: Any
    out: Any
    graphs: list[Any]


def shrunk(case: Case) -> Case:
    """A rehearsal's size of a case: the same shapes of kernels, little work."""
    return replace(
        case,
        batch=min(case.batch, 2),
        tokens=min(case.tokens, 300),
        window=min(case.window, 100),
        kv_heads=min(case.kv_heads, 2),
        width=64,
        rotary=min(case.rotary, 16),
    )


def prepare(bench: Bench, case: Case) -> Step:
    """Fill the pools with random rows, stage the batch, and capture one graph per rotated pool."""
    pages_each = -(-case.tokens // case.page_tokens)
    pages = pages_each * case.batch
    order = np.random.default_rng(0).permutation(pages).astype(np.int32)
    rotation = 1 if bench.rehearsal else max(2, -(-ROTATION_BYTES // case.read_bytes))
    slabs = [SlabSpec("first", 1, case.kv_heads, case.width, case.storage)]
    second = case.rotary or case.width
    slabs.append(SlabSpec("second", 1, case.kv_heads, second, case.storage))
    pools = [
        [bench.device.allocate(slab, pages, case.page_tokens) for slab in slabs]
        for _ in range(rotation)
    ]
    for pool in (pool for pair in pools for pool in pair):
        pool.array.normal_()  # type: ignore[attr-defined]
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


def attend(bench: Bench, step: Step, pair: list[PagePool]) -> None:
    case = step.case
    keys = pair if case.rotary else pair[:1]
    values = pair[0] if case.rotary else pair[1]
    what = AttentionSpec(case.q_heads, (case.width + case.rotary) ** -0.5)
    bench.device.attention(what, 0, step.q, keys, values, step.batch, step.out)


def relative_error(bench: Bench, step: Step) -> float:
    """Of the first graph's output against float64."""
    step.graphs[0].replay()
    case, pair = step.case, step.pools[0]
    arrays = [pool.array.float().cpu().numpy()[0].astype(np.float64) for pool in pair]  # type: ignore[attr-defined]
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


def measure(bench: Bench, case: Case, read_bytes_per_s: int) -> dict[str, Any]:
    """Times of one case and of SDPA, taken in turns."""
    case = shrunk(case) if bench.rehearsal else case
    step = prepare(bench, case)
    turn = iter(range(10**9))
    peer = sdpa(bench, case)

    def ours() -> None:
        step.graphs[next(turn) % len(step.graphs)].replay()

    ours_ns = bench.time_ns(ours, lambda: peer())
    peer_ns = bench.time_ns(lambda: peer(), ours)
    rate = case.read_bytes * 10**9 // ours_ns if ours_ns else 0
    return {
        "case": asdict(case) | {"storage": case.storage.name},
        "ns": ours_ns,
        "sdpa_ns": peer_ns,
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
        return Bench(CudaDevice(runtime, options), torch, runtime.device, True), "none: rehearsal"
    runtime = CudaRuntime.open()
    name = runtime.torch.cuda.get_device_name(runtime.device)
    runtime.torch.cuda.set_stream(runtime.compute)
    return Bench(CudaDevice(runtime, options), runtime.torch, runtime.device, False), str(name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="where the JSON goes")
    parser.add_argument("--rehearse", action="store_true", help="on the emulator, tiny, no times")
    arguments = parser.parse_args()
    try:
        bench, card = open_bench(arguments.rehearse)
    except CudaUnavailableError as error:
        raise SystemExit(f"{error}; --rehearse needs no card") from error
    correct = check(bench)
    probe = probes(bench)
    result = {
        "schema": SCHEMA,
        "card": card,
        "torch": str(bench.torch.__version__),
        "correctness": correct,
        "probes": probe,
        "decode": [measure(bench, case, probe["read_bytes_per_s"]) for case in CASES],
        "append": [measure_append(bench, rows) for rows in (128, 16_384, 65_536)],
    }
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    for line in result["decode"]:
        times = f"{line['ns'] / 1e3:.1f} us, {line['ppm_of_peak'] / 1e4:.1f}% of peak"
        print(f"{line['case']['name']}: {'rehearsed' if bench.rehearsal else times}")


if __name__ == "__main__":
    main()
