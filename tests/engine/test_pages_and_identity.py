"""State in and out of the pages, copy-on-write, and what the fingerprint distinguishes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from streams import Stream, all_logits, poison_all, run_step, tables

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.identity import content_id, fingerprint
from pagetrail.catalog.layout import ElementType
from pagetrail.catalog.layout_families import layout_of
from pagetrail.engine.checkpoint import open_checkpoint
from pagetrail.engine.families import describe
from pagetrail.engine.model import EngineModel, EngineOptions, PageTable, RowSpec, load
from pagetrail.engine.state_layout import state_layout
from pagetrail.kernels.abi import Storage

Maker = Callable[[str], Path]


def opened(directory: Path, **options: object) -> EngineModel:
    fields = {"pages": 64, "page_tokens": 16} | options
    model = load(str(directory), EngineOptions(**fields))
    poison_all(model)
    return model


def prompt(count: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(3, 500, count).tolist()


@pytest.mark.parametrize("family_name", ["llama", "gemma3", "deepseek-v3"])
@pytest.mark.parametrize("storage", list(Storage))
def test_a_restored_stream_goes_on_bit_for_bit_and_its_bytes_keep_their_content_id(
    tiny_model: Maker, family_name: str, storage: Storage
) -> None:
    model = opened(tiny_model(family_name), kv_storage=storage)
    tokens = prompt(100)
    source = Stream(tables(model, 0, 8), list(tokens))
    want = all_logits(model, source, chunk=100)
    # Two captures: chunk edges of 64 need not be page edges of the other engine.
    parts = [
        [
            model.capture(table.page_ids, start, end, group)
            for group, table in enumerate(source.tables)
        ]
        for start, end in ((0, 40), (40, 99))
    ]
    other = opened(tiny_model(family_name), kv_storage=storage, page_tokens=32, pages=16)
    target = Stream(tables(other, 0, 4, seed=5), list(tokens), processed=99)
    for (start, end), payloads in zip(((0, 40), (40, 99)), parts, strict=True):
        for group, payload in enumerate(payloads):
            table = target.tables[group]
            other.restore(table.page_ids, start, end, payload, group)
            again = other.capture(table.page_ids, start, end, group)
            assert content_id(again) == content_id(payload)
            assert len(payload) == (end - start) * other.layout.row_bytes(group)
    logits = other.step([target.rows(1)])
    np.testing.assert_array_equal(logits[0].view(np.uint32), want[99].view(np.uint32))


def test_captured_bytes_stand_in_order_of_slab_layer_and_row(tiny_model: Maker) -> None:
    model = opened(tiny_model("gemma3"))
    stream = Stream(tables(model, 0, 4), prompt(30))
    all_logits(model, stream, chunk=30)
    for group, table in enumerate(stream.tables):
        payload = model.capture(table.page_ids, 5, 25, group)
        want = b""
        for pool in model.arena.pools[group]:
            for layer in range(pool.spec.layers):
                for row in range(5, 25):
                    want += pool.array[layer, table.page_ids[row // 16], row % 16].tobytes()
        assert payload == want


def test_a_restore_of_another_length_is_refused_and_writes_nothing(tiny_model: Maker) -> None:
    model = opened(tiny_model("llama"))
    table = np.arange(4, dtype=np.int32)
    before = [pool.array.copy() for pool in model.arena.pools[0]]
    with pytest.raises(BadInputError, match="were given"):
        model.restore(table, 0, 10, b"\0" * 10)
    for pool, old in zip(model.arena.pools[0], before, strict=True):
        np.testing.assert_array_equal(pool.array.view(np.uint8), old.view(np.uint8))


def test_a_fork_that_copies_its_last_page_leaves_the_source_alone(tiny_model: Maker) -> None:
    model = opened(tiny_model("llama"))
    tokens = prompt(20)
    pages = np.array([3, 9], np.int32)
    source = Stream((PageTable(pages),), list(tokens))
    run_step(model, [source], chunk=20)
    model.copy_page(9, 14)
    fork = Stream((PageTable(np.array([3, 14], np.int32)),), [*tokens, 77], processed=20)
    solo = Stream((PageTable(np.array([20, 21], np.int32)),), [*tokens, 77])
    fork_logits = run_step(model, [fork], chunk=1)[0]
    solo_logits = run_step(model, [solo], chunk=21)[0]
    np.testing.assert_array_equal(fork_logits.view(np.uint32), solo_logits.view(np.uint32))
    # The source goes on as if nobody had forked it.
    twin = Stream((PageTable(np.array([30, 31], np.int32)),), list(source.tokens))
    np.testing.assert_array_equal(
        run_step(model, [source], 1)[0].view(np.uint32),
        run_step(model, [twin], 99)[0].view(np.uint32),
    )


def test_a_poisoned_page_cannot_be_read_unnoticed(tiny_model: Maker) -> None:
    model = opened(tiny_model("llama"))
    stream = Stream(tables(model, 0, 4), prompt(40))
    run_step(model, [stream], chunk=40)
    model.poison(stream.tables[0].page_ids[:1])
    assert np.isnan(run_step(model, [stream], chunk=1)[0]).all()


def test_window_pages_that_fell_behind_may_be_given_back(tiny_model: Maker) -> None:
    model = opened(tiny_model("gemma3"))  # window 33 in group 1
    tokens = prompt(90)
    whole = Stream(tables(model, 0, 6), list(tokens))
    want = all_logits(model, whole, chunk=90)
    stream = Stream(tables(model, 1, 6), list(tokens))
    got = []
    while stream.processed < 90:
        first_read = max(0, stream.processed - 33 + 1)
        full, window = stream.tables
        gone = first_read // 16
        model.poison(window.page_ids[:gone], 1)
        short = PageTable(window.page_ids[gone:], gone * 16)
        chunk = tokens[stream.processed : stream.processed + 7]
        got.append(model.step([RowSpec((full, short), stream.processed, chunk, len(chunk))]))
        stream.processed += len(chunk)
    np.testing.assert_array_equal(np.concatenate(got).view(np.uint32), want.view(np.uint32))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": []}, "1 to"),
        ({"tokens": [512]}, "tokens must lie in"),
        ({"tokens": [-1]}, "tokens must lie in"),
        ({"start": 1024}, "context of 1024"),
        ({"start": -1}, "within the context"),
        ({"wanted": 2}, "logits of 2 rows wanted"),
        ({"tables": ()}, "brings 0 page tables"),
        ({"tables": (PageTable(np.array([64], np.int32)),)}, r"\[0, 64\)"),
        ({"start": 16}, "fewer page entries"),
    ],
)
def test_rows_that_cannot_run_are_refused_before_anything_is_written(
    tiny_model: Maker, change: dict, message: str
) -> None:
    model = opened(tiny_model("llama"))
    good = RowSpec((PageTable(np.array([1], np.int32)),), 0, [5])
    before = model.arena.pools[0][0].array.copy()
    bad = dataclasses.replace(good, **change)
    with pytest.raises(ValueError, match=message):
        model.step([bad] if not bad.tokens else [good, bad])
    after = model.arena.pools[0][0].array
    np.testing.assert_array_equal(after.view(np.uint8), before.view(np.uint8))


def test_the_layout_is_the_one_the_catalog_works_out_from_the_configuration(
    tiny_model: Maker,
) -> None:
    for family in ("llama", "qwen2", "qwen3", "gemma3", "deepseek-v3"):
        config = open_checkpoint(tiny_model(family)).config
        for storage, element in (
            (Storage.F32, ElementType.FP32),
            (Storage.F16, ElementType.FP16),
            (Storage.BF16, ElementType.BF16),
        ):
            mine = state_layout(describe(config), storage, 16)
            assert mine == layout_of(config, 16, element)


def test_row_bytes_of_the_layout_are_those_of_the_pools(family: str, tiny_model: Maker) -> None:
    model = opened(tiny_model(family), kv_storage=Storage.F16)
    for group in range(len(model.arena.groups)):
        assert model.layout.row_bytes(group) == model.arena.row_bytes(group)


def test_the_fingerprint_differs_wherever_a_bit_could(tiny_model: Maker, tmp_path: Path) -> None:
    from tiny_models import save_tiny

    base = opened(tiny_model("llama"))
    same = opened(tiny_model("llama"), page_tokens=32, pages=40, context=100)
    assert base.fingerprint() == same.fingerprint() == fingerprint(base.facts.compatibility)
    save_tiny("llama", tmp_path, rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    others = [
        opened(tiny_model("llama"), kv_storage=Storage.F16),
        opened(tiny_model("llama"), weight_storage=Storage.BF16),
        opened(tiny_model("qwen2")),
        opened(tiny_model("llama"), fast=True),
        opened(tmp_path),  # equal weights, other rotary base
    ]
    found = {base.fingerprint(), *(model.fingerprint() for model in others)}
    assert len(found) == 6
    assert others[-1].facts.compatibility.weights == base.facts.compatibility.weights
