"""Tenants' quotas on pages: on whose account pages are held, who borrows, who gives back first.

A quota is a share that its tenant can count on, not a limit: pages that nobody within its quota
asks for may be borrowed. All tenants without a quota share what the quotas leave, on account 0;
without any quota there is only that account, and it is never over.

Order of reclaim, total: whoever asks gets free pages first, then kept pages of accounts that hold
more than their quota (largest excess first, then the smaller account number), never below the
quota; then its own kept pages. Kept pages of an account within its quota are nobody else's to
take, but by a stream that runs alone (most kept pages first, then the smaller number), so that any
request that fits the pool can run.

A request that would carry its account past the quota waits while one within its quota waits that
comes no later by priority.

Pure functions over a page owner; streams and nodes carry their account there (pages/).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from pagetrail.catalog.errors import BadInputError
from pagetrail.catalog.kinds.worker import WorkerStarted

from .pages.owner import PageOwner

Pages = tuple[int, ...]  # per group


@dataclass(frozen=True, slots=True)
class Accounts:
    """Who is charged where. ``quotas[a][g]``: pages of group ``g`` that account ``a`` counts on."""

    number_of: dict[str, int]
    quotas: tuple[Pages, ...]

    def of(self, tenant: str) -> int:
        """A tenant's account; 0 for one without a quota."""
        return self.number_of.get(tenant, 0)

    @property
    def shared(self) -> bool:
        """Whether there is any account besides the one of all."""
        return len(self.quotas) > 1


def accounts_of(start: WorkerStarted) -> Accounts:
    """The accounts of a worker's epoch.

    A quota is the same number of pages in each group, at most the group's pool. Raises
    BadInputError for quotas that are not in order of tenant, not positive, or pass a pool together.
    """
    names = [tenant for tenant, _ in start.quotas]
    if names != sorted(set(names)):
        raise BadInputError(f"quotas stand once for each tenant and in their order, not {names}")
    for tenant, pages in start.quotas:
        if pages < 1:
            raise BadInputError(
                f"the quota of tenant {tenant!r} is {pages} pages; give at least 1, or no quota"
            )
    own = [tuple([min(pages, pool.pages) for pool in start.pools]) for _, pages in start.quotas]
    rest = []
    for group, pool in enumerate(start.pools):
        given = sum([quota[group] for quota in own])
        if given > pool.pages:
            raise BadInputError(
                f"the tenants' quotas add up to {given} pages and group {pool.name!r} has "
                f"{pool.pages}; lower them or enlarge the pool"
            )
        rest.append(pool.pages - given)
    return Accounts({name: place + 1 for place, name in enumerate(names)}, (tuple(rest), *own))


def excess(owner: PageOwner, accounts: Accounts, account: int) -> Pages:
    """Pages per group that an account holds, kept ones included, beyond its quota."""
    if not accounts.shared:
        return (0,) * len(owner.shape.pools)
    held = zip(owner.charged(account), owner.kept_pages_of(account), strict=True)
    return tuple(
        [
            max(0, streams + kept - quota)
            for (streams, kept), quota in zip(held, accounts.quotas[account], strict=True)
        ]
    )


def stays_within(owner: PageOwner, accounts: Accounts, account: int, promise: Pages) -> bool:
    """Whether an account's streams hold no more than its quota with ``promise`` pages more."""
    if not accounts.shared:
        return True
    return all(
        used + more <= quota
        for used, more, quota in zip(
            owner.charged(account), promise, accounts.quotas[account], strict=True
        )
    )


def reclaimable_for(
    owner: PageOwner,
    accounts: Accounts,
    account: int,
    adopted: dict[int, list[int]],
    *,
    alone: bool,
) -> Pages:
    """Pages per group that evicting for an account's stream may free, once ``adopted`` is held.

    ``alone``: no other stream runs.
    """
    total = list(owner.reclaimable_of(account))
    for group, pages in enumerate(adopted.get(account, ())):
        total[group] -= pages
    for other in range(len(accounts.quotas)):
        if other == account:
            continue
        idle = list(owner.reclaimable_of(other))
        over = tuple(idle) if alone else excess(owner, accounts, other)
        for group, pages in enumerate(adopted.get(other, ())):
            idle[group] -= pages
        for group, pages in enumerate(idle):
            total[group] += min(pages, over[group])
    return tuple(total)


@dataclass(frozen=True, slots=True)
class Giver:
    """Who gives pages back next, and how many at most."""

    account: int
    pages: Pages


def next_giver(
    owner: PageOwner,
    accounts: Accounts,
    account: int,
    need: Pages,
    passed: Collection[int],
    *,
    alone: bool,
) -> Giver | None:
    """Whose kept pages go next for ``need`` pages of an account's stream.

    ``passed``: accounts that were asked before and could give nothing. ``alone``: no other stream
    runs. None: there is nobody left.
    """
    if not accounts.shared:
        return None if account in passed else Giver(account, need)
    others = [
        other for other in range(len(accounts.quotas)) if other != account and other not in passed
    ]
    borrowed = {other: excess(owner, accounts, other) for other in others}
    giver = _largest(owner, need, borrowed)
    if giver is not None:
        return giver
    own = owner.reclaimable_of(account)
    if account not in passed and (any(own) or not alone):
        return Giver(account, _least(need, own) if alone else need)
    kept = {other: owner.reclaimable_of(other) for other in others}
    return _largest(owner, need, kept) if alone else None


def _largest(owner: PageOwner, need: Pages, offers: dict[int, Pages]) -> Giver | None:
    """The account that offers most; of equal ones the one with the smaller number."""
    ranked = []
    for account, offered in offers.items():
        pages = _least(need, offered, owner.reclaimable_of(account))
        if any(pages):
            ranked.append((-sum(offered), account, pages))
    if not ranked:
        return None
    _, account, pages = min(ranked)
    return Giver(account, pages)


def _least(*pages: Pages) -> Pages:
    return tuple([min(counts) for counts in zip(*pages, strict=True)])
