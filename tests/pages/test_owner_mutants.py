"""Mistakes planted in the page owner, each of which the comparison with the model must catch."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest
from pagedriver import Driver

from pagetrail.catalog.kinds.worker import (
    NodesEvicted,
    PoolSpec,
    RouteForked,
    StreamFinished,
)
from pagetrail.controlplane.pages import appends, beginning, commands, keeping
from pagetrail.controlplane.pages import owner as owner_module
from pagetrail.controlplane.pages.appends import Append
from pagetrail.controlplane.pages.book import Pool
from pagetrail.controlplane.pages.books import Books
from pagetrail.controlplane.pages.runs import path_up

SEEDS = 20
STEPS = 80
ONE_GROUP = (PoolSpec("kv", 0, 24, 1),)


def replaced(
    patch: pytest.MonkeyPatch, kind: type[msgspec.Struct], operation: Callable[..., None]
) -> None:
    patch.setattr(owner_module, "OPERATIONS", {**commands.OPERATIONS, kind: operation})


def a_fork_takes_no_hold(patch: pytest.MonkeyPatch) -> None:
    def fork(books: Books, command: RouteForked) -> None:
        keeping.fork(books, command)
        for run in path_up(books.routes[command.stream].end):
            run.holders -= 1

    replaced(patch, RouteForked, fork)


def a_finish_keeps_its_promise(patch: pytest.MonkeyPatch) -> None:
    def finish(books: Books, command: StreamFinished) -> None:
        promised = list(books.route(command.stream).promised)
        beginning.finish(books, command)
        for pool, count in zip(books.pools, promised, strict=True):
            pool.promised += count

    replaced(patch, StreamFinished, finish)


def rows_count_that_were_not_written(patch: pytest.MonkeyPatch) -> None:
    commit = appends.commit

    def all_of_them(books: Books, append: Append, rows: int) -> bool:
        return commit(books, append, append.rows)

    patch.setattr(appends, "commit", all_of_them)


def an_aborted_append_forgets_its_pages(patch: pytest.MonkeyPatch) -> None:
    end = appends._end

    def forgetful(books: Books, route: object, ahead: object) -> None:
        give = Pool.give
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(Pool, "give", lambda self, pages: give(self, pages[1:]))
            end(books, route, ahead)  # type: ignore[arg-type]

    patch.setattr(appends, "_end", forgetful)


def an_eviction_takes_what_is_held(patch: pytest.MonkeyPatch) -> None:
    def evict(books: Books, command: NodesEvicted) -> None:
        keeping.evict(books, command)
        for run in books.tree.nodes.values():
            if run.parent is not None and run.holders:
                books.pools[0].give(run.pages[0][:1])
                break

    replaced(patch, NodesEvicted, evict)


@pytest.mark.parametrize(
    "plant",
    [
        a_fork_takes_no_hold,
        a_finish_keeps_its_promise,
        rows_count_that_were_not_written,
        an_aborted_append_forgets_its_pages,
        an_eviction_takes_what_is_held,
    ],
)
def test_a_planted_mistake_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    for seed in range(SEEDS):
        draw = random.Random(seed)
        driver = Driver(ONE_GROUP, 4, draw.randrange)
        try:
            for _ in range(STEPS):
                driver.step()
        except (Exception, pytest.fail.Exception):
            return
    raise AssertionError(f"nothing noticed it in {SEEDS} histories of {STEPS} steps")


def test_without_a_mistake_nothing_is_caught() -> None:
    for seed in range(SEEDS):
        driver = Driver(ONE_GROUP, 4, random.Random(seed).randrange)
        for _ in range(STEPS):
            driver.step()
