"""The cases of `bench pages` in another engine's own interpreter; prints one JSON object.

Run as a script with the name of the peer. It imports nothing of pagetrail, because the peer's
environment has it not: it is told the sizes, and answers nanoseconds of CPU time by case.
"""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import statistics
import sys
import time
import types
from array import array
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

REPETITIONS = 50
LEAVES = 4_000
# The radix cache and what it is made of; the engine around it needs a card's libraries.
SGLANG_CACHE = tuple(
    f"sglang.srt.mem_cache.{name}"
    for name in (
        "radix_cache",
        "base_prefix_cache",
        "events",
        "utils",
        "cache_init_params",
        "evict_policy",
    )
)


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


class _Absent(types.ModuleType):
    """A module of the engine around the cache: its names exist and are never used."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


class _CacheAlone:
    """Imports the peer's cache, and an absent module for all the rest of it."""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        if not name.startswith("sglang.") or name in SGLANG_CACHE:
            return None
        return ModuleSpec(name, self, is_package=True)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        module = _Absent(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: Any) -> None:
        if module.__name__ == "sglang.srt.utils.common":
            module.ceil_align = lambda size, unit: -(-size // unit) * unit


def sglang(page_tokens: int, prompt_tokens: int, pages: int) -> dict[str, int]:
    """RadixCache by itself; it compares tokens instead of hashing them, and owns no pages."""
    found = importlib.util.find_spec("sglang")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("sglang is not installed here")
    root = Path(found.origin).parent
    for place in ("sglang", "sglang/srt", "sglang/srt/mem_cache"):
        package = types.ModuleType(place.replace("/", "."))
        package.__path__ = [str(root.parent / place)]
        sys.modules[package.__name__] = package
    sys.meta_path.insert(0, _CacheAlone())
    import torch
    from sglang.srt.mem_cache.base_prefix_cache import (
        EvictParams,
        InsertParams,
        MatchPrefixParams,
    )
    from sglang.srt.mem_cache.radix_cache import RadixCache, RadixKey

    class Allocator:
        device = "cpu"

        def free_segment(self, value: object, start_pos: int = 0) -> None:
            """Its pages are counted elsewhere."""

    cache = RadixCache.create_simulated(mock_allocator=Allocator(), page_size=page_tokens)

    def keep(tokens: list[int]) -> None:
        key = RadixKey(array("q", tokens))
        cache.insert(InsertParams(key=key, value=torch.arange(len(tokens))))

    tokens = [place * 7 % 50_000 for place in range(prompt_tokens)]
    keep(tokens)
    prompt = MatchPrefixParams(key=RadixKey(array("q", tokens)))
    costs = {"lookup": median_ns(lambda: cache.match_prefix(prompt))}
    for leaf in range(LEAVES):
        keep([60_000 + leaf] * page_tokens)
    numbers = iter(range(60_000 + LEAVES, 10**6))
    costs["evict"] = median_ns(
        lambda: cache.evict(EvictParams(num_tokens=page_tokens)),
        lambda: keep([next(numbers)] * page_tokens),
    )
    return costs


if __name__ == "__main__":
    peers = {"vllm": vllm, "sglang": sglang}
    sizes = [int(size) for size in sys.argv[2:]]
    print(json.dumps(peers[sys.argv[1]](*sizes)), flush=True)
    os._exit(0)  # a peer's libraries may wait for ever on their way out
