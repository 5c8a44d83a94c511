"""Small worked examples of the page owner: the vectors and cases that other engines got wrong."""

from __future__ import annotations

import pytest

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.worker import (
    AdoptionUndone,
    MarkArmed,
    NodesEvicted,
    PagesAdopted,
    PagesPinned,
    PagesPromised,
    PagesUnpinned,
    PoolSpec,
    PromptKept,
    RouteForked,
    RowsAdvanced,
    RowsRestored,
    StreamFinished,
)
from pagetrail.controlplane.pages.appends import Append, Shortfall
from pagetrail.controlplane.pages.book import Pool
from pagetrail.controlplane.pages.index import PrefixIndex
from pagetrail.controlplane.pages.owner import PageOwner


def owner_of(
    pages: int, page_tokens: int, *, kept_columns_max: int = 1_000, kept_nodes_max: int = 1_000
) -> PageOwner:
    pools = (PoolSpec("kv", 0, pages, 1),)
    return PageOwner(pools, page_tokens, 0, kept_columns_max, kept_nodes_max)


def begin(owner: PageOwner, stream: int, promise: int, rows: int = 0, node: int = 0) -> None:
    """A stream that adopts nothing (or a path), is promised pages, and has written rows."""
    columns = owner.node(node).depth_columns
    owner.apply(PagesAdopted(stream, node, columns))
    owner.apply(PagesPromised(stream, (promise,)))
    if rows:
        owner.apply(RowsAdvanced(((stream, rows),)))


def reserved(owner: PageOwner, stream: int, rows: int) -> Append:
    append = owner.reserve(stream, rows)
    assert isinstance(append, Append)
    return append


def keep_all(owner: PageOwner, stream: int) -> int:
    """Keep a stream's whole columns and finish it; the node they end in."""
    owner.apply(PromptKept(stream, 0, 0, owner.route(stream).columns))
    node = owner.kept_path(stream)[-1][0]
    owner.apply(StreamFinished(stream, 0))
    return node


# -------------------------------------------------------------------- vectors


def test_three_adopted_and_ten_promised_grow_to_the_prompt_with_one_and_leave_nine() -> None:
    owner = owner_of(64, 512)
    begin(owner, 1, 3, 3 * 512)
    node = keep_all(owner, 1)
    assert owner.need(2_048 + 4_096 + 16) == (13,)
    assert owner.adoption_pages(node, 3, 6_160) == (3,)
    begin(owner, 2, 10, node=node)
    owner.apply(RowsAdvanced(((2, 2_048 - 3 * 512),)))
    assert owner.promised(2) == (9,)
    assert owner.held() == (4,)


def test_a_fork_that_appends_gets_a_copy_of_the_shared_page() -> None:
    owner = owner_of(8, 4)
    begin(owner, 1, 2, 6)
    assert owner.page_table(1, 0) == [0, 1]
    owner.apply(RouteForked(2, 1, 6))
    owner.apply(PagesPromised(2, (1,)))
    append = reserved(owner, 2, 1)
    assert append.copies == ((1, 2),)
    assert append.slots(0) == [2 * 4 + 2]
    assert owner.commit(append, 1)
    owner.apply(RowsAdvanced(owner.committed()))
    assert owner.page_table(2, 0) == [0, 2]
    assert owner.rows(2) == 7
    assert owner.page_table(1, 0) == [0, 1]
    owner.apply(StreamFinished(2, 0))
    assert owner.free() == (6,)
    owner.apply(StreamFinished(1, 0))
    assert owner.free() == (8,)


def test_growth_counts_new_pages_and_the_copy_of_a_shared_tail() -> None:
    owner = owner_of(32, 4)
    begin(owner, 1, 0)
    assert owner.growth(1, 16) == (4,)
    begin(owner, 2, 1, 3)
    assert owner.growth(2, 16) == (3,)
    owner.apply(RouteForked(3, 2, 3))
    assert owner.growth(3, 16) == (4,)
    assert owner.growth(3, 4) == (1,)
    assert owner.growth(3, 3) == (0,)
    begin(owner, 4, 1, 4)
    owner.apply(RouteForked(5, 4, 4))
    assert owner.growth(5, 5) == (1,)


# -------------------------------------------------------------------- cases


@pytest.mark.parametrize("twice", [[3, 3], [1, 2, 3, 4, 2], [0, 1, 1]])
def test_releasing_a_page_twice_in_one_call_changes_nothing(twice: list[int]) -> None:
    """Case 6."""
    pool = Pool(8)
    pool.take(5)
    with pytest.raises(BadInputError, match="twice"):
        pool.give(twice)
    assert (pool.free, pool.free_pages()) == (3, [5, 6, 7])


@pytest.mark.parametrize("wrong", [[5], [0, 1, 7], [8], [-1]])
def test_releasing_a_page_nobody_holds_changes_nothing(wrong: list[int]) -> None:
    pool = Pool(8)
    pool.take(5)
    with pytest.raises(BadInputError, match=r"nobody holds it|not one of the pool's"):
        pool.give(wrong)
    assert (pool.free, pool.free_pages()) == (3, [5, 6, 7])


def test_the_last_prompt_token_is_never_reused() -> None:
    """Case 7: 64 tokens of page 16, all kept: 48 by whole pages, 63 by rows, never 64."""
    owner = owner_of(16, 16)
    index = PrefixIndex(owner)
    begin(owner, 1, 4, 64)
    owner.apply(PromptKept(1, 0, 0, 4))
    index.record(1, "abcd")
    owner.apply(StreamFinished(1, 0))
    assert index.match("abcd", (64 - 1) // 16) == (1, 3)
    node, columns = index.match("abcd", -(-63 // 16))
    owner.apply(PagesAdopted(2, node, columns, 63))
    assert owner.rows(2) == 63
    owner.apply(PagesPromised(2, (1,)))
    assert reserved(owner, 2, 1).copies == ((3, 4),)  # the kept page is not written
    for rows in (48, 65, -1):
        with pytest.raises(BadInputError, match="last row must lie in the last column"):
            owner.apply(PagesAdopted(3, node, columns, rows))


def test_a_failed_step_leaves_no_rows_for_an_identical_prompt_to_count() -> None:
    """Case 8."""
    owner = owner_of(16, 16)
    index = PrefixIndex(owner)
    begin(owner, 1, 4)
    begin(owner, 2, 4)
    append = reserved(owner, 1, 64)
    assert owner.abort(append)
    assert owner.rows(1) == 0
    assert owner.committed() == ()
    assert index.match("abcd") == (0, 0)
    owner.check()


def test_a_hundred_kept_and_resumed_prompts_evicted_leave_all_free() -> None:
    """Case 10."""
    owner = owner_of(600, 4)
    index = PrefixIndex(owner)
    for prompt in range(100):
        digests = [(prompt, column) for column in range(5)]
        begin(owner, 2 * prompt + 1, 5, 20)
        owner.apply(PromptKept(2 * prompt + 1, 0, 0, 5))
        index.record(2 * prompt + 1, digests)
        owner.apply(StreamFinished(2 * prompt + 1, 0))
        node, columns = index.match(digests, 4)
        owner.apply(PagesAdopted(2 * prompt + 2, node, columns))
        owner.apply(StreamFinished(2 * prompt + 2, 0))
    assert owner.free() == (100,)
    leaves = [n for n in owner.oldest_nodes() if not n.children]
    parents = [n for n in owner.oldest_nodes() if n.children]
    assert len(leaves) == 100
    owner.apply(NodesEvicted(tuple((n.number, n.columns) for n in leaves + parents)))
    assert owner.free() == owner.total() == (600,)
    assert owner.kept_nodes == owner.kept_columns == len(index) == 0
    owner.check()


def test_an_aborted_append_of_a_fork_leaves_it_the_page_it_shared() -> None:
    """Case 11."""
    owner = owner_of(8, 4)
    begin(owner, 1, 1, 3)
    owner.apply(RouteForked(2, 1, 3))
    owner.apply(PagesPromised(2, (1,)))
    append = reserved(owner, 2, 1)
    assert append.copies == ((0, 1),)
    owner.apply(StreamFinished(1, 0))
    assert owner.abort(append)
    assert owner.page_table(2, 0) == [0]
    assert owner.route(2).end.holds == 1
    assert owner.free() == (7,)
    assert owner.tenure(0, 0) > 0
    assert owner.tenure(0, 1) == 0
    owner.check()


def test_a_reservation_that_falls_short_takes_nothing() -> None:
    """Case 12: the third page is missing; the first two are where they were."""
    owner = owner_of(8, 4)
    begin(owner, 1, 2)
    assert owner.reserve(1, 12) == Shortfall((1,))
    assert owner.page_table(1, 0) == []
    owner.check()
    append = reserved(owner, 1, 8)
    assert append.pages == ((0, 1),)


def test_rows_restored_never_pass_the_pages_that_were_promised() -> None:
    """Case 16: 32 rows here, 48 elsewhere, room for 40."""
    owner = owner_of(16, 8)
    begin(owner, 1, 4, 32)
    node = keep_all(owner, 1)
    begin(owner, 2, 1, node=node)
    with pytest.raises(BadInputError, match="needs 2 pages"):
        owner.apply(RowsRestored(2, 16, 2))
    owner.apply(RowsRestored(2, 8, 2))
    assert owner.rows(2) == 40


def test_dropping_drafts_takes_one_column_off_each_of_three_groups() -> None:
    """Case 30: ten blocks, one dropped: nine in each group, not seven in one."""
    pools = tuple(PoolSpec(name, 0, 16, 1) for name in "abc")
    owner = PageOwner(pools, 4, 3, 0, 0)
    owner.apply(PagesAdopted(1, 0, 0))
    owner.apply(PagesPromised(1, (10, 10, 10)))
    append = reserved(owner, 1, 37)
    assert [len(ids) for ids in append.pages] == [10, 10, 10]
    assert owner.commit(append, 36)
    assert [len(owner.page_table(1, group)) for group in range(3)] == [9, 9, 9]
    owner.apply(RowsAdvanced(owner.committed()))
    assert owner.promised(1) == (1, 1, 1)
    owner.check()


# -------------------------------------------------------------------- generations and tickets


def test_a_page_that_was_given_back_has_another_generation() -> None:
    owner = owner_of(4, 4)
    begin(owner, 1, 1, 1)
    first = owner.tenure(0, 0)
    owner.apply(StreamFinished(1, 0))
    assert owner.tenure(0, 0) == 0
    begin(owner, 2, 1, 1)
    assert owner.page_table(2, 0) == [0]
    assert owner.tenure(0, 0) > first


def test_a_late_completion_of_an_ended_append_does_nothing() -> None:
    owner = owner_of(8, 4)
    begin(owner, 1, 2)
    late = reserved(owner, 1, 4)
    owner.abort(late)
    now = reserved(owner, 1, 3)
    assert not owner.commit(late, 4)
    assert not owner.abort(late)
    assert owner.commit(now, 3)
    assert owner.committed() == ((1, 3),)
    owner.apply(RowsAdvanced(owner.committed()))
    owner.apply(StreamFinished(1, 0))
    assert not owner.commit(late, 1)


def test_nothing_else_happens_to_a_stream_whose_rows_wait_to_be_advanced() -> None:
    owner = owner_of(8, 4)
    begin(owner, 1, 3)
    append = reserved(owner, 1, 6)
    for command in (
        StreamFinished(1, 0),
        AdoptionUndone(1),
        RouteForked(2, 1, 1),
        PromptKept(1, 0, 0, 1),
        PagesPinned(1, 1, 0, 1),
    ):
        with pytest.raises(BadInputError, match="commit or abort"):
            owner.apply(command)
    with pytest.raises(BadInputError, match="pending; commit or abort it first"):
        owner.reserve(1, 1)
    owner.commit(append, 6)
    with pytest.raises(BadInputError, match="6 committed rows to advance, not 7"):
        owner.apply(RowsAdvanced(((1, 7),)))


def test_pages_in_flight_still_count_as_free_and_promised() -> None:
    owner = owner_of(8, 4)
    begin(owner, 1, 3)
    before = (owner.free(), owner.available(), owner.promised_in_all(), owner.encode())
    append = reserved(owner, 1, 9)
    owner.commit(append, 9)
    assert (owner.free(), owner.available(), owner.promised_in_all(), owner.encode()) == before
    owner.apply(RowsAdvanced(owner.committed()))
    assert owner.held() == (3,)


def test_a_copy_that_turned_out_needless_leaves_the_counts_of_a_replay() -> None:
    owner, replayed = owner_of(8, 4), owner_of(8, 4)
    for each in (owner, replayed):
        begin(each, 1, 1, 3)
        each.apply(RouteForked(2, 1, 3))
        each.apply(PagesPromised(2, (1,)))
    append = reserved(owner, 2, 1)
    assert append.copies == ((0, 1),)
    owner.commit(append, 1)
    for each in (owner, replayed):
        each.apply(StreamFinished(1, 0))
        each.apply(RowsAdvanced(((2, 1),)))
        each.check()
    assert owner.page_table(2, 0) == [1]
    assert replayed.page_table(2, 0) == [0]
    assert owner.encode() == replayed.encode()


# -------------------------------------------------------------------- tables


def test_only_the_changed_end_of_a_page_table_is_uploaded() -> None:
    owner = owner_of(16, 4)
    begin(owner, 1, 6)
    owner.commit(reserved(owner, 1, 10), 10)
    assert owner.dirty_from(1) == 0
    owner.uploaded(1)
    owner.commit(reserved(owner, 1, 1), 1)  # inside the third page
    assert owner.dirty_from(1) == 3
    append = reserved(owner, 1, 4)
    assert owner.dirty_from(1) == 3
    assert owner.page_table(1, 0, 3) == [3]
    owner.uploaded(1)
    owner.abort(append)
    assert owner.dirty_from(1) == 3


def test_a_swap_changes_the_tables_of_all_streams_that_go_along() -> None:
    owner = owner_of(32, 4)
    begin(owner, 1, 2, 8)
    node = keep_all(owner, 1)
    begin(owner, 2, 4, 13)
    owner.apply(RouteForked(3, 2, 13))
    assert owner.page_table(3, 0) == [2, 3, 4, 5]
    owner.uploaded(2)
    owner.uploaded(3)
    owner.apply(PromptKept(2, node, 2, 3))
    assert owner.page_table(2, 0) == owner.page_table(3, 0) == [0, 1, 4, 5]
    assert owner.dirty_from(2) == owner.dirty_from(3) == 0
    assert owner.held() == (4,)
    owner.check()


# -------------------------------------------------------------------- kept prompts


def test_a_partial_match_splits_a_run_and_the_front_keeps_its_number() -> None:
    owner = owner_of(32, 4)
    begin(owner, 1, 5, 20)
    node = keep_all(owner, 1)
    owner.apply(NodesEvicted(((node, 1),)))
    stamp = owner.node(node).last_access
    owner.apply(PagesAdopted(2, node, 3))
    assert [(n.number, n.start, n.columns) for n in owner.oldest_nodes()] == [(2, 3, 1), (1, 0, 3)]
    assert owner.node(2).last_access == stamp
    assert owner.node(1).last_access == owner.commands
    assert (owner.node(1).resumed, owner.node(2).resumed) == (True, False)
    assert owner.reclaimable() == (1,)
    assert owner.reclaimable_after_adopting(2, 4) == (0,)


def test_a_kept_tail_that_its_stream_goes_on_writing_is_copied_first() -> None:
    owner = owner_of(8, 4)
    begin(owner, 1, 4, 6)
    owner.apply(PromptKept(1, 0, 0, 2))
    append = reserved(owner, 1, 3)
    assert append.copies == ((1, 2),)
    owner.commit(append, 3)
    owner.apply(RowsAdvanced(owner.committed()))
    assert owner.page_table(1, 0) == [0, 2, 3]
    assert owner.reclaimable() == (1,)  # the tail as it was kept
    owner.check()


def test_a_lease_keeps_pages_while_their_stream_goes_and_comes() -> None:
    owner = owner_of(8, 4)
    begin(owner, 1, 3, 6)
    owner.apply(PagesPinned(7, 1, 0, 2))
    append = reserved(owner, 1, 1)
    assert append.copies == ((1, 2),)  # a lease is a holder
    owner.abort(append)
    owner.apply(StreamFinished(1, 0))
    assert owner.free() == (6,)
    begin(owner, 2, 6, 24)
    assert set(owner.page_table(2, 0)) == {2, 3, 4, 5, 6, 7}
    owner.apply(PagesUnpinned(7))
    assert owner.free() == (2,)
    with pytest.raises(BadInputError, match="returned exactly once"):
        owner.apply(PagesUnpinned(7))


def test_a_leased_node_and_its_ancestors_are_not_evicted() -> None:
    owner = owner_of(16, 4)
    begin(owner, 1, 3, 12)
    node = keep_all(owner, 1)
    owner.apply(PagesPinned(1, 0, node, 1))
    assert owner.reclaimable() == (0,)
    with pytest.raises(BadInputError, match="held by 1 streams or leases"):
        owner.apply(NodesEvicted(((node, 1),)))
    owner.apply(PagesUnpinned(1))
    assert owner.reclaimable() == (3,)
    owner.apply(NodesEvicted(((node, 1),)))


def test_keeping_checks_both_its_limits_and_what_the_stream_holds() -> None:
    owner = owner_of(32, 4, kept_columns_max=4, kept_nodes_max=1)
    begin(owner, 1, 5, 20)
    with pytest.raises(BadInputError, match="would pass the limit of 4"):
        owner.apply(PromptKept(1, 0, 0, 5))
    owner.apply(PromptKept(1, 0, 0, 3))
    begin(owner, 2, 5, 20)
    with pytest.raises(BadInputError, match="1 nodes and copies are kept and the limit is 1"):
        owner.apply(PromptKept(2, 0, 0, 1))
    owner.apply(PromptKept(2, 1, 2, 2))  # nothing new: the stream swaps, no node is added
    assert owner.held() == (8,)
    with pytest.raises(BadInputError, match="not a continuation of them"):
        owner.apply(PromptKept(2, 0, 0, 3))


def test_a_superseded_turn_is_marked_and_what_is_kept_cannot_supersede_itself() -> None:
    owner = owner_of(32, 4)
    begin(owner, 1, 3, 9)
    old = keep_all(owner, 1)
    owner.apply(PagesAdopted(2, old, 2))
    owner.apply(PagesPromised(2, (3,)))
    owner.apply(RowsAdvanced(((2, 9),)))
    tail = 2
    with pytest.raises(BadInputError, match="cannot be superseded"):
        owner.apply(PromptKept(2, old, 2, 4, (old,)))
    owner.apply(PromptKept(2, old, 2, 4, (tail,)))
    assert owner.node(tail).superseded
    assert PageOwner.decode(owner.encode()).node(tail).superseded


def test_an_eviction_stops_at_what_somebody_needs() -> None:
    owner = owner_of(32, 4)
    begin(owner, 1, 3, 12)
    node = keep_all(owner, 1)
    owner.apply(PagesAdopted(2, node, 1))
    before = owner.encode()
    for victims, said in (
        (((1, 1),), "kept columns below it"),
        (((2, 3),), "3 cannot be cut off"),
        (((2, 1), (2, 2)), "2 cannot be cut off"),
        (((2, 2), (1, 1)), "held by 1"),
        (((9, 1),), "node 9 is not kept"),
        (((0, 1),), "cannot be cut off"),
    ):
        with pytest.raises(BadInputError, match=said):
            owner.apply(NodesEvicted(victims))
        assert owner.encode() == before
    owner.apply(StreamFinished(2, 0))
    owner.apply(NodesEvicted(((2, 2), (1, 1))))
    assert owner.free() == (32,)


# -------------------------------------------------------------------- windows


def windowed(window: int, page_tokens: int) -> PageOwner:
    pools = (PoolSpec("all", 0, 32, 1), PoolSpec("window", window, 32, 1))
    return PageOwner(pools, page_tokens, 0, 100, 100)


def test_a_window_group_gives_pages_back_and_takes_them_again() -> None:
    owner = windowed(8, 4)
    owner.apply(PagesAdopted(1, 0, 0))
    owner.apply(PagesPromised(1, (8, 3)))
    for _ in range(32):
        owner.commit(reserved(owner, 1, 1), 1)
        owner.apply(RowsAdvanced(owner.committed()))
        owner.check()
    assert owner.page_table(1, 1) == [-1] * 6 + owner.page_table(1, 1)[6:]
    assert owner.need(32) == (8, 3)
    assert (owner.free()[1], owner.promised(1)[1]) == (30, 1)


def test_a_fork_below_the_floor_is_refused() -> None:
    """At 20 rows the window of 8 has pages from row 12: 19 may be forked, 18 may not."""
    owner = windowed(8, 4)
    owner.apply(PagesAdopted(1, 0, 0))
    owner.apply(PagesPromised(1, (5, 5)))
    owner.apply(RowsAdvanced(((1, 20),)))
    assert owner.page_table(1, 1)[:3] == [-1, -1, -1]
    with pytest.raises(BadInputError, match="choose a later row"):
        owner.apply(RouteForked(2, 1, 18))
    owner.apply(RouteForked(2, 1, 19))
    owner.check()


def test_a_prompt_is_adopted_only_where_its_window_is_whole() -> None:
    owner = windowed(8, 4)
    owner.apply(PagesAdopted(1, 0, 0))
    owner.apply(PagesPromised(1, (5, 5)))
    owner.apply(RowsAdvanced(((1, 20),)))
    owner.apply(PromptKept(1, 0, 0, 5))
    owner.apply(StreamFinished(1, 0))
    assert owner.held() == (5, 2)
    with pytest.raises(BadInputError, match="choose a later row"):
        owner.apply(PagesAdopted(2, 1, 4))
    owner.apply(PagesAdopted(2, 1, 5))
    owner.apply(PagesPromised(2, owner.growth(2, 40)))
    owner.apply(RowsAdvanced(((2, 20),)))
    owner.check()


# -------------------------------------------------------------------- splits under leases, slots


def test_a_lease_holds_both_parts_of_a_run_that_is_split_under_it() -> None:
    owner = owner_of(8, 4)
    begin(owner, 1, 3, 6)
    owner.apply(PagesPinned(1, 1, 0, 2))
    owner.apply(RowsAdvanced(((1, 1),)))  # copies the pinned last column: the run is split
    owner.check()
    owner.apply(StreamFinished(1, 0))
    owner.check()
    assert owner.free() == (6,)
    owner.apply(PagesUnpinned(1))
    owner.check()
    assert owner.free() == (8,)


def test_a_second_snapshot_of_the_same_prompt_gives_its_slot_back() -> None:
    owner = PageOwner((PoolSpec("kv", 0, 16, 1),), 4, 0, 16, 16, 2)
    for stream in (1, 2):
        owner.apply(PagesAdopted(stream, 0, 0))
        owner.apply(PagesPromised(stream, (3,)))
        owner.apply(MarkArmed(stream, 2))
        owner.apply(RowsAdvanced(((stream, 12),)))
    assert owner.free_slots() == 0
    owner.apply(PromptKept(1, 0, 0, 3))
    assert owner.resume_point(owner.kept_path(1)[-1][0], 3) == (1, 2)
    owner.apply(PromptKept(2, owner.kept_path(1)[-1][0], 3, 3))
    assert owner.free_slots() == 1
    owner.check()
