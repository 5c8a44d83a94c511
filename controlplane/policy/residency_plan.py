"""The plan of an eviction: which kept entries give up how much, given an order of preference.

Every residency evaluator shares this planner and differs only in its order and in what it spares.
It simulates holds and chooses nothing by itself; it never frees a page that anything outside the
plan still holds.

The entries are walked in the evaluator's order. An entry can be cut when its own run has no other
holder left: a parent becomes a leaf when its last child is gone, and outranks what the walk has
not reached yet. Entries that own one run together are released together. From a run that would
free more than is wanted only the tail is cut. A group with fewer pages than a run has columns
holds those of the run's last columns (windows keep the tail), so a cut of ``t`` columns frees
``min(t, pages)`` of them.

A plan that cannot reach the need chooses nothing and says what is short. A plan that reaches it
is pruned, last victim first, of whatever the rest can do without.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from pagetrail.catalog.errors import BadInputError

from .inputs import EvictChoice, EvictInputs, EvictReason
from .types import Evaluation, Term

PLAN_TERMS = (
    Term("entry", "entry number"),
    Term("reason", "EvictReason"),
    Term("cut_columns", "page columns"),
    Term("freed_pages", "pages, all groups"),
)

# Plain integers: members of an enumeration are slower to look up and to encode.
_CHOSEN = int(EvictReason.CHOSEN)
_NOT_NEEDED = int(EvictReason.NOT_NEEDED)
_SHARED = int(EvictReason.SHARED)
_PINNED = int(EvictReason.PINNED)
_DIRTY = int(EvictReason.DIRTY)
_NOT_DURABLE = int(EvictReason.NOT_DURABLE)
_FREES_NOTHING = int(EvictReason.FREES_NOTHING)
_NOT_A_LEAF = int(EvictReason.NOT_A_LEAF)
_REACHED = int(EvictReason.REACHED)
_SHORTFALL = int(EvictReason.SHORTFALL)


def spared(inputs: EvictInputs, *, durable_only: bool) -> Sequence[int]:
    """Per entry: 0, or the EvictReason for which it may not be evicted at all."""
    pinned, dirty, durable = inputs.pinned, inputs.dirty, inputs.durable
    if not any(pinned) and not any(dirty) and (not durable_only or all(durable)):
        return (0,) * len(pinned)
    return [
        _PINNED if held else _DIRTY if unsaved else _NOT_DURABLE if durable_only and not safe else 0
        for held, unsaved, safe in zip(pinned, dirty, durable, strict=True)
    ]


def own_pages(inputs: EvictInputs) -> list[int]:
    """Per entry: pages of its own run in the groups that need some."""
    sizes: Sequence[int] = inputs.run_pages[0]
    if len(inputs.need) > 1:
        wanted = [pages for need, pages in zip(inputs.need, inputs.run_pages, strict=True) if need]
        sizes = list(map(sum, zip(*wanted, strict=True))) or [0] * len(sizes)
    return [sizes[run] for run in inputs.own_runs]


def order_by(barred: Sequence[int], leading: Sequence[int]) -> list[int]:
    """Places of the entries that are not barred, by ``leading``, last access and entry.

    The last two need no comparing: the inputs stand in their order and the sort is stable.
    """
    return sorted(order_as_given(barred), key=leading.__getitem__)


def order_as_given(barred: Sequence[int]) -> Sequence[int]:
    """Places of the entries that are not barred, by last access and entry."""
    if not any(barred):
        return range(len(barred))
    return [place for place, reason in enumerate(barred) if not reason]


def evict(
    inputs: EvictInputs,
    barred: Sequence[int],
    order: Sequence[int],
    criteria: Sequence[Sequence[int]],
    terms: tuple[Sequence[int], ...],
) -> Evaluation[EvictChoice]:
    """Plan the eviction and write the answer down.

    ``barred`` says per entry why it may not be evicted at all, 0 where it may (``spared``).
    ``order`` holds the places of those that may, the best victim first. ``criteria`` are the
    columns by which they were ordered, most significant first: they say which of them settled
    the choice. ``terms`` are the evaluator's own columns, which follow PLAN_TERMS.
    """
    entries = inputs.entries
    walk = _Walk(inputs, order)
    tie_break = walk.run(criteria)
    reasons = walk.reasons(barred)
    victims = walk.victims
    reached = not any(walk.remaining)
    if not reached:
        for victim in victims:
            reasons[victim.index] = _SHORTFALL
        victims, tie_break = [], 0
    elif len(victims) > 1:
        victims = _pruned(inputs, victims, reasons)
    cut_columns = [0] * len(reasons)
    freed_pages = [0] * len(reasons)
    freed = [0] * len(inputs.need)
    for victim in victims:
        reasons[victim.index] = _CHOSEN
        cut_columns[victim.index] = victim.cut_columns
        freed_pages[victim.index] = sum(victim.freed)
        freed = [total + pages for total, pages in zip(freed, victim.freed, strict=True)]
    choice = EvictChoice(
        victims=tuple([(entries[victim.index], victim.cut_columns) for victim in victims]),
        freed=tuple(freed),
        shortfall=tuple(walk.remaining),
    )
    columns = (entries, reasons, cut_columns, freed_pages, *terms)
    reason = _REACHED if reached else _SHORTFALL
    return Evaluation(choice, reason, tie_break, tuple(map(tuple, columns)))


@dataclass(slots=True)
class _Victim:
    index: int  # in EvictInputs.entries
    cut_columns: int
    freed: list[int]  # pages per group
    relies_on: tuple[int, ...]  # runs it frees, or cuts as their last holder


class _Walk:
    """Holds of every run while entries are cut one by one."""

    __slots__ = (
        "_exposed",
        "_holders",
        "_inputs",
        "_next",
        "_order",
        "_own",
        "_waiting",
        "remaining",
        "victims",
    )

    def __init__(self, inputs: EvictInputs, order: Sequence[int]) -> None:
        self._inputs = inputs
        self._own = inputs.own_runs
        self._order = order
        self._holders = list(inputs.run_holders)
        self._waiting: dict[int, list[int]] = {}  # run -> places that own it and cannot go yet
        self._exposed: list[int] = []  # heap of places that the walk has passed and can go now
        self._next = 0
        self.remaining = list(inputs.need)
        self.victims: list[_Victim] = []

    def run(self, criteria: Sequence[Sequence[int]]) -> int:
        """Cut until the need is reached or nothing is left; the place of the settling criterion."""
        last = -1
        while any(self.remaining):
            last = self._take()
            if last < 0:
                return 0
            self._cut(self._order[last])
        runner_up = self._take() if last >= 0 else -1
        if runner_up < 0:
            return 0
        chosen, left = self._order[last], self._order[runner_up]
        for place, column in enumerate(criteria):
            if column[chosen] != column[left]:
                return place
        raise BadInputError(
            f"two eviction candidates have the entry number {self._inputs.entries[chosen]}; "
            "entry numbers name candidates, so each may stand there once"
        )

    def reasons(self, barred: Sequence[int]) -> list[int]:
        """Why each candidate stays, as if it were no victim."""
        holders = self._holders
        if not any(barred):
            if holders.count(1) + holders.count(0) == len(holders):
                return [_NOT_NEEDED] * len(barred)  # nothing is shared; what is gone are victims
            reasons = [_NOT_NEEDED if holders[run] == 1 else _SHARED for run in self._own]
        else:
            reasons = [
                reason or (_NOT_NEEDED if holders[run] == 1 else _SHARED)
                for reason, run in zip(barred, self._own, strict=True)
            ]
        if _SHARED in reasons:
            self._tell_parents(reasons)
        return reasons

    def _tell_parents(self, reasons: list[int]) -> None:
        """Among the shared, those that only listed entries below them hold are no leaves."""
        own, holders = self._own, self._inputs.run_holders
        below = [run for runs in self._inputs.further_runs for run in runs]
        if not below:
            return
        has_child, listed = set(below), Counter(below)
        listed.update(own)
        for index, reason in enumerate(reasons):
            if reason == _SHARED:
                run = own[index]
                if run in has_child and listed[run] == holders[run]:
                    reasons[index] = _NOT_A_LEAF

    def _take(self) -> int:
        """The best place whose entry can be cut now; -1 when there is none."""
        if self._exposed:
            return heappop(self._exposed)
        order, holders, own = self._order, self._holders, self._own
        for place in range(self._next, len(order)):
            run = own[order[place]]
            if holders[run] == 1:
                self._next = place + 1
                return place
            self._waiting.setdefault(run, []).append(place)
            self._expose(run)
            if self._exposed:
                self._next = place + 1
                return heappop(self._exposed)
        self._next = len(order)
        return -1

    def _expose(self, run: int) -> None:
        """Let the owners of a run go when nothing else holds it any more."""
        waiting = self._waiting.get(run)
        if waiting is not None and len(waiting) == self._holders[run]:
            del self._waiting[run]
            for place in waiting:
                heappush(self._exposed, place)

    def _cut(self, index: int) -> None:
        inputs, holders, remaining = self._inputs, self._holders, self.remaining
        own, further = self._own[index], inputs.further_runs[index]
        columns = cut_columns = inputs.run_columns[own]
        if holders[own] == 1:
            cut_columns = _columns_wanted(inputs, own, remaining)
        relies_on: tuple[int, ...] = (own,)
        if cut_columns < columns:
            freed = [min(cut_columns, pages[own]) for pages in inputs.run_pages]
        else:
            freed = [0] * len(remaining)
            relies_on = ()
            for run in (own, *further):
                holders[run] -= 1
                if not holders[run]:
                    relies_on += (run,)
                    freed = [a + b[run] for a, b in zip(freed, inputs.run_pages, strict=True)]
        self.victims.append(_Victim(index, cut_columns, freed, relies_on))
        self.remaining = remaining = [
            wanted - pages if wanted > pages else 0
            for wanted, pages in zip(remaining, freed, strict=True)
        ]
        if any(remaining):
            for run in further:
                self._expose(run)


def _columns_wanted(inputs: EvictInputs, run: int, remaining: Sequence[int]) -> int:
    """The shortest tail that frees what is wanted; the whole run when even that is too little."""
    columns = 0
    for pages, wanted in zip(inputs.run_pages, remaining, strict=True):
        if wanted > pages[run]:
            return inputs.run_columns[run]
        if wanted > columns:
            columns = wanted
    return columns


def _pruned(inputs: EvictInputs, victims: list[_Victim], reasons: list[int]) -> list[_Victim]:
    """The victims without those that the others can do without, and why those were left out."""
    slack = [-pages for pages in inputs.need]
    for victim in victims:
        slack = [a + b for a, b in zip(slack, victim.freed, strict=True)]
    kept: list[_Victim] = []
    relied_on: set[int] = set()
    for victim in reversed(victims):
        needed = any(pages > spare for pages, spare in zip(victim.freed, slack, strict=True))
        held = (inputs.own_runs[victim.index], *inputs.further_runs[victim.index])
        if needed or not relied_on.isdisjoint(held):
            kept.append(victim)
            relied_on.update(victim.relies_on)
        else:
            slack = [a - b for a, b in zip(slack, victim.freed, strict=True)]
            useful = any(
                need and pages for need, pages in zip(inputs.need, victim.freed, strict=True)
            )
            reasons[victim.index] = _NOT_NEEDED if useful else _FREES_NOTHING
    kept.reverse()
    return kept
