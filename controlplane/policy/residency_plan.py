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

from .inputs import EvictCandidate, EvictChoice, EvictInputs, EvictReason, EvictRun
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


def spared(candidates: Sequence[EvictCandidate], *, durable_only: bool) -> list[int]:
    """Per candidate: 0, or the EvictReason for which it may not be evicted at all."""
    if not durable_only:
        return [_PINNED if entry.pinned else _DIRTY if entry.dirty else 0 for entry in candidates]
    return [
        _PINNED if entry.pinned else _DIRTY if entry.dirty else 0 if entry.durable else _NOT_DURABLE
        for entry in candidates
    ]


def own_pages(inputs: EvictInputs) -> list[int]:
    """Per candidate: pages of its own run in the groups that need some."""
    if len(inputs.need) == 1:
        sizes = [run.pages[0] for run in inputs.runs]
    else:
        wanted = [group for group, need in enumerate(inputs.need) if need]
        sizes = [sum([run.pages[group] for group in wanted]) for run in inputs.runs]
    return [sizes[entry.runs[0]] for entry in inputs.candidates]


def order_by(barred: Sequence[int], leading: Sequence[int]) -> list[int]:
    """Places of the candidates that are not barred, by ``leading``, last access and entry.

    The last two need no comparing: the inputs stand in their order and the sort is stable.
    """
    places = [place for place, reason in enumerate(barred) if not reason]
    places.sort(key=leading.__getitem__)
    return places


def evict(
    inputs: EvictInputs,
    barred: Sequence[int],
    order: Sequence[int],
    criteria: Sequence[Sequence[int]],
    entries: Sequence[int],
    terms: tuple[Sequence[int], ...],
) -> Evaluation[EvictChoice]:
    """Plan the eviction and write the answer down.

    ``barred`` says per candidate why it may not be evicted at all, 0 where it may (``spared``).
    ``order`` holds the places of those that may, the best victim first. ``criteria`` are the
    columns by which they were ordered, most significant first: they say which of them settled
    the choice. ``entries`` are the entry numbers; ``terms`` the evaluator's own columns, which
    follow PLAN_TERMS.
    """
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
    index: int  # in EvictInputs.candidates
    cut_columns: int
    freed: list[int]  # pages per group
    relies_on: tuple[int, ...]  # runs it frees, or cuts as their last holder


class _Walk:
    """Holds of every run while entries are cut one by one."""

    __slots__ = (
        "_candidates",
        "_exposed",
        "_holders",
        "_next",
        "_order",
        "_own",
        "_runs",
        "_waiting",
        "remaining",
        "victims",
    )

    def __init__(self, inputs: EvictInputs, order: Sequence[int]) -> None:
        self._candidates = inputs.candidates
        self._own = [entry.runs[0] for entry in inputs.candidates]
        self._runs = inputs.runs
        self._order = order
        self._holders = [run.holders for run in inputs.runs]
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
            f"two eviction candidates have the entry number {self._candidates[chosen].entry}; "
            "entry numbers name candidates, so each may stand there once"
        )

    def reasons(self, barred: Sequence[int]) -> list[int]:
        """Why each candidate stays, as if it were no victim."""
        holders = self._holders
        reasons = [
            reason or (_NOT_NEEDED if holders[run] == 1 else _SHARED)
            for reason, run in zip(barred, self._own, strict=True)
        ]
        if _SHARED in reasons:
            self._tell_parents(reasons)
        return reasons

    def _tell_parents(self, reasons: list[int]) -> None:
        """Among the shared, those that only listed entries below them hold are no leaves."""
        own, runs = self._own, self._runs
        below = [run for entry in self._candidates for run in entry.runs[1:]]
        if not below:
            return
        has_child, listed = set(below), Counter(below + own)
        for index, reason in enumerate(reasons):
            if reason == _SHARED:
                run = own[index]
                if run in has_child and listed[run] == runs[run].holders:
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
        entry = self._candidates[index]
        runs, holders, remaining = self._runs, self._holders, self.remaining
        own = runs[entry.runs[0]]
        cut_columns = own.columns
        if holders[entry.runs[0]] == 1:
            cut_columns = _columns_wanted(own, remaining)
        relies_on: tuple[int, ...] = entry.runs[:1]
        if cut_columns < own.columns:
            freed = [min(cut_columns, pages) for pages in own.pages]
        else:
            freed = [0] * len(remaining)
            relies_on = ()
            for run in entry.runs:
                holders[run] -= 1
                if not holders[run]:
                    relies_on += (run,)
                    freed = [a + b for a, b in zip(freed, runs[run].pages, strict=True)]
        self.victims.append(_Victim(index, cut_columns, freed, relies_on))
        self.remaining = remaining = [
            wanted - pages if wanted > pages else 0
            for wanted, pages in zip(remaining, freed, strict=True)
        ]
        if any(remaining):
            for run in entry.runs[1:]:
                self._expose(run)


def _columns_wanted(run: EvictRun, remaining: Sequence[int]) -> int:
    """The shortest tail that frees what is wanted; the whole run when even that is too little."""
    columns = 0
    for pages, wanted in zip(run.pages, remaining, strict=True):
        if wanted > pages:
            return run.columns
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
        if needed or not relied_on.isdisjoint(inputs.candidates[victim.index].runs):
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
