"""Decode steps run from programs: equal to whole prefill at every length, in every family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from streams import Stream, all_logits, greedy, tables

from pagetrail.engine.model import EngineOptions, load
from pagetrail.engine.recorded_steps import PROGRAMS_MAX, RECORDED_ROWS_MAX


@pytest.mark.parametrize("threads", [1, 2])
def test_decode_steps_recorded_short_and_run_long_equal_the_whole_prefill(
    tiny_model: Callable[[str], Path], threads: int
) -> None:
    model = load(str(tiny_model("llama")), EngineOptions(pages=64, threads=threads))
    tokens = np.random.default_rng(0).integers(3, 500, 400).tolist()
    want = all_logits(model, Stream(tables(model, 0, 26), list(tokens)), chunk=400)
    assert RECORDED_ROWS_MAX < 400, "the whole prefill is eager"
    got = all_logits(model, Stream(tables(model, 0, 26, seed=1), list(tokens)), chunk=1)
    np.testing.assert_array_equal(got.view(np.uint32), want.view(np.uint32))


def test_more_shapes_than_programs_are_kept_go_on_giving_the_same_tokens(
    tiny_model: Callable[[str], Path],
) -> None:
    model = load(str(tiny_model("llama")), EngineOptions(pages=400))
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, 500, int(n)).tolist() for n in rng.integers(1, 60, 20)]
    solo = [greedy(model, [prompt], new=3)[0].out for prompt in prompts]
    for count in range(1, len(prompts) + 1):
        for chunk in (1, 2, 5):  # steps of ever other rows: more shapes than there is room for
            together = greedy(model, prompts[:count], new=3, chunk=chunk, seed=count)
            assert [stream.out for stream in together] == solo[:count]
        if count * 3 > PROGRAMS_MAX:
            break
