"""Pools of many gigabytes of addresses, of which a few pages are memory.

The pool starts well inside the mapping: an offset that wrapped to a negative or a small number
lands in zeros that are there, so that a wrong kernel gives wrong numbers and not a dead process.
"""

from __future__ import annotations

import mmap

import numpy as np

from pagetrail.kernels.abi import SlabSpec, Storage
from pagetrail.kernels.device import AttentionSpec, Device, PagePool
from pagetrail.kernels.plan import SequenceRows, plan

MAP_NORESERVE = 0x4000  # of Linux; the mmap module names it from Python 3.13 on
SPEC = SlabSpec("k", 1, 8, 128, Storage.F16)
PAGE_TOKENS = 16
PAGE_ELEMENTS = PAGE_TOKENS * SPEC.heads * SPEC.width
LEAD_BYTES = 2**31 * 2  # a 32-bit count of elements reaches this far back
FAR_PAGES = tuple(elements // PAGE_ELEMENTS + 3 for elements in (2**31, 2**32))


def sparse_pool() -> PagePool:
    """A pool whose last pages start past 2^32 elements."""
    pages = FAR_PAGES[-1] + 1
    size = pages * PAGE_ELEMENTS
    memory = mmap.mmap(
        -1,
        LEAD_BYTES + 2 * size,
        flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE,
    )
    whole = np.frombuffer(memory, np.float16)
    array = whole[LEAD_BYTES // 2 :].reshape(1, pages, PAGE_TOKENS, SPEC.heads, SPEC.width)
    return PagePool(SPEC, pages, PAGE_TOKENS, array)


def read_back(device: Device, pool: PagePool, page: int) -> list[bytes]:
    """What three appended rows of ``page`` come to: as bytes of the pool, gathered, attended."""
    rows = np.random.default_rng(3).standard_normal((3, SPEC.heads * SPEC.width))
    rows = rows.astype(np.float32)
    device.append(pool, 0, rows, page * PAGE_TOKENS + np.arange(3, dtype=np.int64))
    table = np.array([page], np.int32)
    out = np.full((1, SPEC.heads * SPEC.width), np.nan, np.float32)
    batch = plan([SequenceRows(1, 3, table)], PAGE_TOKENS)
    device.attention(AttentionSpec(SPEC.heads, 0.1), 0, rows[:1], [pool], pool, batch, out)
    return [
        pool.array[0, page, :3].tobytes(),
        device.gather(pool, table, 0, 3).tobytes(),
        out.tobytes(),
    ]


def far_equals_near(device: Device) -> bool:
    """Whether pages past 2^31 and 2^32 elements give what a page of a small pool gives."""
    near = read_back(device, device.allocate(SPEC, 2, PAGE_TOKENS), 1)
    pool = sparse_pool()
    return all(read_back(device, pool, page) == near for page in FAR_PAGES)
