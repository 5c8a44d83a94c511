"""Bytes and rows of attention state: published figures, hand-worked vectors, and refusals."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.layout import (
    ElementType,
    Extent,
    Group,
    Room,
    Slab,
    StateLayout,
    digest,
    encoding,
    first_row_read,
    may_continue,
    one_group,
    pages_for,
    pages_needed,
    reserved_rows,
    restored_bytes,
    size_pools,
    span_pages,
    window_floor,
)
from pagetrail.catalog.layout_families import WORKED, layout_of
from pagetrail.catalog.layout_table import layout_table

MIB = 1024 * 1024


def worked(name: str, page_tokens: int = 16, dtype: ElementType = ElementType.BF16) -> StateLayout:
    return layout_of(WORKED[name], page_tokens, dtype)


def seven_kib_a_token() -> StateLayout:
    """Seven attention layers of 2 heads x 128, keys and values in 16 bits, pages of 512."""
    slabs = tuple(Slab(name, 7, 256, ElementType.BF16) for name in ("key", "value"))
    return StateLayout("example", slabs, one_group(slabs), 512, fixed_bytes=64 * MIB)


def test_a_long_reply_reserves_thirteen_pages_and_a_shorter_prompt_twelve() -> None:
    layout = seven_kib_a_token()
    assert layout.row_bytes(0) == 7_168
    assert layout.page_bytes(0) == 3 * MIB + MIB // 2
    assert pages_for(reserved_rows(2_048, 4_096, 16), 512) == 13
    assert 13 * layout.page_bytes(0) == 45 * MIB + MIB // 2
    assert pages_for(reserved_rows(2_000, 4_096, 16), 512) == 12


@pytest.mark.parametrize(
    ("boundary", "window", "chunk", "first", "floor"),
    [
        (8, 8, 4, 1, 0),
        (18, 8, 4, 11, 8),
        (19, 8, 4, 12, 12),
        (20, 8, 4, 13, 12),
        (600, 300, 256, 301, 256),
        (856, 300, 256, 557, 512),
        (4096, 512, 256, 3585, 3584),
    ],
)
def test_a_window_is_restored_from_the_chunk_of_the_first_row_it_reads(
    boundary: int, window: int, chunk: int, first: int, floor: int
) -> None:
    assert first_row_read(boundary, window) == first
    assert window_floor(boundary, window, chunk) == floor


def test_a_route_at_20_with_floor_12_may_be_forked_at_19_and_not_at_18() -> None:
    assert may_continue(19, 8, 12)
    assert not may_continue(18, 8, 12)


@pytest.mark.parametrize("context", [7, 8, 9])
def test_a_window_holds_the_row_itself(context: int) -> None:
    """Keys (p - w, p]: a context one below, at and above the window of 8."""
    read = [key for key in range(context + 1) if context - 8 < key <= context]
    assert read[0] == first_row_read(context, 8)
    assert len(read) == min(8, context + 1)


def test_gemma_restores_its_windows_and_not_the_whole_prefix() -> None:
    layout = worked("gemma-3-270m", dtype=ElementType.FP16)
    assert [len(group.members) for group in layout.groups] == [6, 30]
    assert restored_bytes(layout, 4_096, 256) == 20_447_232
    everything = sum(layout.row_bytes(group) for group in layout.paged_groups()) * 4_096
    assert everything == 75_497_472


@pytest.mark.parametrize(
    ("name", "token_bytes", "fixed_bytes"),
    [
        ("llama-3.1-8b", 2 * 32 * 8 * 128 * 2, 0),
        ("qwen3-8b", 147_456, 0),
        ("deepseek-v3", 70_272, 0),  # (512 + 64) x 2 B x 61 layers
        ("nemotron-3-nano", 6_144, 49_082_368),  # 46 MiB of state, 847,872 B of convolution
    ],
)
def test_published_families_take_their_published_bytes(
    name: str, token_bytes: int, fixed_bytes: int
) -> None:
    layout = worked(name)
    assert sum(layout.row_bytes(group) for group in layout.paged_groups()) == token_bytes
    assert layout.fixed_bytes == fixed_bytes
    assert layout.snap_bytes == fixed_bytes


def test_layer_types_say_the_same_as_the_pattern_that_they_replace() -> None:
    config = dict(WORKED["gemma-3-270m"])
    del config["sliding_window_pattern"]
    config["layer_types"] = (["sliding_attention"] * 5 + ["full_attention"]) * 3
    assert layout_of(config, 16, ElementType.BF16) == worked("gemma-3-270m")


def test_one_implicit_group_leaves_the_identity_alone() -> None:
    slabs = (Slab("key", 2, 8, ElementType.FP16), Slab("value", 2, 8, ElementType.FP16))
    plain = StateLayout("m", slabs, one_group(slabs), 16)
    named = StateLayout("m", slabs, (Group("all", Extent.TOKEN, one_group(slabs)[0].members),), 16)
    assert b"groups" not in encoding(plain)
    assert digest(plain) != digest(named)  # another name is another declaration
    assert digest(plain) == digest(StateLayout("m", slabs, one_group(slabs), 32))


def test_every_declared_field_is_part_of_the_identity() -> None:
    base = worked("gemma-3-270m")
    others = [
        worked("gemma-3-270m", dtype=ElementType.FP16),
        layout_of({**WORKED["gemma-3-270m"], "sliding_window": 513}, 16, ElementType.BF16),
        layout_of({**WORKED["gemma-3-270m"], "num_hidden_layers": 24}, 16, ElementType.BF16),
        layout_of({**WORKED["gemma-3-270m"], "sliding_window_pattern": 3}, 16, ElementType.BF16),
        StateLayout(base.family, base.slabs, base.groups, 16, fixed_bytes=1),
        StateLayout(base.family, base.slabs, base.groups, 16, snap_bytes=1),
        StateLayout(base.family, base.slabs, base.groups, 16, lookahead=1),
    ]
    assert len({digest(layout) for layout in [base, *others]}) == len(others) + 1


@given(st.integers(1, 200), st.integers(1, 40))
def test_rows_span_no_more_pages_than_the_worst_place_to_begin(rows: int, page: int) -> None:
    spans = {(start + rows - 1) // page - start // page + 1 for start in range(page)}
    assert span_pages(rows, page) == max(spans)


@given(st.integers(0, 300), st.integers(2, 50), st.integers(1, 20), st.integers(1, 9))
def test_a_window_group_never_holds_more_than_it_is_said_to_need(
    rows: int, window: int, page: int, step: int
) -> None:
    held = 0
    for before in range(0, rows, step):
        after = min(rows, before + step)
        pages = {row // page for row in range(first_row_read(before, window), after)}
        held = max(held, len(pages))
    assert held <= pages_needed(rows, window, page, step)


ROOM = Room(
    room_bytes=1_024 * MIB,
    streams=4,
    context_tokens=131_072,
    verify_rows=16,
    step_rows=512,
    reference_rows=8_192,
    kept_bytes=0,
    snap_slots=0,
    full_window_sequence=False,
)


def test_room_is_split_into_fixed_parts_and_pages() -> None:
    layout = seven_kib_a_token()
    sizing = size_pools(layout, msgspec.structs.replace(ROOM, room_bytes=2_048 * MIB))
    assert sizing.fixed_bytes == 256 * MIB
    assert sizing.pages == ((2_048 - 256) * MIB // layout.page_bytes(0),)


def test_a_pool_that_cannot_hold_one_whole_context_refuses_to_start() -> None:
    layout = seven_kib_a_token()
    need = pages_for(131_072 + 16, 512)
    exactly = need * layout.page_bytes(0) + 4 * layout.fixed_bytes
    fits = msgspec.structs.replace(ROOM, room_bytes=exactly)
    assert size_pools(layout, fits).pages == (need,)
    with pytest.raises(BadInputError, match=r"needs 257: .* lower context"):
        size_pools(layout, msgspec.structs.replace(fits, room_bytes=exactly - 1))


def test_kept_prompts_and_the_engines_own_sequence_come_out_before_streams() -> None:
    layout = worked("nemotron-3-nano", page_tokens=512)
    room = msgspec.structs.replace(
        ROOM,
        room_bytes=4_096 * MIB,
        kept_bytes=512 * MIB,
        snap_slots=4,
        full_window_sequence=True,
    )
    sizing = size_pools(layout, room)
    assert sizing.slots_bytes == 4 * 49_082_368
    assert sizing.full_window_bytes == 6_144 * (131_072 + 16)
    assert sizing.kept_columns_max == (512 * MIB - 4 * 49_082_368) // (6_144 * 512)
    used = (
        sizing.pages[0] * sizing.page_bytes[0]
        + sizing.fixed_bytes
        + sizing.slots_bytes
        + sizing.full_window_bytes
    )
    assert 0 <= room.room_bytes - used < sizing.page_bytes[0]
    with pytest.raises(BadInputError, match="20 snapshot slots take"):
        size_pools(layout, msgspec.structs.replace(room, snap_slots=20))


def test_groups_share_the_bytes_as_the_reference_stream_would() -> None:
    layout = worked("gemma-3-270m")
    sizing = size_pools(layout, msgspec.structs.replace(ROOM, context_tokens=32_768))
    needs = [pages_needed(8_192, group.window_tokens, 16, 512) for group in layout.groups]
    streams = [pages // need for pages, need in zip(sizing.pages, needs, strict=True)]
    assert streams[0] == streams[1] > 1
    used = sum(n * size for n, size in zip(sizing.pages, sizing.page_bytes, strict=True))
    assert 0 <= sizing.pool_bytes - used <= sum(sizing.page_bytes)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_key_value_heads": 0}, "num_key_value_heads is 0"),
        ({"model_type": "gpt_neo"}, "no worked layout; known are deepseek_v3"),
        ({"use_sliding_window": True}, "use_sliding_window has no worked layout"),
    ],
)
def test_a_config_that_cannot_be_read_is_refused_by_name(
    change: dict[str, object], said: str
) -> None:
    with pytest.raises(BadInputError, match=said):
        layout_of({**WORKED["qwen3-8b"], **change}, 16, ElementType.BF16)


def test_every_slab_layer_stands_in_exactly_one_group() -> None:
    slabs = (Slab("key", 2, 8, ElementType.FP16),)
    one = Group("a", Extent.TOKEN, ((0, 0),))
    with pytest.raises(BadInputError, match=r"\(0, 1\) stand in no group"):
        StateLayout("m", slabs, (one,), 16)
    both = Group("b", Extent.TOKEN, ((0, 0), (0, 1)))
    with pytest.raises(BadInputError, match="stand in two groups"):
        StateLayout("m", slabs, (one, both), 16)
    with pytest.raises(BadInputError, match="window of group 'w' must be 2"):
        StateLayout("m", slabs, (Group("w", Extent.WINDOW, ((0, 0), (0, 1)), 1),), 16)
    with pytest.raises(BadInputError, match="sequence groups alone take 32"):
        StateLayout("m", slabs, (Group("s", Extent.SEQUENCE, ((0, 0), (0, 1))),), 16)


@pytest.mark.parametrize("name", sorted(WORKED))
def test_the_table_adds_up(name: str) -> None:
    layout = worked(name)
    table = layout_table(layout, (1_024,))
    *groups, total = [row[-1].replace(",", "") for row in table.rows]
    assert sum(map(int, groups)) == int(total)
    assert all(len(row) == len(table.headings) for row in table.rows)
    assert digest(layout).hex() in table.notes[1]
