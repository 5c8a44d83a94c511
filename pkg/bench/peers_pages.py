"""The cases of `bench pages` in another engine's own interpreter; prints one JSON object.

Run as a script with the name of the peer. It imports nothing of pagetrail, because the peer's
environment has it not: it is told the sizes, and answers nanoseconds of CPU time by case.
"""

from __future__ import annotations

import gc
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

REPETITIONS = 50


def median_ns(work: Callable[[], object], prepare: Callable[[], object] = lambda: None) -> int:
    """Median CPU time of one call; ``prepare`` is not counted."""
    times = []
    gc.disable()
    for _ in range(REPETITIONS):
        prepare()
        start = time.thread_time_ns()
        work()
        times.append(time.thread_time_ns() - start)
    gc.enable()
    return int(statistics.median(times))


def vllm(page_tokens: int, prompt_tokens: int, pages: int) -> dict[str, int]:
    """KVCacheManager with SHA-256 block hashes and prefix caching."""
    import torch
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_manager import KVCacheManager
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(page_tokens, sha256)
    spec = FullAttentionSpec(
        block_size=page_tokens, num_kv_heads=1, head_size=64, dtype=torch.float16
    )
    config = KVCacheConfig(pages, [], [KVCacheGroupSpec(["layer"], spec)])
    manager = KVCacheManager(config, prompt_tokens * 2, page_tokens, page_tokens)
    tokens = [place * 7 % 50_000 for place in range(prompt_tokens)]
    numbers = iter(range(10**9))

    def request(prompt: list[int], block_hasher: Any) -> Any:
        parameters = SamplingParams(max_tokens=1)
        return Request(str(next(numbers)), prompt, parameters, None, block_hasher=block_hasher)

    def hold(prompt: list[int], block_hasher: Any) -> Any:
        held = request(prompt, block_hasher)
        if manager.allocate_slots(held, len(prompt)) is None:
            raise MemoryError("the peer's pool is too small for the case")
        return held

    hashed = request(tokens, hasher)
    costs = {"hash": median_ns(lambda: hasher(request(tokens, None)))}
    manager.free(hold(tokens, hasher))
    costs["lookup"] = median_ns(lambda: manager.get_computed_blocks(hashed))
    ready: list[Any] = []

    def prepare() -> None:
        ready[:] = [request([place + 1 for place in tokens], None)]

    def allocate() -> None:
        manager.allocate_slots(ready[0], prompt_tokens, delay_cache_blocks=True)
        manager.free(ready[0])

    costs["allocate"] = median_ns(allocate, prepare)
    return costs


if __name__ == "__main__":
    peers = {"vllm": vllm}
    sizes = [int(size) for size in sys.argv[2:]]
    print(json.dumps(peers[sys.argv[1]](*sizes)))
