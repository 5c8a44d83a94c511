"""Tenants' quotas: who is admitted, whose kept pages go, who gives way; against a plain count."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from cluster_parts import PAGE_TOKENS, incoming
from growing_parts import GrowingWorld, growing_machine
from hypothesis import given, settings
from hypothesis import strategies as st

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.facts import KindId
from pagetrail.catalog.identity import salted_root, tenant_salt
from pagetrail.catalog.kinds.decision import Decision
from pagetrail.catalog.kinds.worker import (
    FinishReason,
    NodesEvicted,
    PagesAdopted,
    PagesPromised,
    PoolSpec,
    PromptKept,
    RowsAdvanced,
    StreamFinished,
)
from pagetrail.controlplane.cluster.messages import Incoming
from pagetrail.controlplane.pages.owner import PageOwner
from pagetrail.controlplane.policy.inputs import AdmitReason
from pagetrail.controlplane.quotas import (
    Accounts,
    accounts_of,
    excess,
    next_giver,
    reclaimable_for,
    stays_within,
)

QUOTAS = (("acme", 8), ("beta", 6))


def request(name: str, tokens: int, tenant: str, **changes: Any) -> Incoming:
    """A tenant's request, under the tenant's own root as the gateway gives it."""
    root = salted_root(tenant_salt(tenant, None))
    return incoming(name, tokens, tenant=tenant, root=root, **{"max_new_tokens": 1, **changes})


def world(pages: int = 24, **changes: Any) -> GrowingWorld:
    return GrowingWorld(growing_machine(pages=pages, quotas=QUOTAS, **changes))


def reasons(served: GrowingWorld, subject: int) -> list[int]:
    found = []
    for transaction in served.transactions:
        for wire in transaction.facts:
            if wire.kind == KindId.ADMIT:
                decision = msgspec.msgpack.decode(wire.body, type=Decision)
                if decision.subject == subject:
                    found.append(decision.reason)
    return found


def test_all_others_share_what_the_quotas_leave() -> None:
    accounts = accounts_of(growing_machine(pages=24, quotas=QUOTAS).start)
    assert accounts.quotas == ((10,), (8,), (6,))
    assert [accounts.of(name) for name in ("acme", "beta", "other", "")] == [1, 2, 0, 0]


@pytest.mark.parametrize(
    ("quotas", "words"),
    [
        ((("b", 1), ("a", 1)), "in their order"),
        ((("a", 1), ("a", 2)), "in their order"),
        ((("a", 0),), "at least 1"),
        ((("a", 20), ("b", 20)), "add up to 40"),
    ],
)
def test_quotas_that_cannot_be_are_refused(quotas: tuple[Any, ...], words: str) -> None:
    with pytest.raises(BadInputError, match=words):
        growing_machine(pages=24, quotas=quotas)


def test_idle_pages_may_be_borrowed() -> None:
    served = world()
    served.offer(1, request("large", 80, "acme"))
    served.run()
    assert [ended.reason for ended in served.ended] == [FinishReason.LENGTH]


def test_a_borrower_waits_while_a_request_within_its_quota_waits() -> None:
    """Beta fits its quota and waits for pages; acme would borrow what is free meanwhile."""
    served = world(pages=24)
    served.offer(1, request("a", 80, "acme"))  # 20 of 24 pages
    served.offer(2, request("b", 24, "beta"))  # 6: its quota, and 4 are free
    served.offer(3, request("c", 12, "acme"))  # 3 would fit
    view = served.machine.view
    assert view.queue(9) == [2, 3]
    assert reasons(served, 2)[-1] == AdmitReason.NO_PAGES
    assert reasons(served, 3)[-1] == AdmitReason.BEYOND_QUOTA
    served.run()
    assert {e.reason for e in served.ended} == {FinishReason.LENGTH}
    order = [fact.stream for fact in served.facts() if isinstance(fact, PagesAdopted)]
    assert order.index(2) < order.index(3)


def test_a_request_within_its_quota_is_looked_at_before_a_borrower_that_came_first() -> None:
    served = world(pages=24, lanes=1)
    served.offer(1, request("a", 40, "acme"))
    served.offer(2, request("b", 40, "acme"))
    served.offer(3, request("c", 20, "beta"))
    served.run()
    assert [e.number for e in served.ended] == [1, 3, 2]


def test_borrowers_give_back_first_and_no_lower_than_their_quota() -> None:
    served = world(pages=24)
    for number, (name, tokens, tenant) in enumerate(
        [("a1", 40, "acme"), ("a2", 12, "acme"), ("b1", 16, "beta"), ("o1", 28, "")], 1
    ):
        served.offer(number, request(name, tokens, tenant))
        served.run()
    owner = served.machine.view.owner
    assert [owner.kept_pages_of(account) for account in range(3)] == [(7,), (13,), (4,)]
    served.offer(9, request("b2", 24, "beta"))  # needs 6; nothing is free; acme is 5 over
    served.run()
    assert owner.kept_pages_of(0) == (7,), "within its share"
    assert owner.kept_pages_of(1) == (8,), "down to its quota and no further"
    assert owner.kept_pages_of(2) == (9,), "one of its own went for the last page"


def test_an_account_within_its_quota_keeps_what_it_keeps_while_others_run() -> None:
    served = world(pages=24)
    served.offer(1, request("o", 40, ""))
    served.run()
    owner = served.machine.view.owner
    assert owner.kept_pages_of(0) == (10,)
    served.offer(2, request("a1", 28, "acme"))
    served.offer(3, request("a2", 36, "acme"))
    assert served.machine.view.queue(9) == [3], "not for a borrower"
    assert owner.kept_pages_of(0) == (10,)
    served.run()
    assert {e.reason for e in served.ended} == {FinishReason.LENGTH}


def test_a_request_that_runs_alone_may_have_anyones_kept_pages() -> None:
    served = world(pages=24)
    served.offer(1, request("o", 40, ""))
    served.run()
    served.offer(2, request("a", 92, "acme"))
    served.run()
    assert served.ended[-1].reason is FinishReason.LENGTH
    assert served.machine.view.owner.kept_pages_of(0) < (10,)


def test_growth_takes_from_a_borrowers_streams_first() -> None:
    served = world(pages=24, costs=tuple((m, 1_000) for m, _ in growing_machine().start.costs))
    served.offer(1, request("a", 56, "acme", max_new_tokens=40))  # 14 pages, borrowing
    served.offer(2, request("b1", 4, "beta", max_new_tokens=16))
    served.offer(3, request("o", 24, "", max_new_tokens=16))
    served.run()
    preempts = [
        msgspec.msgpack.decode(wire.body, type=Decision)
        for transaction in served.transactions
        for wire in transaction.facts
        if wire.kind == KindId.PREEMPT
    ]
    assert preempts
    gave_way = {
        stream for decision in preempts for stream, _ in msgspec.msgpack.decode(decision.choice)[0]
    }
    assert gave_way == {1}, "the borrower, though others would have cost less"
    assert {e.reason for e in served.ended} == {FinishReason.LENGTH}


# ---------------------------------------------------------------- against a plain count


def plain_order(
    kept: list[int], running: list[int], quotas: list[int], account: int, need: int, alone: bool
) -> list[tuple[int, int]]:
    """Who gives how much, by the words of the rule, one page at a time.

    Everything that is kept is idle here, so an account's kept pages are what it can give.
    """
    kept, given = list(kept), []
    ranks = []
    for other in range(len(kept)):
        over = max(0, kept[other] + running[other] - quotas[other])
        if other != account and over:
            ranks.append((-over, other, min(over, kept[other])))
    stages = [[(other, pages) for _, other, pages in sorted(ranks)], [(account, kept[account])]]
    for stage in (*stages, None):
        if stage is None:  # what is kept by then, the most first
            left = sorted((-kept[o], o) for o in range(len(kept)) if o != account and alone)
            stage = [(o, kept[o]) for _, o in left]
        for other, most in stage:
            take = min(need, most, kept[other])
            if take:
                given.append((other, take))
                kept[other] -= take
                need -= take
    return given


def in_all(given: list[tuple[int, int]]) -> dict[int, int]:
    """Pages by account; one that runs alone may take an account's excess first and more later."""
    return {account: sum(n for a, n in given if a == account) for account, _ in given}


def book_of(kept: list[int], running: list[int], pages: int) -> PageOwner:
    """An owner whose accounts keep and run so many pages."""
    owner = PageOwner((PoolSpec("kv", 0, pages, 1),), PAGE_TOKENS, 0, pages, pages, 0, len(kept))
    stream = 0
    for account, (keeps, runs) in enumerate(zip(kept, running, strict=True)):
        for columns, stays in ((keeps, False), (runs, True)):
            if not columns:
                continue
            stream += 1
            owner.apply(PagesAdopted(stream, 0, 0, 0, account))
            owner.apply(PagesPromised(stream, (columns,)))
            owner.apply(RowsAdvanced(((stream, columns * PAGE_TOKENS),)))
            if not stays:
                owner.apply(PromptKept(stream, 0, 0, columns))
                owner.apply(StreamFinished(stream, 0))
    owner.check()
    return owner


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_reclaim_follows_the_order_page_by_page(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 4))
    small = st.integers(0, 12)
    kept = [data.draw(small) for _ in range(count)]
    running = [data.draw(small) for _ in range(count)]
    quotas = [data.draw(st.integers(1, 20)) for _ in range(count)]
    account, alone = data.draw(st.integers(0, count - 1)), data.draw(st.booleans())
    pages = max(1, sum(kept) + sum(running), sum(quotas))
    owner = book_of(kept, running, pages)
    accounts = Accounts({}, tuple((quota,) for quota in quotas))
    for number in range(count):
        over = max(0, kept[number] + running[number] - quotas[number])
        assert excess(owner, accounts, number) == (over,)
        room = quotas[number] - running[number]
        assert stays_within(owner, accounts, number, (max(0, room),)) == (room >= 0)
        assert not stays_within(owner, accounts, number, (max(0, room) + 1,))
    need = data.draw(st.integers(1, 30))
    expected = plain_order(kept, running, quotas, account, need, alone)
    most = plain_order(kept, running, quotas, account, 10**6, alone)
    assert reclaimable_for(owner, accounts, account, {}, alone=alone) == (
        sum(taken for _, taken in most),
    )
    given: list[tuple[int, int]] = []
    passed: tuple[int, ...] = ()
    left = need
    while left:
        giver = next_giver(owner, accounts, account, (left,), passed, alone=alone)
        if giver is None:
            break
        take = min(giver.pages[0], owner.reclaimable_of(giver.account)[0])
        if not take:
            passed = (*passed, giver.account)
            continue
        cut = take
        for node in [n for n in owner.oldest_nodes() if n.account == giver.account]:
            columns = min(cut, node.columns)
            if columns:
                owner.apply(NodesEvicted(((node.number, columns),)))
                cut -= columns
        given.append((giver.account, take))
        left -= take
    assert in_all(given) == in_all(expected)
    if not alone:
        assert [other for other, _ in given] == [other for other, _ in expected]


@pytest.mark.parametrize("seed", range(8))
def test_random_tenants_are_all_served_and_nothing_leaks(seed: int) -> None:
    draw = random.Random(seed)
    served = world(pages=24, swap_bytes_max=draw.choice([0, 1 << 20]))
    for number in range(1, 40):
        tenant = draw.choice(["", "acme", "beta"])
        tokens = draw.randrange(1, 48)
        name = draw.choice(["x", f"own{number}"])
        served.offer(number, request(name, tokens, tenant, max_new_tokens=draw.randrange(1, 40)))
        served.run(draw.randrange(5))
    served.run()
    assert len(served.ended) == 39
    assert {e.reason for e in served.ended} == {FinishReason.LENGTH}
    owner = served.machine.view.owner
    assert owner.held() == (owner.kept_columns,)
    assert sum(owner.kept_pages_of(a)[0] for a in range(3)) == owner.kept_columns
