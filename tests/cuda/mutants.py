"""Planted mistakes: a text to replace in a kernel source, and a folder of sources that has it."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from pagetrail.kernels.cuda.launch import source_files


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str
    old: str
    new: str


MISSING_BARRIER = Mutant(
    "missing barrier",
    "paged_attention.cuh",
    "    __syncthreads();  // C: the weights of all warps are there\n",
    "",
)
MISSING_WAIT = Mutant(
    "missing wait", "paged_attention.cuh", "      async_copy_wait<kStages - 2>();\n", ""
)
SHORT_WAIT = Mutant(
    "a wait that covers one tile too few",
    "paged_attention.cuh",
    "async_copy_wait<kStages - 2>()",
    "async_copy_wait<kStages - 1>()",
)
SWAPPED_KEYS = Mutant(
    "keys of a tile in the wrong order",
    "paged_attention.cuh",
    "Elem::multiply(scores[r][0], query, key[0], key[1]);",
    "Elem::multiply(scores[r][0], query, key[1], key[0]);",
)
SWAPPED_ASSEMBLY = Mutant(
    "operands of the instruction in the wrong order",
    "intrinsics.cuh",
    ': "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));\n}\n\n#endif',
    ': "r"(a[0]), "r"(a[2]), "r"(a[1]), "r"(a[3]), "r"(b0), "r"(b1));\n}\n\n#endif',
)
WINDOW_OFF_BY_ONE = Mutant(
    "window one key too wide",
    "paged_attention.cuh",
    "position - a.window + 1",
    "position - a.window",
)
CAUSAL_OFF_BY_ONE = Mutant(
    "a row that does not see itself",
    "paged_attention.cuh",
    "min(item.kv_hi, position + 1)",
    "min(item.kv_hi, position)",
)
DIVERGENT_SHUFFLE = Mutant(
    "a shuffle in a branch that some lanes skip",
    "gqa_ref.cu",
    "    const float score = sum_of_warp(dot) * scale_log2;",
    "    float score = dot;\n    if (lane != 3) score = sum_of_warp(dot) * scale_log2;",
)
WRAPPED_READ = Mutant(
    "int32 overflow of page x stride when reading",
    "pages.cuh",
    "return page(token) * strides.page",
    "return static_cast<i32>(static_cast<u32>(page(token)) * static_cast<u32>(strides.page))",
)
WRAPPED_WRITE = Mutant(
    "int32 overflow of page x stride when appending",
    "pages.cuh",
    "return page * strides.page",
    "return static_cast<i32>(static_cast<u32>(page) * static_cast<u32>(strides.page))",
)
WRAPPED_COPY = Mutant(
    "int32 overflow of page x bytes when gathering",
    "pages.cu",
    "page_ids[row >> page_shift] * page_bytes",
    "static_cast<i32>(static_cast<u32>(page_ids[row >> page_shift]) * "
    "static_cast<u32>(page_bytes))",
)
OVERFLOWS = (WRAPPED_READ, WRAPPED_WRITE, WRAPPED_COPY)
TILE_READ_TOO_EARLY = Mutant(
    "missing barrier between making a coded tile and reading it",
    "paged_attention.cuh",
    "        __syncthreads();  // the whole tile is made\n",
    "",
)
SCALES_OF_THE_OTHER_SLAB = Mutant(
    "keys read with the scales of values",
    "tiles.cuh",
    "stage, scales);\n    land_rows",
    "stage, scales + kTileTokens);\n    land_rows",
)
SCALES_OF_ANOTHER_TOKEN = Mutant(
    "every token read with the scale of the tile's first",
    "tiles.cuh",
    "item.pages.slot(token) * first.heads",
    "item.pages.slot(first_token) * first.heads",
)
OF_CODED_PAGES = (TILE_READ_TOO_EARLY, SCALES_OF_THE_OTHER_SLAB, SCALES_OF_ANOTHER_TOKEN)
ALL = (
    MISSING_BARRIER,
    MISSING_WAIT,
    SHORT_WAIT,
    SWAPPED_KEYS,
    WINDOW_OFF_BY_ONE,
    CAUSAL_OFF_BY_ONE,
    DIVERGENT_SHUFFLE,
)


def plant(mutant: Mutant | None, folder: Path) -> Path:
    """A copy of the kernel sources with the mistake in it. The text must occur exactly once."""
    folder.mkdir(parents=True, exist_ok=True)
    for source in source_files():
        shutil.copy(source, folder / source.name)
    if mutant is not None:
        path = folder / mutant.file
        text = path.read_text()
        assert text.count(mutant.old) == 1, f"{mutant.name}: found {text.count(mutant.old)} times"
        path.write_text(text.replace(mutant.old, mutant.new))
    return folder
